"""Console: who shares the pool."""

from datetime import timedelta

from django.core.paginator import Paginator
from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.utils import timezone

from dashboard import selectors
from dashboard.access import console_page
from dashboard.filters import search_text
from tenants.reads.usage import usage_by_tenant

PAGE_SIZE = 100


@console_page
def page(request: HttpRequest) -> HttpResponse:
    search = search_text(request)
    found = Paginator(selectors.list_tenant_rows(search=search), PAGE_SIZE).get_page(request.GET.get("page"))
    now = timezone.now()
    usage = usage_by_tenant([tenant.pk for tenant in found], since=now - timedelta(hours=24), until=now)
    return render(
        request,
        "console/tenants.html",
        {"rows": [(tenant, usage.get(tenant.pk)) for tenant in found], "found": found, "search": search},
    )
