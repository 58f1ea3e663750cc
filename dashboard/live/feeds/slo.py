"""The channel `slo`: how objectives stand. Pages ask for their parts anew when it says that something changed."""

from datetime import datetime

from dashboard.live.base import Encoder, Viewer, tenant_of
from dashboard.live.encoders import JsonEncoder
from dashboard.live.feeds.scopes import tenant_or_all
from dashboard.reads.slo import read_board
from gateway.reads.slo import list_objectives
from tenants.policies.roles import Object


class SloFeed:
    """Scopes: none, for the platform's; `tenant:<slug>` for those about one tenant's requests.

    What tenants set up themselves is in their scopes alone: it may be thousands.
    """

    name: str = "slo"
    period_seconds: float = 5.0

    def may_watch(self, viewer: Viewer, scope: str) -> bool:
        """Who may look at the objectives of the scope."""
        slug = tenant_of(scope)
        if slug is None:
            return scope == "" and viewer.may_view(Object.OBJECTIVE)
        return viewer.may_view(Object.OBJECTIVE, tenant=slug)

    def read(self, scope: str, *, now: datetime) -> object:
        """Six queries, however many objectives there are. Raises Gone where there is no such tenant."""
        tenant = tenant_or_all(scope)
        objectives = list_objectives(tenant)
        board = read_board(list(objectives if tenant else objectives.filter(tenants_own=False)), now=now, sparks=False)
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

    def encoder(self) -> Encoder:
        """The whole where anything changed: that is once a minute."""
        return JsonEncoder(self.name, "slo.v1")
