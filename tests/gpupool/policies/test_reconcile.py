"""The reconcile policy, by cases and as a simulated pool that must settle whatever happens to it."""

from dataclasses import dataclass, field, replace
from uuid import UUID

import pytest
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from gpupool.policies.instance import HOLDS_PROCESS, State
from gpupool.policies.placement import ClaimView, DeviceView, Need
from gpupool.policies.reconcile import (
    Explain,
    InstanceView,
    MarkNodeUnreachable,
    MarkUnknown,
    NodeView,
    Place,
    Request,
    Rules,
    Stop,
    VersionView,
    World,
    backoff_seconds,
    is_mass_failure,
    reconcile,
)

RULES = Rules()
VERSION = UUID(int=1)
NOW = 1_000_000.0


def a_version(replicas: int = 1, **changes: object) -> VersionView:
    version = VersionView(VERSION, "m v1", replicas, Need("gpu", 10))
    return replace(version, **changes)  # type: ignore[arg-type]


def an_instance(
    number: int, state: State, *, node: int | None = 1, age: float = 0.0, **changes: object
) -> InstanceView:
    instance = InstanceView(
        instance_id=UUID(int=number),
        version_id=VERSION,
        node_id=None if node is None else UUID(int=node),
        state=state,
        wanted=True,
        since=NOW - age,
    )
    return replace(instance, **changes)  # type: ignore[arg-type]


def a_node(number: int, *, alive: bool = True) -> NodeView:
    return NodeView(UUID(int=number), f"node-{number}", connected=True, alive=alive)


def a_device(number: int, *, node_alive: bool = True, claimed: int = 0) -> DeviceView:
    return DeviceView(UUID(int=number), f"gpu-{number}", "gpu", 25, claimed, True, "ok", node_alive, False)


def a_world(
    version: VersionView,
    *instances: InstanceView,
    nodes: tuple[NodeView, ...] = (a_node(1), a_node(2), a_node(3)),
    devices: tuple[DeviceView, ...] = (a_device(1), a_device(2)),
) -> World:
    return World(NOW, [version], instances, nodes, devices)


def test_what_tenants_acquire_is_kept_beside_the_replicas() -> None:
    """Neither counted nor stopped as too many; it ends where it fails or its version serves no more."""
    replica, acquired = an_instance(1, State.READY), an_instance(2, State.ASLEEP, pooled=True)
    assert reconcile(a_world(a_version(1), replica, acquired), RULES).actions == ()
    assert reconcile(a_world(a_version(0), acquired), RULES).actions == ()
    (requested,) = reconcile(a_world(a_version(1), acquired), RULES).actions
    assert isinstance(requested, Request)
    for version, instance, says in (
        (a_version(0, serving=False), acquired, "m v1 serves no more."),
        (a_version(0), an_instance(2, State.FAILED, age=31.0, pooled=True, reason="No."), "It failed: No."),
    ):
        assert reconcile(a_world(version, instance), RULES).actions == (Stop(instance.instance_id, says),)
    waiting = an_instance(2, State.REQUESTED, node=None, pooled=True)
    (placed,) = reconcile(a_world(a_version(0), waiting), RULES).actions
    assert isinstance(placed, Place)


def test_a_missing_replica_is_asked_for() -> None:
    plan = reconcile(a_world(a_version(2), an_instance(1, State.READY)), RULES)
    assert [type(action) for action in plan.actions] == [Request]


def test_a_waiting_instance_is_placed() -> None:
    plan = reconcile(a_world(a_version(1), an_instance(1, State.REQUESTED, node=None)), RULES)
    assert plan.actions == (Place(UUID(int=1), (UUID(int=1),)),)


def test_two_waiting_instances_do_not_count_on_the_same_bytes() -> None:
    waiting = [an_instance(n, State.REQUESTED, node=None) for n in (1, 2, 3)]
    plan = reconcile(a_world(a_version(3), *waiting, devices=(a_device(1),)), RULES)
    assert [type(action) for action in plan.actions] == [Place, Place, Explain]


