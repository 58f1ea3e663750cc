"""Limits with how much of each is used now; all counters are read in one round trip."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from gpupool.reads.quota_use import read_quota_use
from tenants.models import Limit
from tenants.policies.quota import POOLED
from tenants.reads.forecasts import amount_in_force
from tenants.standing import read_standings

NEAR: Final = 0.8


class Filled:
    """How full a limit is, of what its rows tell: amounts in its metric's units, None where nobody knows."""

    __slots__ = ()
    amount: int
    used: int | None
    reserved: int | None

    @property
    def taken(self) -> int | None:
        """Used, and reserved by requests under way."""
        return None if self.used is None else self.used + (self.reserved or 0)

    @property
    def share(self) -> float | None:
        """0 to 1, more where a limit was lowered below what is used; None: not known."""
        return None if self.taken is None or not self.amount else self.taken / self.amount

    @property
    def tone(self) -> str:
        """Of its bar: bad once nothing passes, used (amber) near it."""
        if self.share is None:
            return "idle"
        return "bad" if self.share >= 1 else "used" if self.share >= NEAR else ""


@dataclass(frozen=True, slots=True, kw_only=True)
class LimitUse(Filled):
    """One limit. Amounts in its metric's units; None where nobody knows now, which is not zero.

    `measured`: bytes in use, of a limit on what is claimed.
    """

    limit: Limit
    amount: int  # in force now: a boost counts
    used: int | None
    reserved: int | None = None
    measured: int | None = None

    @property
    def raised(self) -> bool:
        """For a while it allows more than by itself."""
        return self.amount != self.limit.amount


def with_use(limits: Iterable[Limit], *, now: datetime) -> list[LimitUse]:
    """Each with its use, in the order given."""
    asked = list(limits)
    standings = read_standings([limit.pk for limit in asked if limit.metric not in POOLED])
    pooled = any(limit.metric in POOLED for limit in asked)
    held = {use.quota.quota_id: use for use in read_quota_use(now)} if pooled else {}
    found = []
    for limit in asked:
        standing, quota = standings.get(limit.pk), held.get(limit.pk)
        found.append(
            LimitUse(
                limit=limit,
                amount=amount_in_force(limit, now),
                used=standing.used if standing else quota.held if quota else None,
                reserved=standing.reserved if standing else None,
                measured=quota.used_bytes if quota else None,
            )
        )
    return found


def worst_first(uses: Sequence[LimitUse]) -> list[LimitUse]:
    """The fullest first; those of which nobody knows last."""
    return sorted(uses, key=lambda use: 1.0 if use.share is None else -use.share)
