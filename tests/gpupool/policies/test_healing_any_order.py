"""Healing in whatever order things happen: always a way back, budgets kept, the strongest counts, one at a time."""

from collections.abc import Sequence
from dataclasses import replace
from itertools import count
from typing import Any, Final
from uuid import UUID

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from gpupool.policies.findings import Event, find, near
from gpupool.policies.healing import decide
from gpupool.policies.healing_world import (
    OPEN,
    Attempt,
    DeviceState,
    Isolation,
    Occupant,
    Plan,
    Rules,
    Standing,
    World,
)
from gpupool.policies.remedy import ASKS_NODE, HARDWARE, RESETS, STRENGTH, TAKES_OUT, Remedy
from gpupool.policies.xid import CATALOGUE

NODES: Final = tuple(UUID(int=100 + n) for n in range(3))
CODES: Final = (*sorted(CATALOGUE), 1, 8, 26, 4711)
ONE_NODE: Final = UUID(int=1)
ONE_DEVICE: Final = UUID(int=2)


class Fleet:
    """Carries plans out as the service and the agents do, in memory."""

    def __init__(self, rules: Rules, *, nodes: Sequence[UUID] = NODES, each: int = 2) -> None:
        self.rules, self.now, self._ids = rules, 1_000_000.0, count(1)
        self.devices: dict[UUID, DeviceState] = {}
        for node in nodes:
            for _ in range(each):
                device_id = self._id()
                occupants = (Occupant(self._id(), 7, True),)
                self.devices[device_id] = DeviceState(device_id, node, "a device", occupants=occupants)
        self.attempts: list[Attempt] = []
        self.undecided: list[Event] = []
        self.decided: list[Event] = []

    def _id(self) -> UUID:
        return UUID(int=next(self._ids))

    def happen(self, device_id: UUID, code: int) -> None:
        device = self.devices[device_id]
        event = Event(self._id(), device.node_id, device_id, "xid", self.now, code, data={"pid": "7"})
        self.undecided.append(event)

    def look(self) -> Plan:
        since = self.now - 86_400
        self.attempts = [a for a in self.attempts if a.at >= since]
        recent = [e for e in self.decided if self.now - e.at < 3600]
        world = World(self.now, tuple(self.undecided), recent, tuple(self.devices.values()), tuple(self.attempts))
        plan = decide(world, self.rules)
        held = {event for one in plan.held for event in one.events}
        self.decided += [e for e in self.undecided if e.event_id not in held]
        self.undecided = [e for e in self.undecided if e.event_id in held]
        gone = {action for decision in plan.decisions for action in decision.supersedes}
        self._end(lambda a: a.action_id in gone, Standing.SUPERSEDED)
        self._end(lambda a: a.action_id in plan.overdue, Standing.FAILED)
        for decision in plan.decisions:
            asks = decision.remedy in ASKS_NODE
            state = Standing.DRY_RUN if decision.dry_run else Standing.PENDING if asks else Standing.DONE
            ended = self.now if state is Standing.DONE else None
            self.attempts.append(
                Attempt(self._id(), decision.node_id, decision.device_id, decision.remedy, state, self.now, ended)
            )
            if not decision.dry_run and decision.remedy in HARDWARE | TAKES_OUT | {Remedy.END_PROCESSES}:
                support = decision.remedy is Remedy.CORDON
                self._take_out(decision.device_id, Isolation.SUPPORT if support else Isolation.HEALING)
        for back in plan.give_back:
            self.change(back.device_id, isolation=Isolation.NOT, isolated_at=None, rebooted=False)
        return plan

    def _take_out(self, device_id: UUID, by: Isolation) -> None:
        self.change(device_id, isolation=by, isolated_at=self.now, occupants=(), idle=True)

    def _end(self, which: Any, state: Standing) -> None:
        self.attempts = [
            replace(a, state=state, ended_at=self.now) if which(a) and a.state in OPEN else a for a in self.attempts
        ]

    def change(self, device_id: UUID, **what: Any) -> None:
        self.devices[device_id] = replace(self.devices[device_id], **what)

    def agents_tell(self, state: Standing) -> None:
        rebooted = {a.node_id for a in self.attempts if a.state in OPEN and a.remedy is Remedy.REBOOT}
        self._end(lambda a: True, state)
        for device in list(self.devices.values()):
            if state is Standing.DONE and device.node_id in rebooted:
                self.change(device.device_id, rebooted=True)

    def within(self, node_id: UUID, family: frozenset[Remedy]) -> int:
        since = self.now - self.rules.window
        done = [a for a in self.attempts if a.node_id == node_id and a.remedy in family and a.at >= since]
        return sum(a.state not in (Standing.DRY_RUN, Standing.SUPERSEDED) for a in done)


