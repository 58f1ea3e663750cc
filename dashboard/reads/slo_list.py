"""What the console lists of objectives: the platform's, or those that tenants set up themselves."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final
from uuid import UUID

from django.db.models import Q

from gateway.models import Objective
from gateway.reads import slo

MOST_LISTED: Final = 200


@dataclass(frozen=True, slots=True)
class Listed:
    """What the console lists of the platform's objectives, or of those that tenants set up themselves."""

    objectives: Sequence[Objective]
    of_tenants: bool
    found: int
    some_of_tenants: bool

    @property
    def cut(self) -> bool:
        return self.found > len(self.objectives)


def read_listed(*, of_tenants: bool, words: str, chosen_id: UUID | None) -> Listed:
    """Four queries at most. The chosen one is in the list that it belongs to, whichever was asked for.

    The platform's are bounded, and all there. Tenants' own may be thousands: `words` narrows them, and those that alert
    come first where there are more than MOST_LISTED.
    """
    everyones = slo.list_objectives()
    chosen = None if chosen_id is None else everyones.filter(pk=chosen_id).first()
    of_tenants = of_tenants if chosen is None else chosen.tenants_own
    some = of_tenants or everyones.filter(tenants_own=True).exists()
    if not of_tenants:
        objectives = list(everyones.filter(tenants_own=False))
        return Listed(objectives, of_tenants, len(objectives), some)
    rows = everyones.filter(tenants_own=True)
    if words:
        rows = rows.filter(
            Q(name__icontains=words)
            | Q(model__icontains=words)
            | Q(kind__icontains=words)
            | Q(tenant__slug__icontains=words)
        )
    objectives = list(slo.alerting_first(rows)[:MOST_LISTED])
    found = len(objectives) if len(objectives) < MOST_LISTED else rows.count()
    if chosen is not None and chosen not in objectives:
        objectives.append(chosen)
    return Listed(objectives, of_tenants, found, some)
