"""The channels there are. Whoever adds a feed adds a line to FEEDS."""

from typing import Final

from dashboard.live.base import Feed
from dashboard.live.feeds.audit import AuditFeed
from dashboard.live.feeds.fleet import FleetFeed
from dashboard.live.feeds.gpumem import GpumemFeed
from dashboard.live.feeds.limits import LimitsFeed
from dashboard.live.feeds.reqlog import ReqlogFeed
from dashboard.live.feeds.slo import SloFeed

FEEDS: Final[tuple[Feed, ...]] = (AuditFeed(), FleetFeed(), GpumemFeed(), LimitsFeed(), ReqlogFeed(), SloFeed())


def feed_named(name: str) -> Feed | None:
    return next((feed for feed in FEEDS if feed.name == name), None)