class HealingMachine(RuleBasedStateMachine):
    @initialize(hardware=st.booleans())
    def begin(self, hardware: bool) -> None:
        self.fleet = Fleet(Rules(hardware=hardware))

    @rule(which=st.integers(0, 5), code=st.sampled_from(CODES))
    def error(self, which: int, code: int) -> None:
        self.fleet.happen(sorted(self.fleet.devices)[which], code)

    @rule(which=st.integers(0, 5), healthy=st.booleans(), shared=st.booleans(), driver=st.sampled_from(["", "reset"]))
    def change(self, which: int, healthy: bool, shared: bool, driver: str) -> None:
        self.fleet.change(sorted(self.fleet.devices)[which], healthy=healthy, shared=shared, driver=driver)

    @rule(seconds=st.sampled_from([1.0, 20.0, 90.0, 700.0, 4000.0]))
    def wait(self, seconds: float) -> None:
        self.fleet.now += seconds

    @rule(state=st.sampled_from([Standing.RUNNING, Standing.DONE, Standing.FAILED]))
    def agents_tell(self, state: Standing) -> None:
        if state is not Standing.RUNNING:
            self.fleet.agents_tell(state)

    @rule(which=st.integers(0, 5))
    def a_person_takes_out(self, which: int) -> None:
        device_id = sorted(self.fleet.devices)[which]
        self.fleet.change(device_id, isolation=Isolation.PERSON, isolated_at=self.fleet.now)

    @rule()
    def look(self) -> None:
        plan = self.fleet.look()
        for decision in plan.decisions:
            device = self.fleet.devices[decision.device_id]
            assert decision.reason.endswith(".")
            assert not (decision.remedy in RESETS and device.shared and not decision.dry_run)
            assert decision.dry_run is (decision.remedy in HARDWARE and not self.fleet.rules.hardware)

    @precondition(lambda self: bool(getattr(self, "fleet", None)))
    @invariant()
    def budgets_are_kept_and_one_thing_is_done_at_a_time(self) -> None:
        rules = self.fleet.rules
        for node in NODES:
            assert self.fleet.within(node, RESETS) <= rules.reset_budget
            assert self.fleet.within(node, frozenset({Remedy.REBOOT})) <= rules.reboot_budget
            assert self.fleet.within(node, frozenset({Remedy.RESTART_APP, Remedy.REBUILD})) <= rules.soft_budget + 6
            kinds = ASKS_NODE - {Remedy.CLEAR_CACHE}
            at_work = [a for a in self.fleet.attempts if a.node_id == node and a.state in OPEN and a.remedy in kinds]
            assert len(at_work) <= 1

    def teardown(self) -> None:
        """From whatever was reached: once all is quiet, every device is back, or a person is named who brings it."""
        fleet = getattr(self, "fleet", None)
        if fleet is None:
            return
        for device_id in fleet.devices:
            fleet.change(device_id, healthy=True, driver="", idle=True)
        for _ in range(40):
            fleet.look()
            fleet.agents_tell(Standing.DONE)
            fleet.now += 700
        assert not fleet.undecided
        out = [device for device in fleet.devices.values() if device.isolation is Isolation.HEALING]
        assert all(
            sum(a.remedy in TAKES_OUT and a.device_id == device.device_id for a in fleet.attempts) > fleet.rules.returns
            for device in out
        )
        fleet.now += 90_000  # a day later even those are tried again
        fleet.look()
        assert all(device.isolation is not Isolation.HEALING for device in fleet.devices.values())


HealingMachine.TestCase.settings = settings(
    max_examples=60, stateful_step_count=35, deadline=None, suppress_health_check=list(HealthCheck)
)


TestAlwaysAWayBack = pytest.mark.shows("P15")(HealingMachine.TestCase)


@given(codes=st.lists(st.sampled_from(CODES), min_size=1, max_size=5), data=st.data())
@settings(deadline=None, max_examples=150)
def test_of_errors_told_together_the_strongest_is_done_in_whatever_order(codes: list[int], data: st.DataObject) -> None:
    shuffled = data.draw(st.permutations(codes))
    outcomes = []
    for order in (codes, shuffled):
        fleet = Fleet(Rules(hardware=True), nodes=[ONE_NODE], each=1)
        (device_id,) = fleet.devices
        for code in order:
            fleet.happen(device_id, code)
        asked = [find(e, near(e, fleet.undecided), {}).remedy for e in fleet.undecided]
        plan = fleet.look()
        strongest = max(asked, key=STRENGTH.__getitem__)
        assert [d.remedy for d in plan.decisions] == ([] if strongest is Remedy.NOTE else [strongest])
        outcomes.append(strongest)
    assert outcomes[0] is outcomes[1]


@given(codes=st.permutations([31, 48, 79, 157, 74]))
@settings(deadline=None, max_examples=60)
def test_of_errors_told_one_by_one_the_strongest_counts_in_the_end(codes: list[int]) -> None:
    fleet = Fleet(Rules(hardware=True), nodes=[ONE_NODE], each=1)
    (device_id,) = fleet.devices
    for code in codes:
        fleet.happen(device_id, code)
        fleet.look()
    assert fleet.devices[device_id].isolation is Isolation.SUPPORT  # 157: its maker has to look
    assert not [a for a in fleet.attempts if a.state in OPEN]