def test_surplus_is_stopped_the_newest_first_and_what_serves_stays() -> None:
    world = a_world(
        a_version(1), an_instance(1, State.LOADING), an_instance(2, State.READY), an_instance(3, State.READY)
    )
    stopped = [action.instance_id for action in reconcile(world, RULES).actions if isinstance(action, Stop)]
    assert stopped == [UUID(int=3), UUID(int=1)]


def test_a_failed_instance_has_a_grace_and_is_then_replaced() -> None:
    young = a_world(a_version(1), an_instance(1, State.FAILED, age=1.0))
    plan = reconcile(young, RULES)
    assert plan.actions == ()
    assert plan.wake_at == NOW - 1.0 + RULES.failed_grace_seconds
    old = a_world(a_version(1), an_instance(1, State.FAILED, age=RULES.failed_grace_seconds))
    assert [type(action) for action in reconcile(old, RULES).actions] == [Stop, Request]


@pytest.mark.parametrize(("failures", "seconds"), [(0, 0.0), (1, 5.0), (2, 10.0), (3, 20.0), (60, 300.0)])
def test_replacements_wait_longer_each_time_they_fail(failures: int, seconds: float) -> None:
    assert backoff_seconds(failures, RULES) == seconds


def test_a_version_that_keeps_failing_waits_and_is_tried_one_at_a_time() -> None:
    waits = a_version(3, failures=2, last_failure_at=NOW - 1.0)
    plan = reconcile(a_world(waits), RULES)
    assert plan.actions == ()
    assert plan.wake_at == NOW + 9.0
    due = a_version(3, failures=2, last_failure_at=NOW - 10.0)
    assert [type(action) for action in reconcile(a_world(due), RULES).actions] == [Request]


def test_an_instance_of_a_silent_node_that_still_answers_stays_in_service() -> None:
    nodes = (a_node(1, alive=False), a_node(2), a_node(3))
    answering = an_instance(1, State.READY, answers=True)
    plan = reconcile(a_world(a_version(1), answering, nodes=nodes), RULES)
    assert [type(action) for action in plan.actions] == [MarkNodeUnreachable]
    plan = reconcile(a_world(a_version(1), replace(answering, answers=False), nodes=nodes), RULES)
    assert [type(action) for action in plan.actions] == [MarkNodeUnreachable, MarkUnknown]


def test_an_unknown_instance_is_replaced_elsewhere_after_the_grace_and_never_on_its_own_node() -> None:
    nodes = (a_node(1, alive=False), a_node(2), a_node(3))
    devices = (a_device(1, node_alive=False), a_device(2))
    early = an_instance(1, State.UNKNOWN, age=RULES.unknown_grace_seconds - 1)
    assert not any(
        isinstance(action, Request | Stop)
        for action in reconcile(a_world(a_version(1), early, nodes=nodes, devices=devices), RULES).actions
    )
    late = an_instance(1, State.UNKNOWN, age=RULES.unknown_grace_seconds)
    plan = reconcile(a_world(a_version(1), late, nodes=nodes, devices=devices), RULES)
    assert [type(action) for action in plan.actions] == [MarkNodeUnreachable, Request]
    placed = reconcile(
        a_world(a_version(1), late, an_instance(2, State.REQUESTED, node=None), nodes=nodes, devices=devices), RULES
    )
    assert Place(UUID(int=2), (UUID(int=2),)) in placed.actions


