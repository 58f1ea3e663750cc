"""Long tables as files that a worker writes; everybody sees their own, as long as they may see the list itself."""

from collections.abc import Sequence
from uuid import UUID

from django.db.models import QuerySet
from django.http import Http404, HttpRequest, HttpResponse
from django.http.response import HttpResponseBase
from django.shortcuts import render
from django.utils import timezone
from django.views.decorators.http import require_GET

from core.api.downloads import download
from dashboard.access import people_page, signed_in
from dashboard.exporting import read_parts
from dashboard.models import Export, ExportState
from dashboard.navigation import title_of
from dashboard.services.exports import KEPT
from dashboard.tables.worker import may_read_table
from tenants.models import User
from tenants.selectors import list_tenants_for

LISTED = 50


@require_GET
@people_page
def index(request: HttpRequest) -> HttpResponse:
    """Newest first."""
    return _shown(request, list(_kept(signed_in(request)).order_by("-pk")[:LISTED]))


@require_GET
@people_page
def page(request: HttpRequest, export_id: UUID) -> HttpResponse:
    """One, which looks again by itself until it is ready."""
    return _shown(request, [_own(request, export_id)], one=True)


@require_GET
@people_page
def file(request: HttpRequest, export_id: UUID) -> HttpResponseBase:
    """The file itself; its page, which says why there is none, for who may not see the list any more."""
    export, person = _own(request, export_id), signed_in(request)
    if not _reached([export], person) or not may_read_table(person, path=export.path):
        return _shown(request, [export], one=True, open_ones=frozenset())
    if export.state != ExportState.READY:
        raise Http404
    response: HttpResponseBase = download(
        request, f"{export.table}.csv", "text/csv; charset=utf-8", read_parts(export.pk)
    )
    return response


def _own(request: HttpRequest, export_id: UUID) -> Export:
    """Raises Http404 for anybody else's, as for what there never was."""
    export = _kept(signed_in(request)).filter(pk=export_id).first()
    if export is None:
        raise Http404
    return export


def _kept(person: User) -> "QuerySet[Export]":
    """Theirs of the last day."""
    return Export.objects.filter(person=person, created_at__gte=timezone.now() - KEPT)


def _reached(exports: Sequence[Export], person: User) -> frozenset[UUID]:
    """Ids of those of tenants that they belong to still, and of the console while they may see it."""
    if person.may_read_platform:
        return frozenset(export.pk for export in exports)
    wanted = {export.tenant_id for export in exports if export.tenant_id is not None}
    tenants = set(list_tenants_for(person).filter(pk__in=wanted).values_list("pk", flat=True)) if wanted else set()
    return frozenset(export.pk for export in exports if export.tenant_id in tenants)


def _shown(
    request: HttpRequest, exports: Sequence[Export], *, one: bool = False, open_ones: frozenset[UUID] | None = None
) -> HttpResponse:
    """What they asked for stays listed; of a list that they may not see any more nothing is told but that."""
    if open_ones is None:
        open_ones = _reached(exports, signed_in(request))
    titles = {path: title_of(path) for path in {export.path for export in exports}}
    context = {
        "exports": [(export, titles[export.path] or export.table, export.pk in open_ones) for export in exports],
        "busy": any(_is_busy(export) for export in exports if export.pk in open_ones),
        "one": one,
    }
    return render(request, "exports.html", context, status=403 if one and not open_ones else 200)


def _is_busy(export: Export) -> bool:
    return export.state in (ExportState.WAITING, ExportState.WRITING)
