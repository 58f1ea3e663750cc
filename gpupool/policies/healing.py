"""What is done about devices in trouble: events in, actions with reasons out. Pure.

The driver's own recovery action and the error catalogues say what an error asks for, and the strongest counts. What
was tried lately says whether the next rung is due (restart, drain and reset, reboot, isolate); budgets per node and a
brake on common failures bound all of it. A device that others share is never reset. Carrying out any part of a plan
and deciding again is safe: what is under way is not begun twice.
"""

from collections.abc import Collection, Iterable, Sequence
from uuid import UUID

from gpupool.policies.findings import Event, Finding, find, near
from gpupool.policies.healing_world import (
    OPEN,
    Attempt,
    Decision,
    DeviceState,
    Held,
    Isolation,
    Noted,
    Plan,
    Rules,
    Standing,
    World,
)
from gpupool.policies.remedy import (
    ASKS_NODE,
    HARDWARE,
    NEXT,
    REMEDY_OF,
    RESETS,
    STRENGTH,
    TAKES_OUT,
    WORDS,
    Remedy,
)
from gpupool.policies.way_back import give_back
from gpupool.policies.xid import Verb, recovery_verb


def decide(world: World, rules: Rules) -> Plan:
    """All that should be done now."""
    overdue = tuple(
        a.action_id for a in world.attempts if a.state in OPEN and world.now - a.at >= rules.action_deadline
    )
    devices = {device.device_id: device for device in world.devices}
    decisions: list[Decision] = []
    noted: list[Noted] = []
    held: list[Held] = []
    everything = [*world.recent, *world.events]
    found: dict[UUID, list[Finding]] = {}
    for event in world.events:
        if event.device_id is None or event.device_id not in devices:
            noted.append(Noted((event.event_id,), _of_no_device(event)))
            continue
        finding = find(event, near(event, everything), world.overrides)
        found.setdefault(event.device_id, []).append(finding)
    look = _Look(world, rules)
    for device in sorted(devices.values(), key=lambda one: one.device_id):
        outcome = look.at(device, found.get(device.device_id, []), noted)
        if isinstance(outcome, Held):
            held.append(outcome)
        elif outcome is not None:
            decisions += outcome
    braked = _braked(world, decisions, rules)
    if braked:
        reason = "Many nodes fail at once: the cause is likely a common one, and nothing is reset or taken out."
        stopped = [d for d in decisions if d.remedy in HARDWARE | TAKES_OUT]
        held += [Held(d.events, reason) for d in stopped if d.events]
        decisions = [d for d in decisions if d not in stopped]
    back = () if braked else give_back(world, decisions, rules)
    return Plan(tuple(decisions), tuple(noted), tuple(held), back, overdue, braked)


