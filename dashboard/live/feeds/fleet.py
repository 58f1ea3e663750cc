"""The channel `fleet`: what the console's overview shows, each second."""

from datetime import datetime

from dashboard.frames import build_console_frame
from dashboard.live.base import Encoder, Viewer
from dashboard.live.encoders import JsonEncoder
from tenants.policies.roles import Object


class FleetFeed:
    """Scope: none."""

    name: str = "fleet"
    period_seconds: float = 1.0

    def may_watch(self, viewer: Viewer, scope: str) -> bool:
        """Who may look at the pool."""
        return scope == "" and viewer.may_view(Object.POOL)

    def read(self, scope: str, *, now: datetime) -> object:
        """A constant number of queries, whatever the number of devices and instances."""
        return build_console_frame(now=now)

    def encoder(self) -> Encoder:
        """The whole where anything changed: it is bounded."""
        return JsonEncoder(self.name, "fleet.v1")
