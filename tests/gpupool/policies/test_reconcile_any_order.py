"""The reconcile policy in a simulated pool that must settle whatever happens to it."""

from dataclasses import dataclass, field, replace
from uuid import UUID

from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from gpupool.policies.instance import HOLDS_PROCESS, State
from gpupool.policies.placement import DeviceView
from gpupool.policies.reconcile import (
    Explain,
    InstanceView,
    MarkNodeUnreachable,
    MarkUnknown,
    NodeView,
    Place,
    Request,
    Stop,
    World,
    reconcile,
)
from tests.gpupool.policies.worlds import NOW, RULES, a_version, an_instance


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