class _Look:
    """One look at all devices: what is begun by it counts for the devices that come after."""

    def __init__(self, world: World, rules: Rules) -> None:
        self._world, self._rules = world, rules
        self._begun: list[Decision] = []

    def at(self, device: DeviceState, findings: Sequence[Finding], noted: list[Noted]) -> list[Decision] | Held | None:
        """What is to be done about one device; what asks for nothing goes to `noted`."""
        noted += [Noted((f.event.event_id,), f.reason) for f in findings if f.remedy is Remedy.NOTE]
        asking = [f for f in findings if f.remedy is not Remedy.NOTE]
        events = tuple(f.event.event_id for f in asking)
        wanted, reason = self._wanted(device, asking)
        if wanted is Remedy.NOTE:
            return None
        why_not = self._left_alone(device, wanted, asking)
        if why_not is not None:
            if events:
                noted.append(Noted(events, f"{reason} {why_not}"))
            return None
        open_ones = [a for a in self._of(device) if a.state in OPEN]
        if any(STRENGTH[a.remedy] < STRENGTH[wanted] and a.state is Standing.RUNNING for a in open_ones):
            return Held(events, f"{reason} A weaker action is running; it is waited for.")
        # That an engine outgrew its lease is no fault of the device's, however often it does.
        own_doing = bool(asking) and all(f.event.kind == "evicted" for f in asking)
        remedy, how = (wanted, "") if own_doing and wanted is Remedy.REBUILD else self._rung(device, wanted)
        return self._bounded(device, remedy, f"{reason}{how}", events, asking, open_ones, noted)

    def _wanted(self, device: DeviceState, asking: Sequence[Finding]) -> tuple[Remedy, str]:
        """The strongest of what its events, its driver, a failed action and a waiting row remap ask for."""
        candidates = [(f.remedy, f.reason) for f in asking]
        driver = recovery_verb(device.driver) if device.driver else None
        if driver is not None and driver is not Verb.IGNORE and (candidates or not self._lately(device)):
            candidates.insert(0, (REMEDY_OF[driver], f"The driver asks for {driver}."))  # first, where equally strong
        failed = self._failed(device)
        if failed is not None:
            candidates.append((NEXT[failed.remedy], f"The last action ({failed.remedy}) failed."))
        if device.remap_pending and device.idle and self._rules.hardware and not self._lately(device):
            candidates.append((Remedy.DRAIN_RESET, "A row remap waits for a reset, and nothing runs on the device."))
        return max(candidates, key=lambda one: STRENGTH[one[0]], default=(Remedy.NOTE, ""))

    def _left_alone(self, device: DeviceState, wanted: Remedy, asking: Sequence[Finding]) -> str | None:
        """Why nothing is begun; None where something is."""
        if device.isolation is Isolation.PERSON:
            return "A person has taken the device out: healing leaves it alone."
        for attempt in self._of(device):
            if attempt.state in OPEN and STRENGTH[attempt.remedy] >= STRENGTH[wanted]:
                return f"It is being seen to already ({attempt.remedy})."
            over = attempt.ended_at if attempt.ended_at is not None else attempt.at
            told = max((f.event.at for f in asking), default=float("inf"))
            stronger = attempt.state is Standing.DONE and STRENGTH[attempt.remedy] >= STRENGTH[wanted]
            if stronger and attempt.remedy not in TAKES_OUT and told <= over + self._rules.settle:
                return f"It is the aftermath of what was just done ({attempt.remedy})."
        if wanted in HARDWARE and self._restarted(device.node_id, asking):
            return "Its node was restarted since."
        if device.isolation is Isolation.NOT or wanted not in HARDWARE | TAKES_OUT:
            return None
        if device.isolation is Isolation.HEALING and self._may_go_on(device, wanted):
            return None
        return "The device is taken out already."

    def _restarted(self, node_id: UUID, asking: Sequence[Finding]) -> bool:
        """Whether all of this was told before a restart of the node was over: it was one for all its devices."""
        told = max((f.event.at for f in asking), default=float("inf"))
        return any(
            a.node_id == node_id and a.remedy is Remedy.REBOOT and a.state is Standing.DONE and a.ended_at is not None
            and told <= a.ended_at + self._rules.settle
            for a in self._world.attempts
        )  # fmt: skip

    def _may_go_on(self, device: DeviceState, wanted: Remedy) -> bool:
        """Whether more may be tried with a device that healing took out itself."""
        if wanted in TAKES_OUT:
            return self._may_take_out(device, wanted)
        if not self._rules.hardware:
            return False
        if wanted is Remedy.REBOOT:  # not hour by hour, with what else the node has to do
            return not any(a.remedy is Remedy.REBOOT and a.state is not Standing.DRY_RUN for a in self._of(device))
        return device.idle and not device.shared

    def _may_take_out(self, device: DeviceState, wanted: Remedy) -> bool:
        """Whether a device that is out is taken out anew: for its maker, where healing took it out until it is well."""
        return device.isolation is Isolation.HEALING and wanted is Remedy.CORDON

    def _rung(self, device: DeviceState, wanted: Remedy) -> tuple[Remedy, str]:
        """What is due where the same was tried lately; a shared device is spared a reset."""
        remedy, how = wanted, ""
        since = self._world.now - self._rules.window
        for _ in Remedy:
            if remedy in RESETS and device.shared:
                remedy, how = Remedy.END_PROCESSES, how + " Others share the device, so that it is not reset."
            family = RESETS if remedy in RESETS else frozenset({remedy})
            tried = sum(
                a.remedy in family and a.state in (Standing.DONE, Standing.FAILED) and a.at >= since
                for a in self._of(device)
            )
            if remedy is NEXT[remedy] or tried < self._rules.repeats.get(remedy, 1):
                break
            how += f" It came back after {tried} x {remedy}."
            remedy = NEXT[remedy]
        return remedy, how

    def _bounded(
        self,
        device: DeviceState,
        remedy: Remedy,
        reason: str,
        events: tuple[UUID, ...],
        asking: Sequence[Finding],
        open_ones: Sequence[Attempt],
        noted: list[Noted],
    ) -> list[Decision] | Held | None:
        rules = self._rules
        if remedy in HARDWARE and not rules.hardware:
            return self._in_words_only(device, remedy, reason, events, noted)
        if remedy in HARDWARE and self._spent(device.node_id, remedy):
            reason += f" The node's budget for {remedy} is spent."
            remedy = Remedy.ISOLATE
        if remedy in TAKES_OUT and device.isolation is not Isolation.NOT and not self._may_take_out(device, remedy):
            if events:
                noted.append(Noted(events, f"{reason} The device is taken out already."))
            return None
        if remedy in ASKS_NODE - {Remedy.CLEAR_CACHE} and self._busy(device.node_id, open_ones):
            return Held(events, f"{reason} Another action is under way on the node; one at a time is done.")
        instances: tuple[UUID, ...] = ()
        if remedy in (Remedy.RESTART_APP, Remedy.REBUILD):
            if self._soft_spent(device.node_id):
                return Held(events, f"{reason} The node's budget for restarts is spent for now.")
            instances, spared = _victims(device, asking)
            if not instances:
                if events:
                    noted.append(Noted(events, f"{reason} {spared}"))
                return None
        elif remedy in HARDWARE | {Remedy.ISOLATE, Remedy.END_PROCESSES}:
            instances = tuple(one.instance_id for one in device.occupants)
        superseded = tuple(a.action_id for a in open_ones if a.state is Standing.PENDING)
        made = self._begin(device, remedy, reason, events, instances=instances, supersedes=superseded)
        return [made]

    def _in_words_only(
        self, device: DeviceState, remedy: Remedy, reason: str, events: tuple[UUID, ...], noted: list[Noted]
    ) -> list[Decision] | None:
        """Hardware actions are off: write down what would be done; a device that cannot be used is taken out."""
        since = self._world.now - self._rules.window
        told = any(
            a.state is Standing.DRY_RUN and a.at >= since and STRENGTH[a.remedy] >= STRENGTH[remedy]
            for a in self._of(device)
        )
        made: list[Decision] = []
        if not told:
            made.append(self._begin(device, remedy, reason, events, dry_run=True))
        if remedy is not Remedy.DRAIN_RESET and device.isolation is Isolation.NOT:
            why = f"{reason} Hardware actions are switched off, so that the device is taken out instead."
            instances = tuple(one.instance_id for one in device.occupants)
            made.append(self._begin(device, Remedy.ISOLATE, why, events, instances=instances))
        if not made and events:
            noted.append(Noted(events, f"{reason} It is written down already what would be done ({remedy})."))
        return made or None

    def _begin(
        self,
        device: DeviceState,
        remedy: Remedy,
        reason: str,
        events: tuple[UUID, ...],
        *,
        instances: tuple[UUID, ...] = (),
        dry_run: bool = False,
        supersedes: tuple[UUID, ...] = (),
    ) -> Decision:
        words = f"{reason} So {WORDS[remedy]}."
        made = Decision(
            device.node_id, device.device_id, remedy, words, events, instances, dry_run=dry_run, supersedes=supersedes
        )
        self._begun.append(made)
        return made

    # What was done lately

    def _of(self, device: DeviceState) -> list[Attempt]:
        return [
            a for a in self._world.attempts if a.device_id == device.device_id and a.state is not Standing.SUPERSEDED
        ]

    def _lately(self, device: DeviceState) -> bool:
        since = self._world.now - self._rules.window
        return any(
            a.at >= since and a.remedy in HARDWARE | TAKES_OUT | {Remedy.END_PROCESSES} for a in self._of(device)
        )

    def _failed(self, device: DeviceState) -> Attempt | None:
        """Its last action, where it failed and nothing followed; one that was given back since begins anew."""
        own = self._of(device)
        last = own[-1] if own else None
        if last is None or last.state is not Standing.FAILED or last.remedy is Remedy.CLEAR_CACHE:
            return None
        given_back = device.isolation is Isolation.NOT and last.remedy in HARDWARE | {Remedy.END_PROCESSES}
        return None if given_back or device.isolation is Isolation.PERSON else last

    def _spent(self, node_id: UUID, remedy: Remedy) -> bool:
        family = RESETS if remedy in RESETS else frozenset({remedy})
        budget = self._rules.reset_budget if remedy in RESETS else self._rules.reboot_budget
        return self._count(node_id, family) >= budget

    def _soft_spent(self, node_id: UUID) -> bool:
        return self._count(node_id, frozenset({Remedy.RESTART_APP, Remedy.REBUILD})) >= self._rules.soft_budget

    def _count(self, node_id: UUID, family: Collection[Remedy]) -> int:
        since = self._world.now - self._rules.window
        done = sum(
            a.node_id == node_id
            and a.remedy in family
            and a.at >= since
            and a.state not in (Standing.DRY_RUN, Standing.SUPERSEDED)
            for a in self._world.attempts
        )
        return done + sum(d.node_id == node_id and d.remedy in family and not d.dry_run for d in self._begun)

    def _busy(self, node_id: UUID, own: Sequence[Attempt]) -> bool:
        """Whether another action that the node carries out is open; those that this one replaces do not count."""
        replaced = {a.action_id for a in own if a.state is Standing.PENDING}
        kinds = ASKS_NODE - {Remedy.CLEAR_CACHE}
        return any(
            a.node_id == node_id and a.state in OPEN and a.remedy in kinds and a.action_id not in replaced
            for a in self._world.attempts
        ) or any(d.node_id == node_id and d.remedy in kinds and not d.dry_run for d in self._begun)


