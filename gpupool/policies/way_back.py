"""The way back of devices that healing took out, and why one is still out. Pure."""

from collections.abc import Mapping, Sequence
from uuid import UUID

from gpupool.policies.findings import Event, find, near
from gpupool.policies.healing_world import (
    OPEN,
    Attempt,
    Decision,
    DeviceState,
    GiveBack,
    Isolation,
    Rules,
    Standing,
    World,
)
from gpupool.policies.remedy import RESETS, TAKES_OUT, Remedy
from gpupool.policies.xid import Rule, Verb, recovery_verb


def last_error(events: Sequence[Event], overrides: Mapping[int, Rule]) -> float | None:
    """When one device told last of what asks for something; corrected errors and records of repairs do not."""
    newest_first = sorted(events, key=lambda event: event.at, reverse=True)
    asking = (
        e.at
        for e in newest_first
        if e.kind != "evicted" and find(e, near(e, events), overrides).remedy is not Remedy.NOTE
    )
    return next(asking, None)


def why_out(
    device: DeviceState, attempts: Sequence[Attempt], rules: Rules, *, now: float, erred_at: float | None = None
) -> str | None:
    """Why a device that is taken out stays so; None once healing gives it back by itself.

    `erred_at` is when its last error was told, see `last_error`.
    """
    match device.isolation:
        case Isolation.NOT:
            return "It is not taken out."
        case Isolation.PERSON:
            return "A person took it out, and gives it back."
        case Isolation.SUPPORT:
            return "Its maker's support has to look at it; a person gives it back then."
        case Isolation.HEALING:
            pass
    own = [a for a in attempts if a.device_id == device.device_id]
    if any(a.state in OPEN for a in own):
        return "Something is being done about it."
    if sum(a.remedy in TAKES_OUT and a.state is Standing.DONE for a in own) > rules.returns:
        return f"It was taken out more than {rules.returns} times in a day: a person gives it back."
    if not device.healthy:
        return "Its driver does not say that it is well."
    driver = recovery_verb(device.driver) if device.driver else None
    if driver is not None and driver is not Verb.IGNORE:
        return f"Its driver still asks for {driver}."
    ended = [a for a in own if a.remedy is Remedy.END_PROCESSES]
    if ended and ended[-1].state is Standing.FAILED and not device.idle:
        return "The memory of what was ended on it has not returned yet."
    out_at = device.isolated_at if device.isolated_at is not None else now
    proven = device.rebooted or any(
        a.remedy in RESETS and a.state is Standing.DONE and (a.ended_at or a.at) >= out_at for a in own
    )
    needed = rules.proven_probation if proven else rules.probation
    ends = ((a.ended_at or a.at) for a in own if a.state is not Standing.DRY_RUN)
    last = max([out_at, out_at if erred_at is None else erred_at, *ends])
    if now - last < needed:
        return f"It is watched for {needed:g} s without an error before it comes back."
    return None


def give_back(world: World, decisions: Sequence[Decision], rules: Rules) -> tuple[GiveBack, ...]:
    touched = {d.device_id for d in decisions}
    out = [d for d in world.devices if d.isolation is Isolation.HEALING and d.device_id not in touched]
    still_out = {device.device_id for device in world.devices if device.isolation is not Isolation.NOT}
    out = [device for device in out if device.part_of not in still_out]  # a part comes back after its whole
    told: dict[UUID, list[Event]] = {device.device_id: [] for device in out}
    for event in [*world.recent, *world.events]:
        if event.device_id in told:
            told[event.device_id].append(event)
    return tuple(
        GiveBack(device.device_id, "No new error was seen, and its driver says that it is well.")
        for device in out
        if why_out(
            device,
            world.attempts,
            rules,
            now=world.now,
            erred_at=last_error(told[device.device_id], world.overrides),
        )
        is None
    )
