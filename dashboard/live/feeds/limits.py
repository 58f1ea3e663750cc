"""The channel `limits`: how a tenant's limits stand, each second, while somebody looks."""

from datetime import datetime

import msgspec

from dashboard.live.base import Encoder, Viewer, tenant_of
from dashboard.live.encoders import JsonEncoder
from dashboard.live.feeds.scopes import tenant_in
from dashboard.reads.portal_limits import LimitNow, read_limits
from tenants.policies.roles import Object


class Told(msgspec.Struct, frozen=True):
    """One limit of a frame; None: not known now."""

    id: str
    amount: int
    used: int | None
    reserved: int | None
    reset: int | None
    share: float | None
    tone: str


class LimitsFeed:
    """Scope: `tenant:SLUG`."""

    name: str = "limits"
    period_seconds: float = 2.0

    def may_watch(self, viewer: Viewer, scope: str) -> bool:
        """Who may look at the tenant's limits."""
        slug = tenant_of(scope)
        return slug is not None and viewer.may_view(Object.LIMIT, tenant=slug)

    def read(self, scope: str, *, now: datetime) -> object:
        """Raises Gone for a tenant that is gone."""
        return {"limits": [_told(one) for one in read_limits(tenant_in(scope), now)]}

    def encoder(self) -> Encoder:
        """The whole each time: it is some lines."""
        return JsonEncoder("limits", "limits.v1")


def _told(one: LimitNow) -> Told:
    share = None if one.share is None else round(one.share, 4)
    return Told(str(one.id), one.amount, one.used, one.reserved, one.reset_seconds, share, one.tone)
