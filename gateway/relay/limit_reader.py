"""How limits stand, read out of Valkey without changing anything: for people who ask, not for admission.

See gateway.relay.limiting.layout for what stands there.
"""

import math
from collections.abc import Sequence
from typing import Final, NamedTuple

from gateway.relay.limiting import layout
from gateway.relay.rows import LimitRow
from gateway.relay.valkey import Argument, Reply, ValkeyClient, ValkeyRefused, ValkeyUnavailable

_MICROS: Final = 1_000_000


class Standing(NamedTuple):
    """Units of the limit's metric. `reset_seconds`: until all of it is back, at the latest, if nothing more is used."""

    used: int
    reserved: int
    remaining: int
    reset_seconds: int


class LimitReader:
    """`prefix` is the installation's. Used on the loop that the client is used on."""

    def __init__(self, client: ValkeyClient, *, prefix: str) -> None:
        self._client = client
        self._area = layout.area(prefix)

    async def read(self, limits: Sequence[LimitRow], now: float) -> list[Standing | None]:
        """Of each limit; None where it cannot be known now: Valkey is away, or its counters are being rebuilt."""
        counters = [layout.counter_of(limit, now) for limit in limits]
        commands: list[tuple[Argument, ...]] = [("TIME",), ("HGET", self._area + layout.GENERATION, "state")]
        commands += [("HGETALL", self._area + counter.name) for counter in counters]
        try:
            time, state, *found = await self._client.pipeline(commands)
        except ValkeyUnavailable:
            return [None] * len(limits)
        if state != layout.READY.encode() or not isinstance(time, list):
            return [None] * len(limits)
        clock = _number(time[0]) + _number(time[1]) / _MICROS
        return [
            None
            if isinstance(reply, ValkeyRefused)
            else standing(limit, counter, _fields(reply), amount=limit.amount_at(now), clock=clock)
            for limit, counter, reply in zip(limits, counters, found, strict=True)
        ]


def standing(
    limit: LimitRow, counter: layout.Counter, fields: dict[bytes, bytes], *, amount: int, clock: float
) -> Standing:
    """What a counter's fields say at `clock`, Valkey's seconds since the epoch."""
    held = max(0, _number(fields.get(b"held")) - _number(fields.get(b"free")))
    if counter.kind == layout.CALENDAR:
        used, reset = _number(fields.get(b"used")), math.ceil(counter.end - clock)
    elif counter.kind == layout.MINUTE:
        seconds = {int(name): _number(value) for name, value in fields.items() if name.isdigit()}
        alive = {at: units for at, units in seconds.items() if at >= int(clock) - layout.WINDOW_SECONDS}
        used = sum(alive.values())
        reset = max((at + layout.WINDOW_SECONDS + 1 - int(clock) for at in alive), default=0)
    elif counter.kind == layout.BUCKET:
        refill = limit.refill_per_second or 0.0
        level = float(amount)
        if b"level" in fields and b"at" in fields:
            passed = max(0.0, clock - float(fields[b"at"]) / _MICROS)
            level = min(level, float(fields[b"level"]) + passed * refill)
        used, held = amount - math.floor(level), 0
        reset = math.ceil(used / refill) if refill > 0 else 0
    else:
        used, reset = 0, 0
    return Standing(used, held, max(0, amount - used - held), max(0, reset))


def _fields(reply: Reply) -> dict[bytes, bytes]:
    if not isinstance(reply, list):
        return {}
    words = [word for word in reply if isinstance(word, bytes)]
    return dict(zip(words[::2], words[1::2], strict=False))


def _number(value: Reply) -> int:
    return int(value) if isinstance(value, bytes | int) else 0
