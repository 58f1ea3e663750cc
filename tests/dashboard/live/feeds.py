"""Feeds that tests watch, and the hub with them in it."""

import asyncio
from collections.abc import Callable
from datetime import datetime

import pytest
from django.conf import settings

from dashboard.live import board, leader, publisher
from dashboard.live import hub as hubs
from dashboard.live.base import Encoder, Feed, Payload, Viewer, tenant_of
from dashboard.live.encoders import JsonEncoder
from dashboard.live.hub import Hub
from tenants.policies.roles import Object


class CountEncoder:
    """Deltas in bytes: a keyframe is K and the state, a delta D and the state; `lost` states need a keyframe."""

    whole = False

    def __init__(self, lost: Callable[[int], bool] = lambda _: False) -> None:
        self._lost = lost

    def keyframe(self, state: object, *, epoch: int, seq: int, at: datetime) -> Payload:
        return b"K%d" % self._number(state)

    def delta(self, state: object, *, epoch: int, seq: int, at: datetime) -> Payload | None:
        return None if self._lost(self._number(state)) else b"D%d" % self._number(state)

    @staticmethod
    def _number(state: object) -> int:
        assert isinstance(state, int)
        return state


class CountFeed:
    """Its state is how often it was read; `fail` is called with it first."""

    name = "count"

    def __init__(
        self,
        *,
        period_seconds: float = 0.02,
        lost: Callable[[int], bool] = lambda _: False,
        fail: Callable[[int], None] = lambda _: None,
    ) -> None:
        self.period_seconds = period_seconds
        self.reads = 0
        self._lost = lost
        self._fail = fail

    def may_watch(self, viewer: Viewer, scope: str) -> bool:
        return viewer.reads_platform

    def read(self, scope: str, *, now: datetime) -> object:
        self.reads += 1
        self._fail(self.reads)
        return self.reads

    def encoder(self) -> Encoder:
        return CountEncoder(self._lost)


class OwnersFeed:
    """What owners and admins of a tenant may see, and of no tenant those who may read the platform."""

    name = "owners"
    period_seconds = 0.05

    def may_watch(self, viewer: Viewer, scope: str) -> bool:
        return viewer.may_view(Object.WEBHOOK, tenant=tenant_of(scope))

    def read(self, scope: str, *, now: datetime) -> object:
        return {"scope": scope}

    def encoder(self) -> Encoder:
        return JsonEncoder(self.name, "owners.v1")


def steady(monkeypatch: pytest.MonkeyPatch) -> None:
    """For who counts keyframes, or numbers without a gap: no stall of a store, or of ourselves, ends a term of the lead
    or leaves a read untold.
    """
    monkeypatch.setattr(leader, "TTL_SECONDS", 20.0)
    monkeypatch.setattr(board, "_DEADLINE_SECONDS", 20.0)
    monkeypatch.setattr(publisher, "_KEPT_SECONDS", 20.0)


def hub_with(
    *feeds: Feed, recheck_seconds: float = 5.0, url: str | None = "", linger_seconds: float = 30.0, shared: bool = True
) -> Hub:
    """A hub of the running loop that knows these feeds alone; the loop's own one, unless there is to be another."""
    url = settings.GATEHOUSE.valkey_scratch_url if url == "" else url
    made = Hub(
        url=url,
        prefix=settings.GATEHOUSE.valkey_prefix,
        feeds={feed.name: feed for feed in feeds}.get,
        recheck_seconds=recheck_seconds,
        linger_seconds=linger_seconds,
    )
    if shared:
        hubs._hubs[asyncio.get_running_loop()] = made
    return made