def test_an_engine_that_hangs_for_a_while_is_not_replaced_and_of_two_one_stays() -> None:
    """The agent calls it unknown after five probes, about 15 s; the node is there and speaks."""
    hung = an_instance(1, State.UNKNOWN, age=25.0)
    assert reconcile(a_world(a_version(1), hung), RULES).actions == ()
    back, coming = an_instance(1, State.READY), an_instance(2, State.LOADING)
    for late in (coming, replace(coming, state=State.REQUESTED, node_id=None)):
        plan = reconcile(a_world(a_version(1), late, back), RULES)
        assert [action.instance_id for action in plan.actions if isinstance(action, Stop)] == [UUID(int=2)]
    # Back after its replacement has come, it must not take that one's place: what hung may hang again.
    plan = reconcile(a_world(a_version(1), an_instance(2, State.READY, age=5.0), back), RULES)
    assert [action.instance_id for action in plan.actions if isinstance(action, Stop)] == [UUID(int=1)]
    # Started again by its agent after its replacement has come: it goes, and gives its claim back.
    again = an_instance(1, State.LOADING)
    plan = reconcile(a_world(a_version(1), again, replace(coming, state=State.READY)), RULES)
    assert [action.instance_id for action in plan.actions if isinstance(action, Stop)] == [UUID(int=1)]


@pytest.mark.shows("P9")
def test_when_most_nodes_fall_silent_at_once_nothing_is_moved() -> None:
    nodes = (a_node(1, alive=False), a_node(2, alive=False), a_node(3))
    lost = [an_instance(n, State.UNKNOWN, node=n, age=10 * RULES.unknown_grace_seconds) for n in (1, 2)]
    plan = reconcile(a_world(a_version(2), *lost, nodes=nodes), RULES)
    assert plan.mass_failure
    assert {type(action) for action in plan.actions} == {MarkNodeUnreachable}


@pytest.mark.parametrize(
    ("alive", "brake"),
    [("", False), ("1", False), ("0", True), ("011", False), ("0111", False), ("0011", True), ("00111", False)],
)
def test_a_mass_failure_is_all_nodes_or_at_least_two_and_half(alive: str, brake: bool) -> None:
    nodes = [a_node(n, alive=flag == "1") for n, flag in enumerate(alive, start=1)]
    assert is_mass_failure(nodes, share=0.5) is brake


def test_a_node_that_never_connected_is_no_failure() -> None:
    expected = NodeView(UUID(int=9), "later", connected=False, alive=False, ever_connected=False)
    assert not is_mass_failure([a_node(1), expected], share=0.5)
    assert reconcile(a_world(a_version(0), nodes=(a_node(1), expected)), RULES).actions == ()


def test_no_replicas_stops_even_what_is_unknown() -> None:
    plan = reconcile(a_world(a_version(0), an_instance(1, State.UNKNOWN), an_instance(2, State.FAILED)), RULES)
    assert [action.instance_id for action in plan.actions if isinstance(action, Stop)] == [UUID(int=1), UUID(int=2)]


@dataclass
class _Body:
    """An instance of the simulated pool: its record, its claim, and whether its process really runs."""

    view: InstanceView
    device: UUID | None = None
    runs: bool = False
    ever_ready: bool = False
    history: list[State] = field(default_factory=list)


