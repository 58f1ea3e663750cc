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
            device, count = next(iter(held.items()))
            engine.log("agent.memory_not_returned", held=held, pids=sorted(family))
            return f"{device} says that {count} bytes of it are still held by its processes, which have ended."
        engine.remark("Its process has ended. Its devices do not have all of their memory back yet.")
        await asyncio.sleep(shop.timings.load_poll)
    return ""


def _held(record: InstanceRecord, shop: Workshop, family: set[int]) -> dict[str, int]:
    uses = {device: shop.device_use(device) or {} for device in record.row.device_ids}
    held = {device: sum(count for pid, count in use.items() if pid in family) for device, use in uses.items()}
    return {device: count for device, count in held.items() if count}
