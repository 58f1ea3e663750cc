"""The span of time that a page shows, and its zone: both stand in the address, so that a link shows the same."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import cache
from typing import Final
from zoneinfo import ZoneInfo, available_timezones

from django.http import HttpRequest
from django.utils.functional import Promise
from django.utils.translation import gettext_lazy as _

SPANS: Final[Mapping[str, tuple[timedelta, str | Promise]]] = {
    "15m": (timedelta(minutes=15), _("15 min")),
    "1h": (timedelta(hours=1), _("1 h")),
    "6h": (timedelta(hours=6), _("6 h")),
    "24h": (timedelta(hours=24), _("24 h")),
    "7d": (timedelta(days=7), _("7 d")),
    "30d": (timedelta(days=30), _("30 d")),
    "90d": (timedelta(days=90), _("90 d")),
}


_NOT_KEPT: Final = frozenset({"range", "from", "to", "zone", "after", "before", "count", "format"})
"""What another range replaces: its own words, and the place in a list that has other rows then."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeRange:
    """Aware moments, `since` included, `until` not. `name` is a key of SPANS, or "" for moments of one's own.

    They are in UTC, whatever the zone: Python compares two moments of one zone by what its clocks show, and those go
    back once a year.
    """

    since: datetime
    until: datetime
    zone: ZoneInfo
    name: str
    choices: Sequence[str]
    zones: Sequence[str]
    kept: Sequence[tuple[str, str]] = ()  # what else stands in the address, for the form of dates
    asked_since: str | None = None  # the moments of one's own, in UTC: in another zone they are the same
    asked_until: str | None = None

    @property
    def spans(self) -> list[tuple[str, str | Promise]]:
        """What the range picker offers."""
        return [(name, SPANS[name][1]) for name in self.choices]

    @property
    def in_seconds(self) -> bool:
        """Whether both ends lie in one minute: a form that sends them back in minutes would be refused."""
        return f"{self.since:%Y%m%d%H%M}" == f"{self.until:%Y%m%d%H%M}"

    @property
    def ends(self) -> tuple[str, str]:
        """`since` and `until` as `<input type="datetime-local">` has them, by the clocks of the zone."""
        written = "%Y-%m-%dT%H:%M:%S" if self.in_seconds else "%Y-%m-%dT%H:%M"
        return f"{self.since.astimezone(self.zone):{written}}", f"{self.until.astimezone(self.zone):{written}}"


def read_range(
    request: HttpRequest,
    *,
    now: datetime,
    home_zone: str = "UTC",
    choices: Sequence[str] = ("1h", "24h", "7d", "30d"),
    default: str = "24h",
    longest: timedelta = timedelta(days=366),
) -> TimeRange:
    """What `?range=` or `?from=&to=` and `?zone=` say; `default` and `home_zone` where they make no sense.

    `from` and `to` are local times of the zone, as `<input type="datetime-local">` writes them.
    """
    zone = zone_of(request.GET.get("zone", ""), default=home_zone)
    zones = list(dict.fromkeys([home_zone, "UTC", zone.key]))
    kept = [(key, value) for key, values in request.GET.lists() if key not in _NOT_KEPT for value in values]
    since, until = _moment(request.GET.get("from", ""), zone), _moment(request.GET.get("to", ""), zone)
    if since is not None and (until is None or since < until):
        end = min(until or now, now) if since < now else since + timedelta(minutes=1)
        begin = max(since, end - longest)
        return TimeRange(
            since=begin,
            until=end,
            zone=zone,
            name="",
            choices=choices,
            zones=zones,
            kept=kept,
            asked_since=_in_utc(since),
            asked_until=None if until is None else _in_utc(until),
        )
    wanted = request.GET.get("range", "")
    name = wanted if wanted in choices else default
    return TimeRange(
        since=now - SPANS[name][0], until=now, zone=zone, name=name, choices=choices, zones=zones, kept=kept
    )


def zone_of(name: str, *, default: str) -> ZoneInfo:
    """The zone that is called so; the default where there is none."""
    return ZoneInfo(name if name in zone_names() else default)


@cache
def zone_names() -> frozenset[str]:
    """Of all zones that there are."""
    return frozenset(available_timezones())  # reads hundreds of files


def _in_utc(moment: datetime) -> str:
    """As `_moment` reads it, whatever the zone."""
    return f"{moment:%Y-%m-%dT%H:%M:%SZ}"


def _moment(text: str, zone: ZoneInfo) -> datetime | None:
    """In UTC; a local time that the zone's clocks skip is as if they had not yet been put forward."""
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        return None
    if not 2000 <= found.year < 9999:
        return None
    return (found.replace(tzinfo=zone) if found.tzinfo is None else found).astimezone(UTC)