class PoolMachine(RuleBasedStateMachine):
    """A pool with agents that do their part, and faults between. Time moves in steps of some seconds."""

    def __init__(self) -> None:
        super().__init__()
        self.now = NOW
        self.bodies: dict[UUID, _Body] = {}
        self.next_id = 100
        self.alive: dict[UUID, bool] = {}
        self.connected: dict[UUID, bool] = {}
        self.device_node: dict[UUID, UUID] = {}
        self.replicas = 0
        self.broken = False

    @initialize(nodes=st.integers(1, 4), replicas=st.integers(0, 4))
    def start(self, nodes: int, replicas: int) -> None:
        for number in range(1, nodes + 1):
            node = UUID(int=number)
            self.alive[node] = self.connected[node] = True
            self.device_node[UUID(int=50 + number)] = node
        self.replicas = replicas

    @rule(replicas=st.integers(0, 5))
    def scale(self, replicas: int) -> None:
        self.replicas = replicas

    @rule(broken=st.booleans())
    def break_or_mend_the_artefact(self, broken: bool) -> None:
        self.broken = broken

    @rule(data=st.data())
    def a_node_falls_silent_or_returns(self, data: st.DataObject) -> None:
        node = data.draw(st.sampled_from(sorted(self.alive)))
        self.alive[node] = not self.alive[node]
        if self.alive[node]:
            self.connected[node] = True

    @precondition(lambda self: any(body.runs for body in self.bodies.values()))
    @rule(data=st.data())
    def an_engine_dies(self, data: st.DataObject) -> None:
        running = sorted(key for key, body in self.bodies.items() if body.runs)
        self.bodies[data.draw(st.sampled_from(running))].runs = False

    @rule(seconds=st.floats(0.1, 40.0))
    def time_passes(self, seconds: float) -> None:
        self.now += seconds
        self.step()

    def step(self) -> None:
        self.agents_report()
        plan = reconcile(self.world(), RULES)
        for action in plan.actions:
            self.carry_out(action)

    def world(self) -> World:
        claimed = dict.fromkeys(self.device_node, 0)
        for body in self.bodies.values():
            if body.device is not None:
                claimed[body.device] += 10
        failures = 0
        for key in sorted(self.bodies, reverse=True):
            body = self.bodies[key]
            if body.view.state == State.STOPPED:
                if body.ever_ready:
                    break
                failures += 1
        last = max((b.view.since for b in self.bodies.values() if b.view.state == State.STOPPED), default=None)
        devices = [
            DeviceView(device, str(device), "gpu", 25, claimed[device], True, "ok", self.alive[node], False)
            for device, node in self.device_node.items()
        ]
        return World(
            self.now,
            [a_version(self.replicas, failures=failures, last_failure_at=last)],
            [body.view for body in self.bodies.values() if body.view.state != State.STOPPED],
            [NodeView(n, str(n), connected=self.connected[n], alive=up) for n, up in self.alive.items()],
            devices,
        )

    def become(self, body: _Body, state: State) -> None:
        if body.view.state != state:
            body.view = replace(body.view, state=state, since=self.now)
            body.ever_ready |= state == State.READY

    def agents_report(self) -> None:
        for body in self.bodies.values():
            node = body.view.node_id
            if node is None or not self.alive[node] or body.view.state == State.STOPPED:
                continue
            if not body.view.wanted:
                body.runs = False
                self.become(body, State.STOPPED)
                body.device = None
            elif self.broken and not body.runs:
                self.become(body, State.FAILED)
            else:
                body.runs = True
                self.become(body, State.READY)

    def carry_out(self, action: object) -> None:
        match action:
            case MarkNodeUnreachable(node_id=node):
                assert not self.alive[node]
                self.connected[node] = False
            case MarkUnknown(instance_id=key):
                self.become(self.bodies[key], State.UNKNOWN)
            case Request():
                self.next_id += 1
                key = UUID(int=self.next_id)
                self.bodies[key] = _Body(an_instance(self.next_id, State.REQUESTED, node=None, since=self.now))
            case Place(instance_id=key, device_ids=(device,)):
                body = self.bodies[key]
                node = self.device_node[device]
                assert self.alive[node], "placed on a node that is not heard"
                assert body.device is None
                body.device = device
                body.view = replace(body.view, node_id=node)
                self.become(body, State.STAGING)
            case Stop(instance_id=key):
                body = self.bodies[key]
                body.view = replace(body.view, wanted=False)
                if body.view.node_id is None:
                    self.become(body, State.STOPPED)
                elif body.view.state in HOLDS_PROCESS - {State.UNKNOWN}:
                    self.become(body, State.DRAINING)
            case Explain(instance_id=key, reason=reason):
                self.bodies[key].view = replace(self.bodies[key].view, reason=reason)

    @invariant()
    def no_device_is_promised_beyond_its_size(self) -> None:
        for device in self.device_node:
            assert sum(10 for body in self.bodies.values() if body.device == device) <= 25

    @invariant()
    def what_runs_has_a_claim(self) -> None:
        assert all(body.device is not None for body in self.bodies.values() if body.runs)

    def teardown(self) -> None:
        """Faults end: the pool must come to rest with exactly what is wanted and fits, and stay there."""
        if not self.alive:
            return
        self.broken = False
        for node in self.alive:
            self.alive[node] = self.connected[node] = True
        for _ in range(40):
            self.now += RULES.longest_backoff_seconds
            self.step()
        capacity = 2 * len(self.device_node)
        ready = [body for body in self.bodies.values() if body.view.state == State.READY]
        assert len(ready) == min(self.replicas, capacity)
        assert all(body.view.wanted for body in ready)
        assert reconcile(self.world(), RULES).actions == ()


