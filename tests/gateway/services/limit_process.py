"""A process under limits, as far as its keeper sees it: what it says to Valkey, said by hand."""

from typing import Any
from uuid import UUID, uuid4

import msgspec
import redis

from core.ids import uuid7
from gateway.relay.limiting.layout import Counter, area
from gateway.relay.limiting.scripts import ACQUIRE, JOIN, LOOK, REPORT, Script

AMOUNT = 1_000_000


class SaidProcess:
    """Joins, reserves and reports without a relay. `client` decodes its replies."""

    def __init__(self, client: "redis.Redis", prefix: str, process_id: UUID | None = None) -> None:
        self.id = process_id or uuid7()
        self._client = client
        self._area = area(prefix)
        self._session = 0
        self._report = 0
        self._generation = ""

    def join(self, *held: tuple[Counter, int], through: int = 0) -> str:
        """Take part, holding so much; in whatever state the counters are. The answer's word."""
        seen = self._call(LOOK, self._session + 1)
        if seen[0] != "ok":
            return str(seen[0])
        _, _, generation, state, session, _, _, counted, _ = seen
        self._generation, self._session = generation, session
        records = [[c.name, c.kind, AMOUNT, c.start, c.end, 0, units, []] for c, units in held]
        return str(self._call(JOIN, generation, state, self._session, counted, through, records)[0])

    def reserve(self, counter: Counter, units: int, *, amount: int = AMOUNT) -> str:
        record = [counter.name, counter.kind, amount, counter.start, counter.end, units, 0, units, 0]
        return str(self._call(ACQUIRE, self._generation, self._session, False, [record])[0])

    def report(self, counter: Counter, *, used: int, given: int, through: int, more: bool = False) -> str:
        self._report += 1
        record = [counter.name, counter.kind, AMOUNT, counter.start, counter.end, used, given, 0, 0, 0, 0, []]
        return str(self._call(REPORT, self._generation, self._session, self._report, through, [record], more)[0])

    def die(self) -> None:
        """Its lapse has passed, and another one has swept it."""
        self._client.zadd(self._area + "procs", {self.id.hex: 1})
        other = SaidProcess(self._client, self._area.removesuffix("lim:"), uuid4())
        other.join()
        self._client.zrem(self._area + "procs", other.id.hex)

    def _call(self, script: Script, *values: object) -> list[Any]:
        packed = msgspec.msgpack.encode((self._area, self.id.hex, *values))
        client: Any = self._client  # untyped there
        reply: bytes = client.execute_command("EVAL", script.text, 0, packed, NEVER_DECODE=True)
        answer: list[Any] = msgspec.msgpack.decode(reply)
        return answer
