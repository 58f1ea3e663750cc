"""Long tables as files that a worker writes; everybody sees their own, as long as they may see the list itself."""

from uuid import UUID

from django.db.models import Q, QuerySet
from django.http import Http404, HttpRequest, HttpResponse
from django.http.response import HttpResponseBase
from django.shortcuts import render
from django.utils import timezone
from django.views.decorators.http import require_GET

from core.api.downloads import download
from dashboard.access import people_page, signed_in
from dashboard.exporting import read_parts
from dashboard.models import Export, ExportState
from dashboard.services.exports import KEPT
from dashboard.tables.worker import may_read_table
from tenants.models import User
from tenants.selectors import list_tenants_for

LISTED = 50


@require_GET
@people_page
def index(request: HttpRequest) -> HttpResponse:
    """Newest first."""
    exports = _open_to(signed_in(request)).order_by("-pk")[:LISTED]
    return render(request, "exports.html", {"exports": exports, "busy": any(_is_busy(one) for one in exports)})


@require_GET
@people_page
def page(request: HttpRequest, export_id: UUID) -> HttpResponse:
    """One, which looks again by itself until it is ready."""
    export = _own(request, export_id)
    return render(request, "exports.html", {"exports": [export], "busy": _is_busy(export), "one": True})


@require_GET
@people_page
def file(request: HttpRequest, export_id: UUID) -> HttpResponseBase:
    """The file itself."""
    export = _own(request, export_id)
    if export.state != ExportState.READY or not may_read_table(signed_in(request), path=export.path):
        raise Http404
    response: HttpResponseBase = download(
        request, f"{export.table}.csv", "text/csv; charset=utf-8", read_parts(export.pk)
    )
    return response


def _own(request: HttpRequest, export_id: UUID) -> Export:
    """Raises Http404 for anybody else's, and for what is open no more."""
    export = _open_to(signed_in(request)).filter(pk=export_id).first()
    if export is None:
        raise Http404
    return export


def _open_to(person: User) -> "QuerySet[Export]":
    """Theirs of the last day: of tenants that they belong to still, and of the console while they may see it."""
    reached = Q() if person.may_read_platform else Q(tenant_id__in=list_tenants_for(person).values("pk"))
    return Export.objects.filter(reached, person=person, created_at__gte=timezone.now() - KEPT)


def _is_busy(export: Export) -> bool:
    return export.state in (ExportState.WAITING, ExportState.WRITING)
