"""Whether devices have the memory of an engine back that has ended."""

import asyncio
from typing import Protocol

from gpupool.agent.state import InstanceRecord
from gpupool.agent.workshop import Workshop


class Ending(Protocol):
    """The engine whose process has ended."""

    record: InstanceRecord

    def remark(self, reason: str) -> None: ...

    def log(self, event: str, **fields: object) -> None: ...


async def memory_held(engine: Ending, shop: Workshop, family: set[int]) -> str:
    """Wait until the engine's devices list none of its processes; says in a sentence where they still do in the end.

    A device is never reset for it: others use it. What stays is for the operator, and for what is done about devices.
    """
    begun = shop.clock.monotonic()
    while held := _held(engine.record, shop, family):
        if shop.clock.monotonic() - begun >= shop.timings.return_deadline:
            device = next(iter(held))
            engine.log("agent.memory_not_returned", held=held)
            pids = ", ".join(map(str, held[device]))
            return f"{device} still lists memory of its processes {pids}, which have ended. Nothing was reset for it."
        engine.remark("Its process has ended. Its devices do not have all of their memory back yet.")
        await asyncio.sleep(shop.timings.load_poll)
    return ""


def _held(record: InstanceRecord, shop: Workshop, family: set[int]) -> dict[str, list[int]]:
    """Its processes that a device lists, whether or not it says with how much: unknown is not zero."""
    uses = {device: shop.device_use(device) or {} for device in record.row.device_ids}
    held = {device: sorted(family & use.keys()) for device, use in uses.items()}
    return {device: pids for device, pids in held.items() if pids}
