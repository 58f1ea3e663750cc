"""Console: the audit log: who changed what, found by who, what, where and when; and one change field by field."""

import json
from typing import Any, Final
from uuid import UUID

from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import render
from django.utils import timezone
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from dashboard import labels
from dashboard.access import console_page
from dashboard.diffs import changes_of
from dashboard.filters import search_text, tenant_slug
from dashboard.live.feeds.audit import OF_SCOPE
from dashboard.ranges import read_range
from dashboard.reads.audit import AuditSearch, audit_rows, find_audit, known_actions, known_subject_types
from dashboard.tables import Column, Facet, Table, csv_response, is_csv, read_page
from dashboard.tables.table import Filtered
from tenants.models import AuditEvent, Tenant
from tenants.reads.audit import history_of

TABLE: Final = Table(
    name="console-audit",
    sort="-at",
    columns=(
        Column(key="at", label=gettext_lazy("When"), order="pk", value=lambda row: row.at),
        Column(key="actor_kind", label=gettext_lazy("Who"), value=lambda row: row.actor_kind),
        Column(key="action", label=gettext_lazy("What"), value=lambda row: row.action),
        Column(key="subject_type", label=gettext_lazy("On what"), value=lambda row: row.subject_type),
        Column(key="tenant_id", label=gettext_lazy("Tenant"), value=lambda row: row.tenant_id),
    ),
)
CSV_TABLE: Final = Table(
    name="console-audit",
    sort="-at",
    columns=(
        *TABLE.columns,
        *(
            Column(key=name, value=lambda row, name=name: getattr(row, name))  # type: ignore[misc]  # bound at once
            for name in ("id", "actor_id", "subject_id", "request_id")
        ),
        Column(key="before", value=lambda row: json.dumps(row.before, ensure_ascii=False)),
        Column(key="after", value=lambda row: json.dumps(row.after, ensure_ascii=False)),
    ),
)
_MOST_CHANGES: Final = 50


@console_page
def page(request: HttpRequest) -> HttpResponse:
    now = timezone.now()
    actions, slug = known_actions(), tenant_slug(request)
    groups = sorted({action.partition(".")[0] for action in actions})
    filtered = Filtered(
        search=search_text(request),
        placeholder=_("Action, person, tenant, or any id"),
        facets=[
            Facet.read(request, "actor", _("Who"), list(labels.AUDIT_ACTORS.items()), all_label=_("Everyone")),
            Facet.read(request, "action", _("What"), [(one, one) for one in groups], all_label=_("All actions")),
            Facet.read(
                request,
                "subject",
                _("On what"),
                [(one, one.partition(".")[2] or one) for one in known_subject_types()],
                all_label=_("Everything"),
            ),
        ],
    )
    within = read_range(
        request,
        now=now,
        home_zone=str(timezone.get_current_timezone()),
        choices=("1h", "24h", "7d", "30d", "90d"),
        default="30d",
    )
    tenant = Tenant.objects.filter(slug=slug).first() if slug else None
    if slug and tenant is None:
        raise Http404
    actor, action, subject = (facet.chosen for facet in filtered.facets)
    asked = AuditSearch(
        search=filtered.search,
        actor_kind=actor,
        action=action,
        subject_type=subject,
        tenant_id=tenant.pk if tenant else None,
    )
    rows = find_audit(asked, within, actions=actions)
    with timezone.override(within.zone):
        if is_csv(request):
            return csv_response(CSV_TABLE, request, rows)
        found = read_page(TABLE, request, rows)
        return render(
            request,
            "console/audit.html",
            {
                "page": found,
                "rows": list(zip(audit_rows(found.rows), found.rows, strict=True)),
                "filtered": filtered,
                "range": within,
                "zone": within.zone.key,
                "kept": _kept(request, "tenant", "range", "from", "to", "zone"),
                "tenant": tenant,
                "scope": f"{OF_SCOPE}{tenant.slug}" if tenant else "",
            },
        )


def _kept(request: HttpRequest, *names: str) -> list[tuple[str, str]]:
    """What a filter bar leaves as it is."""
    return [(name, request.GET[name]) for name in names if request.GET.get(name)]


@console_page
def event(request: HttpRequest, event_id: UUID) -> HttpResponse:
    """One change: its values before and after, and the configuration that the same transaction changed."""
    found = AuditEvent.objects.filter(pk=event_id).first()
    if found is None:
        raise Http404
    (row,) = audit_rows([found])
    history: list[dict[str, Any]] = [
        {"change": one, "rows": [line for line in changes_of(one.before, one.after) if line.changed]}
        for one in history_of(found)[:_MOST_CHANGES]
    ]
    return render(
        request,
        "console/audit_event.html",
        {
            "event": found,
            "row": row,
            "rows": changes_of(found.before, found.after),
            "history": history,
            "zone": str(timezone.get_current_timezone()),
        },
    )
