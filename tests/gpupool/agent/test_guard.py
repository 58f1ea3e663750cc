"""The guard on a node: measures by process, signals who listens, caps who does not, ends the lowest priority."""

from typing import Any, Final
from uuid import UUID

import pytest

from core.clock import ManualClock
from gpupool.agent import guard as guards
from gpupool.agent.guard import EVICTED, Guarded, MemoryGuard
from gpupool.discovery.base import Noticed
from gpupool.policies.oom_guard import GuardState, Rules

ONE, TWO = UUID(int=1), UUID(int=2)
LEASE: Final = 10_000_000_000


class Node:
    """Two engines on one device, and what the guard did to them."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *, listening: tuple[int, ...] = ()) -> None:
        self.use: dict[str, dict[int, int | None] | None] = {"gpu-0": {}}
        self.noticed: list[Noticed] = []
        self.ended: list[UUID] = []
        self.signalled: list[int] = []
        self.changes = 0
        self.engines = [self.an_engine(ONE, 11, priority=1), self.an_engine(TWO, 22, priority=-1)]
        monkeypatch.setattr(guards, "listens", lambda pid: pid in listening)
        monkeypatch.setattr(guards, "signal_listeners", self._signal)
        self.guard = MemoryGuard(
            engines=lambda: self.engines,
            device_use=lambda device: self.use.get(device),
            end=self.ended.append,
            notice=self.noticed.append,
            on_change=self._changed,
            clock=ManualClock(),
            rules=Rules(),
        )

    def an_engine(self, instance_id: UUID, pid: int, **more: Any) -> Guarded:
        given: dict[str, Any] = {
            "device_ids": ["gpu-0"], "lease_bytes": LEASE, "priority": 0, "pids": [pid, pid + 1], "serving": True,
            "preallocates": False, "requests": 8,
        }  # fmt: skip
        return Guarded(instance_id, **given | more)

    def look(self, *shares: float | None) -> None:
        for pid, share in zip((11, 22), shares, strict=False):
            listed = self.use["gpu-0"]
            assert listed is not None
            listed[pid] = None if share is None else round(LEASE * share)
        self.guard.look()

    def _signal(self, pids: Any) -> int:
        self.signalled += pids
        return len(self.signalled)

    def _changed(self) -> None:
        self.changes += 1


def test_an_engine_that_does_not_listen_gets_half_of_its_requests_until_it_is_calm(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    node = Node(monkeypatch)
    for _ in range(3):
        node.look(0.95, 0.1)
    reading = node.guard.reading(ONE)
    assert (reading.guard_state, reading.cap) == (GuardState.SHED, 4)
    assert node.guard.reading(TWO) == guards.Reading()
    assert "at most 4 requests" in node.noticed[-1].text
    assert node.noticed[-1].data == {"instance_id": str(ONE)}
    told = node.changes
    node.look(0.95, 0.1)
    assert node.changes == told  # nothing new to tell
    for _ in range(30):
        node.look(0.2, 0.1)
    assert node.guard.reading(ONE) == guards.Reading()
    assert node.signalled == []


@pytest.mark.shows("R152")
def test_an_engine_that_listens_is_signalled_in_all_its_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    node = Node(monkeypatch, listening=(12,))
    for _ in range(3):
        node.look(0.95, 0.1)
    assert node.signalled == [11, 12]
    assert node.guard.reading(ONE).guard_state is GuardState.SIGNALLED
    assert node.guard.reading(ONE).cap is None
    assert node.noticed[-1].text.endswith(" 2 of its processes were asked to give memory back.")


def test_one_process_that_is_signalled_is_told_of_as_one(monkeypatch: pytest.MonkeyPatch) -> None:
    node = Node(monkeypatch, listening=(12,))
    monkeypatch.setattr(guards, "signal_listeners", lambda _pids: 1)
    for _ in range(3):
        node.look(0.95, 0.1)
    assert node.noticed[-1].text.endswith(" 1 of its processes was asked to give memory back.")


@pytest.mark.shows("R102")
def test_the_lowest_priority_on_the_device_is_ended_with_an_event_that_names_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    node = Node(monkeypatch)
    for share in (0.92, 0.95, 0.97, 0.99):
        node.look(share, 0.1)
    assert node.ended == [TWO]
    told = [one for one in node.noticed if one.kind == EVICTED]
    assert [(one.source, one.stable_id, one.data["instance_id"]) for one in told] == [("guard", "gpu-0", str(TWO))]
    assert node.guard.reading(TWO).guard_state is GuardState.EVICTED


def test_use_is_the_sum_over_an_engines_processes_and_unknown_use_is_no_use(monkeypatch: pytest.MonkeyPatch) -> None:
    node = Node(monkeypatch)
    node.use["gpu-0"] = {11: LEASE // 2, 12: LEASE // 2, 99: LEASE}
    for _ in range(3):
        node.guard.look()
    assert node.guard.reading(ONE).guard_state is GuardState.SHED
    node.use["gpu-0"] = {11: None, 12: LEASE}
    node.guard.look()
    assert node.guard.reading(ONE).guard_state is GuardState.WELL
    node.use["gpu-0"] = None  # a device that lists no processes
    node.guard.look()
    assert node.guard.reading(ONE).guard_state is GuardState.WELL


def test_what_an_engine_took_by_the_time_it_served_is_no_reason_to_do_anything(monkeypatch: pytest.MonkeyPatch) -> None:
    node = Node(monkeypatch)
    node.engines = [node.an_engine(ONE, 11, preallocates=True)]
    for _ in range(10):
        node.look(0.97)
    assert node.guard.reading(ONE) == guards.Reading()
    for _ in range(3):
        node.look(0.999)
    assert node.guard.reading(ONE).guard_state is GuardState.SHED


def test_who_is_not_in_a_devices_list_uses_it_by_an_unknown_amount(monkeypatch: pytest.MonkeyPatch) -> None:
    node = Node(monkeypatch)
    node.engines = [node.an_engine(ONE, 11, preallocates=True)]
    node.guard.look()  # nothing is listed yet: that is no beginning to measure growth from
    for _ in range(5):
        node.look(0.97)
    assert node.noticed == []


@pytest.mark.shows("P16")
def test_use_beyond_the_lease_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    node = Node(monkeypatch)
    node.look(1.01, 0.1)
    assert node.guard.reading(ONE).guard_state is GuardState.OVER


def test_an_engine_that_is_gone_is_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    node = Node(monkeypatch)
    for _ in range(3):
        node.look(0.95, 0.95)
    node.engines = []
    node.guard.look()
    assert node.guard.reading(ONE) == guards.Reading()