def _victims(device: DeviceState, asking: Iterable[Finding]) -> tuple[tuple[UUID, ...], str]:
    """Which instances an error hit; with none, why.

    Where the error names a process, the instance whose it is; where it names none, those that do not answer: to end
    everybody's engines for an error of one application would do more harm than the error.
    """
    hit: set[UUID] = set()
    foreign = False
    for finding in asking:
        named, pid = finding.event.data.get("instance_id", ""), finding.event.data.get("pid", "")
        known = {str(one.instance_id): one.instance_id for one in device.occupants}
        by_pid = {str(one.pid): one.instance_id for one in device.occupants if one.pid is not None}
        if named in known:
            hit.add(known[named])
        elif pid in by_pid:
            hit.add(by_pid[pid])
        elif named or pid.isdigit():
            foreign = True
        else:
            hit |= {one.instance_id for one in device.occupants if not one.answers}
    if hit or not foreign:
        return tuple(sorted(hit)), "The engines on it answer, and none is named: they are left alone."
    return (), "It names a process that is none of ours now."


def _of_no_device(event: Event) -> str:
    return f"It names no device that we know: {event.text[:300] or event.kind}."


def _braked(world: World, decisions: Sequence[Decision], rules: Rules) -> bool:
    """Whether so many nodes are in trouble that the cause is likely a common one.

    Only trouble of the last while counts: what is held back is decided once it is over.
    """
    if world.mass_failure:
        return True
    grave = HARDWARE | TAKES_OUT
    since = world.now - rules.brake_window
    at = {event.event_id: event.at for event in world.events}
    affected = {a.node_id for a in world.attempts if a.remedy in grave and a.at >= since}
    affected |= {d.node_id for d in decisions if d.remedy in grave and any(at[e] >= since for e in d.events)}
    nodes = {device.node_id for device in world.devices}
    return len(affected) >= 2 and len(affected) >= rules.brake_share * len(nodes)
