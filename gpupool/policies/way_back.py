"""The way back of devices that healing took out, and why one is still out. Pure."""

from collections.abc import Sequence

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
from gpupool.policies.xid import Verb, recovery_verb


def why_out(device: DeviceState, attempts: Sequence[Attempt], rules: Rules, *, now: float) -> str | None:
    """Why a device that is taken out stays so; None once healing gives it back by itself."""
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
    last = max([out_at, *((a.ended_at or a.at) for a in own if a.state is not Standing.DRY_RUN)])
    if now - last < needed:
        return f"It is watched for {needed:g} s without an error before it comes back."
    return None


def give_back(world: World, decisions: Sequence[Decision], rules: Rules) -> tuple[GiveBack, ...]:
    touched = {d.device_id for d in decisions}
    noisy = {
        e.device_id
        for e in [*world.events, *world.recent]
        if world.now - e.at < rules.proven_probation and e.kind in ("xid", "code", "ecc", "remap", "lost")
    }
    return tuple(
        GiveBack(device.device_id, "No new error was seen, and its driver says that it is well.")
        for device in world.devices
        if device.isolation is Isolation.HEALING
        and device.device_id not in touched | noisy
        and why_out(device, world.attempts, rules, now=world.now) is None
    )
