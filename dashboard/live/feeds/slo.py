"""The channel `slo`: how objectives stand. Pages ask for their parts anew when it says that something changed."""

from collections.abc import Hashable, Mapping, Sequence
from datetime import datetime
from uuid import UUID

from dashboard.live.base import Encoder, Viewer, tenant_of
from dashboard.live.encoders import JsonEncoder
from dashboard.live.feeds.scopes import tenant_or_all
from dashboard.reads.slo import read_board
from gateway.models import Objective
from gateway.reads.slo import Standing, as_of, counted_between, list_objectives, read_standings, standings_key
from tenants.policies.roles import Object


class SloFeed:
    """Scopes: none, for the platform's; `tenant:<slug>` for those about one tenant's requests.

    What tenants set up themselves is in their scopes alone: it may be thousands.
    """

    name: str = "slo"
    period_seconds: float = 5.0

    def __init__(self) -> None:
        self._kept: dict[str, tuple[Hashable, Mapping[UUID, Standing]]] = {}  # by scope
        self._kept_of: datetime | None = None

    def may_watch(self, viewer: Viewer, scope: str) -> bool:
        """Who may look at the objectives of the scope."""
        slug = tenant_of(scope)
        if slug is None:
            return scope == "" and viewer.may_view(Object.OBJECTIVE)
        return viewer.may_view(Object.OBJECTIVE, tenant=slug)

    def read(self, scope: str, *, now: datetime) -> object:
        """Three queries and two more where anything was counted or a minute has ended; a tenant's scope takes another.

        Raises Gone where there is no such tenant.
        """
        tenant = tenant_or_all(scope)
        rows = list_objectives(tenant)
        objectives = list(rows if tenant else rows.filter(tenants_own=False))
        board = read_board(objectives, now=now, standings=self._standings(scope, objectives, now=now))
        return {
            "as_of": board.as_of.timestamp(),
            "objectives": [
                {
                    "id": str(row.objective.pk),
                    "name": row.objective.name,
                    "state": row.state,
                    "silenced": row.silenced,
                    "burn": row.standing.burn,
                    "remaining": row.standing.budget.remaining,
                    "attained": row.standing.attained,
                    "alerts": [[alert.pair, alert.state] for alert in row.alerts],
                }
                for row in board.rows
            ],
        }

    def _standings(self, scope: str, objectives: Sequence[Objective], *, now: datetime) -> Mapping[UUID, Standing]:
        """All but these is read anew each time: names, alerts, silences are few; tallies are thousands of rows.

        Kept until the minute ends: what nobody watches any more goes with it.
        """
        if self._kept_of != as_of(now):
            self._kept, self._kept_of = {}, as_of(now)
        key = standings_key(objectives, now=now)
        kept = self._kept.get(scope)
        if kept is not None and kept[0] == key:
            return kept[1]
        found = read_standings(objectives, now=now, sparks=False)
        if not counted_between(objectives, found):
            self._kept[scope] = (key, found)
        return found

    def encoder(self) -> Encoder:
        """The whole where anything changed: that is once a minute."""
        return JsonEncoder(self.name, "slo.v1")