TestPool = PoolMachine.TestCase
TestPool.settings = hypothesis_settings(max_examples=60, stateful_step_count=30, deadline=None)


def in_maintenance(number: int) -> NodeView:
    return replace(a_node(number), maintenance=True)


def stopped_and_asked(world: World) -> tuple[list[int], int]:
    actions = reconcile(world, RULES).actions
    stopped = [action.instance_id.int for action in actions if isinstance(action, Stop)]
    return stopped, sum(isinstance(action, Request) for action in actions)


def test_what_runs_on_a_node_in_maintenance_is_replaced_elsewhere_first_and_stopped_then() -> None:
    nodes = (in_maintenance(1), a_node(2))
    serving = an_instance(1, State.READY, node=1)
    assert stopped_and_asked(a_world(a_version(1), serving, nodes=nodes)) == ([], 1)
    coming = an_instance(2, State.LOADING, node=2)
    assert stopped_and_asked(a_world(a_version(1), serving, coming, nodes=nodes)) == ([], 0)
    come = replace(coming, state=State.READY)
    assert stopped_and_asked(a_world(a_version(1), serving, come, nodes=nodes)) == ([1], 0)


def test_where_there_is_no_room_elsewhere_it_goes_on_serving() -> None:
    nodes = (in_maintenance(1), a_node(2))
    waiting = an_instance(2, State.REQUESTED, node=None)
    world = a_world(a_version(1), an_instance(1, State.READY, node=1), waiting, nodes=nodes, devices=())
    assert stopped_and_asked(world) == ([], 0)


def test_of_several_as_many_end_as_serve_elsewhere_and_what_does_not_serve_ends_at_once() -> None:
    nodes = (in_maintenance(1), a_node(2))
    moving = [an_instance(n, State.READY, node=1, age=float(n)) for n in (1, 2)]
    elsewhere = an_instance(3, State.READY, node=2)
    loading = an_instance(4, State.LOADING, node=1)
    assert stopped_and_asked(a_world(a_version(3), *moving, elsewhere, loading, nodes=nodes)) == ([4], 2)
    assert stopped_and_asked(a_world(a_version(2), *moving, elsewhere, nodes=nodes)) == ([1], 1)


def test_a_node_that_comes_back_from_maintenance_gets_nothing_stopped_that_is_wanted() -> None:
    both = [an_instance(1, State.READY, node=1), an_instance(2, State.LOADING, node=2)]
    assert stopped_and_asked(a_world(a_version(1), *both)) == ([2], 0)


def test_nobody_goes_for_what_failed_the_last_time() -> None:
    """A version that does not start would else send others away again and again."""
    full = replace(a_device(1), claimed_bytes=20, claims=(ClaimView(UUID(int=7), 20, priority=-1),))
    waiting = an_instance(1, State.REQUESTED, node=None)
    fresh = reconcile(a_world(a_version(1), waiting, devices=(full,)), RULES)
    assert Stop(UUID(int=7), "It makes room for m v1.") in fresh.actions
    failing = reconcile(a_world(a_version(1, failures=1), waiting, devices=(full,)), RULES)
    assert [type(action) for action in failing.actions] == [Explain]
