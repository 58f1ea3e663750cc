"""What pages list of objectives: a page of those that need somebody first, and how many there are."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil
from typing import Final
from uuid import UUID

from django.db.models import Case, Count, Exists, F, OuterRef, Q, QuerySet, When
from django.db.models.functions import Coalesce

from gateway.models import Objective, ObjectiveAlert
from gateway.policies.slo_alerts import AlertState, Severity
from gateway.reads import slo
from tenants.models import Tenant

PAGE: Final = 50
"""So many objectives stand on one page: what each costs to read and to draw is the page's time."""

MOST_LISTED: Final = 200
"""Of tenants' own on all pages together: those may be thousands, which nobody turns pages through."""

STATES: Final = ("page", "spent", "ticket", "good", "counting", "silent", "off")
"""Of an objective, as a list says them: what needs somebody first."""


@dataclass(frozen=True, slots=True)
class Listed:
    """What a page lists. `found`, `paging` and `tickets` count all pages, of what was searched for."""

    objectives: Sequence[Objective]  # of this page
    apart: Objective | None  # the chosen one, where it is not among them
    found: int
    paging: int
    tickets: int
    page: int  # from 1
    pages: int
    of_tenants: bool = False
    some_of_tenants: bool = False

    @property
    def cut(self) -> int:
        """So many are listed, where that is not all of them."""
        return MOST_LISTED if self.of_tenants and self.found > MOST_LISTED else 0

    @property
    def newer(self) -> int | None:
        """The page before this one."""
        return self.page - 1 if self.page > 1 else None

    @property
    def older(self) -> int | None:
        return self.page + 1 if self.page < self.pages else None


def read_listed(*, of_tenants: bool, words: str, chosen_id: UUID | None, page: int = 1) -> Listed:
    """The platform's objectives, or tenants' own: four queries at most, however many there are.

    The chosen one is in the list that it belongs to, whichever was asked for.
    """
    everyones = slo.list_objectives()
    chosen = None if chosen_id is None else everyones.filter(pk=chosen_id).first()
    of_tenants = of_tenants if chosen is None else chosen.tenants_own
    some = of_tenants or everyones.filter(tenants_own=True).exists()
    rows = everyones.filter(tenants_own=of_tenants)
    most = MOST_LISTED if of_tenants else None
    return _listed(rows, words, chosen, page, most=most, of_tenants=of_tenants, some_of_tenants=some)


def read_listed_of(tenant: Tenant, *, words: str, chosen_id: UUID | None, page: int = 1) -> Listed:
    """Those about one tenant's requests. Three queries at most."""
    rows = slo.list_objectives(tenant)
    return _listed(rows, words, None if chosen_id is None else rows.filter(pk=chosen_id).first(), page)


def _listed(
    rows: "QuerySet[Objective]",
    words: str,
    chosen: Objective | None,
    page: int,
    *,
    most: int | None = None,
    of_tenants: bool = False,
    some_of_tenants: bool = False,
) -> Listed:
    if words:
        rows = rows.filter(
            Q(name__icontains=words)
            | Q(model__icontains=words)
            | Q(kind__icontains=words)
            | Q(tenant__slug__icontains=words)
            | Q(tier__icontains=words)
        )
    paging, ticket = Q(enabled=True) & _alerting(Severity.PAGE), Q(enabled=True) & _alerting(Severity.TICKET)
    counted = rows.order_by().aggregate(
        found=Count("pk"), paging=Count("pk", filter=paging), tickets=Count("pk", filter=ticket & ~paging)
    )
    shown = counted["found"] if most is None else min(most, counted["found"])
    pages = max(1, ceil(shown / PAGE))
    page = min(max(1, page), pages)
    objectives = list(worst_first(rows)[(page - 1) * PAGE : min(page * PAGE, shown)])
    apart = None if chosen is None or chosen in objectives else chosen
    return Listed(
        objectives, apart, **counted, page=page, pages=pages, of_tenants=of_tenants, some_of_tenants=some_of_tenants
    )


def worst_first(objectives: "QuerySet[Objective]") -> "QuerySet[Objective]":
    """By their state, then by what the last look found to be left of the budget, then newest first."""
    states = {
        "off": Q(enabled=False),
        "page": _alerting(Severity.PAGE),
        "ticket": _alerting(Severity.TICKET),
        "counting": Q(tallied_at=None),
        "silent": Q(budget_remaining=None),
        "spent": Q(budget_remaining__lte=0),
    }
    place = Case(
        *(When(held, then=STATES.index(state)) for state, held in states.items()), default=STATES.index("good")
    )
    return objectives.order_by(place, Coalesce(F("budget_remaining"), 1.0), "-pk")


def _alerting(severity: Severity) -> Q:
    opened = ObjectiveAlert.objects.filter(objective=OuterRef("pk"), severity=severity.value)
    return Q(Exists(opened.exclude(state=AlertState.RESOLVED.value)))
