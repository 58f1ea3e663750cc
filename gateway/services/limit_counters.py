"""Valkey's limit counters, as their keeper reads and writes them. What stands there: gateway.relay.limiting.layout.

What the keeper changes it changes in scripts that first look whether its lock and the counters' generation are still
its own: a keeper that was stopped for a while and goes on does nothing.

Beyond the layout there are four keys under P:

- `P keeper`, the lock: a token, for as long as one rebuild or one comparison takes. Whoever has it is the keeper.
- `P compared`: when counters were last compared with the ledger, in Valkey's seconds.
- `P adopted`, hash: dead process -> `{adopter}:{first}:{last}`, the rows that a living process took over from the dead
  one's spool, by their sequences in its own. Written by whoever adopts; it outlives a generation.
- `P dead`, hash: process -> when a keeper first found it to be gone, in Valkey's seconds; it outlives a generation.
"""

import contextlib
import threading
import time
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple
from uuid import UUID, uuid4

import redis

from gateway.relay.limiting import layout
from gateway.services import limit_scripts as scripts

LOCK_SECONDS: Final = 30
KEEPER: Final = "keeper"
COMPARED: Final = "compared"
ADOPTED: Final = "adopted"
DEAD: Final = "dead"
_CHUNK: Final = 500
_PARTIAL_SECONDS: Final = (0.01,) * 50 + (0.1,) * 20
"""Pauses before a report is looked at again whose other messages are still to come."""

_OWN: Final = (KEEPER, COMPARED, ADOPTED, DEAD)


class KeeperStopped(Exception):
    """The lock or the generation is no longer this keeper's, or a process that was dead is back: begin again."""


class Generation(NamedTuple):
    """`run` is the server that it was built on."""

    id: UUID
    state: str
    since: int
    run: str


@dataclass(frozen=True, slots=True)
class Look:
    """How the counters stand. `generation` is None where they are lost, or out of another server's file."""

    generation: Generation | None
    processes: frozenset[UUID]
    now: int  # Valkey's, seconds since the epoch
    run: str

    @property
    def ready(self) -> bool:
        return self.generation is not None and self.generation.state == layout.READY


@dataclass(frozen=True, slots=True)
class Adopted:
    """Rows that `by` took over, by their sequences in its spool."""

    by: UUID
    first: int
    last: int


@dataclass(frozen=True, slots=True)
class CounterState:
    used: int
    held: int


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Counters and what each process says it has reported, at one moment."""

    generation: UUID | None
    ready: bool
    now: int
    alive: frozenset[UUID]
    through: Mapping[UUID, int]  # reported, or in the base that was rebuilt
    adopted: Mapping[UUID, Adopted]
    orphans: Mapping[UUID, Mapping[str, int]]  # dead process -> counter -> units
    counters: Sequence[CounterState]


class Written(NamedTuple):
    """Fields of a counter; `expires` in seconds since the epoch."""

    name: str
    expires: int
    fields: Mapping[str, int | float]


class Correction(NamedTuple):
    """What a counter's `used` is to be changed by."""

    name: str
    end: int
    difference: int


class LimitCounters:
    """Blocking. `client` must decode its replies. All methods raise redis.RedisError when Valkey is away."""

    def __init__(self, client: "redis.Redis", *, prefix: str) -> None:
        self._client = client
        self._area = layout.area(prefix)
        self._token = uuid4().hex

    def look(self) -> Look:
        reply: Any = self._client.time()
        now = int(reply[0])
        server: Any = self._client.info("server")
        run = str(server["run_id"])
        said: Any = self._client.hgetall(self._area + layout.GENERATION)
        members: Any = self._client.zrange(self._area + layout.PROCESSES, 0, -1)
        generation = None
        if said.get("id") and said.get("run", run) == run:
            generation = Generation(UUID(said["id"]), said.get("state", ""), int(said.get("since", 0)), run)
        return Look(generation, frozenset(UUID(member) for member in members), now, run)

    def lock(self) -> bool:
        """Become the keeper, unless another one is."""
        return bool(self._client.set(self._area + KEEPER, self._token, nx=True, px=LOCK_SECONDS * 1000))

    def extend(self) -> None:
        """Stay the keeper for another LOCK_SECONDS. Raises KeeperStopped."""
        if not self._client.eval(scripts.EXTEND, 1, self._area + KEEPER, self._token, str(LOCK_SECONDS * 1000)):
            raise KeeperStopped("another keeper has taken over")

    @contextlib.contextmanager
    def kept_lock(self) -> Iterator[None]:
        """Stay the keeper within, whatever else takes long there; gives the lock back at the end, if it is still ours.

        A lock that was lost is not taken again: what is changed then raises KeeperStopped.
        """
        over = threading.Event()
        kept = threading.Thread(target=self._stay, args=(over,), name="limit-keeper-lock", daemon=True)
        kept.start()
        try:
            yield
        finally:
            over.set()
            kept.join()
            with contextlib.suppress(redis.RedisError):  # it lapses by itself
                self.unlock()

    def _stay(self, over: threading.Event) -> None:
        while not over.wait(LOCK_SECONDS / 4):
            try:
                self.extend()
            except KeeperStopped:
                return
            except redis.RedisError:
                continue

    def unlock(self) -> None:
        self._client.eval(scripts.RELEASE, 1, self._area + KEEPER, self._token)

    def compared_at(self) -> int:
        """When counters were last compared with the ledger, in Valkey's seconds; 0 for never."""
        said: Any = self._client.get(self._area + COMPARED)
        return int(said or 0)

    def note_compared(self, now: int) -> None:
        self._client.set(self._area + COMPARED, now)

    # Rebuilding

    def begin(self, generation: UUID, run: str) -> None:
        """Throw away what is left of the generation before, and begin a new one. Raises KeeperStopped."""
        self._check(self._client.eval(scripts.BEGIN, 0, self._area, self._token, "", ""))
        kept = {self._area + name for name in _OWN}
        pattern = "".join(f"[{letter}]" if letter in "*?[" else letter for letter in self._area.replace("\\", "\\\\"))
        names: list[str] = []
        for name in self._client.scan_iter(match=pattern + "*", count=_CHUNK):
            if name not in kept:
                names.append(name)
            if len(names) == _CHUNK:
                self._client.unlink(*names)
                names = []
        if names:
            self._client.unlink(*names)
        self._check(self._client.eval(scripts.BEGIN, 0, self._area, self._token, generation.hex, run))

    def write(self, generation: UUID, counters: Iterable[Written]) -> None:
        """Fields of counters that are being rebuilt. Raises KeeperStopped."""
        arguments: list[str] = []
        for number, counter in enumerate(counters, start=1):
            arguments += [counter.name, str(counter.expires), str(len(counter.fields))]
            for name, value in counter.fields.items():
                arguments += [name, repr(value)]
            if number % _CHUNK == 0:
                self._script(scripts.WRITE, generation, layout.REBUILDING, arguments)
                arguments = []
        if arguments:
            self._script(scripts.WRITE, generation, layout.REBUILDING, arguments)

    def hold_for_absent(self, generation: UUID, process: UUID, units: Mapping[str, int]) -> None:
        """What a process that has not joined may still use, while counters are rebuilt. Raises KeeperStopped."""
        arguments = [process.hex]
        for name, count in units.items():
            arguments += [name, str(count)]
        self._script(scripts.ORPHAN, generation, layout.REBUILDING, arguments)

    def finish(self, generation: UUID, marks: Mapping[UUID, int]) -> None:
        """The base that was written has the rows up to these marks; requests may be let in. Raises KeeperStopped."""
        pairs = [(process.hex, str(mark)) for process, mark in marks.items()]
        for start in range(0, len(pairs), _CHUNK):
            chunk = [word for pair in pairs[start : start + _CHUNK] for word in pair]
            self._script(scripts.MARK, generation, layout.REBUILDING, chunk)
        self._script(scripts.FINISH, generation, layout.REBUILDING, [])

    # Comparing

    def snapshot(self, names: Sequence[str]) -> Snapshot:
        """Those counters, and up to where they have every process's charges.

        Raises KeeperStopped where a process does not come to the end of what it reports.
        """
        for pause in _PARTIAL_SECONDS:
            reply: Any = self._client.eval(scripts.SNAPSHOT, 0, self._area, *names)
            if reply != "partial":
                break
            time.sleep(pause)
        else:
            raise KeeperStopped("a process is in the middle of a report")
        generation, state, now, processes, through, marks, adopted, orphans, counters = reply
        reported = {UUID(process): int(sequence) for process, sequence in _pairs(marks)}
        for process, sequence in _pairs(through):
            reported[UUID(process)] = max(int(sequence), reported.get(UUID(process), 0))
        return Snapshot(
            generation=UUID(generation) if generation else None,
            ready=state == layout.READY,
            now=int(now),
            alive=frozenset(UUID(process) for process in processes),
            through=reported,
            adopted=_adoptions(adopted),
            orphans={UUID(p): {name: int(units) for name, units in _pairs(held)} for p, held in _pairs(orphans)},
            counters=[CounterState(int(used), int(held)) for used, held in _pairs(counters)],
        )

    def note_dead(self, processes: Collection[UUID], now: int) -> dict[UUID, int]:
        """Since when each of these, which are all that are dead, is known to be; `now` for those that are new."""
        key = self._area + DEAD
        said: Any = self._client.hgetall(key)
        known = {UUID(process): int(since) for process, since in said.items()}
        if back := [process.hex for process in known if process not in processes]:
            self._client.hdel(key, *back)
        new: dict[Any, Any] = {process.hex: now for process in processes if process not in known}
        if new:
            self._client.hset(key, mapping=new)
        return {process: known.get(process, now) for process in processes}

    def correct(
        self,
        generation: UUID,
        corrections: Sequence[Correction],
        *,
        resolved: Mapping[UUID, int],
        counted: Mapping[UUID, int],
    ) -> None:
        """Change counters, and give back what `resolved` dead processes held, all at once.

        `resolved`, `counted`: dead processes whose rows up to this sequence are in `used` now; the latter held nothing.
        Raises KeeperStopped, and nothing is changed then.
        """
        arguments = [str(len(corrections))]
        for correction in corrections:
            arguments += [correction.name, str(correction.end), str(correction.difference)]
        arguments.append(str(len(resolved)))
        for process, sequence in [*resolved.items(), *counted.items()]:
            arguments += [process.hex, str(sequence)]
        self._script(scripts.CORRECT, generation, layout.READY, arguments)

    def forget(self, processes: Collection[UUID], adopted: Collection[UUID]) -> None:
        """Of processes that are long gone: how far they had reported, and who took their rows over."""
        for key, gone in ((layout.THROUGH, processes), (layout.MARKS, processes), (ADOPTED, adopted)):
            names = [process.hex for process in gone]
            if names:
                self._client.hdel(self._area + key, *names)

    def _script(self, script: str, generation: UUID, state: str, arguments: Sequence[str]) -> None:
        self._check(self._client.eval(script, 0, self._area, self._token, generation.hex, state, *arguments))

    def _check(self, reply: Any) -> None:
        if reply != "done":
            raise KeeperStopped(_REASONS.get(str(reply), str(reply)))


_REASONS: Final = {
    "lock": "another keeper has taken over",
    "lost": "the counters are of another generation",
    "alive": "a process that was dead is back",
}


def _pairs(flat: Sequence[Any]) -> Iterable[tuple[Any, Any]]:
    return zip(flat[::2], flat[1::2], strict=True)


def _adoptions(flat: Sequence[Any]) -> dict[UUID, Adopted]:
    found = {}
    for process, said in _pairs(flat):
        by, first, last = str(said).split(":")
        found[UUID(process)] = Adopted(UUID(by), int(first), int(last))
    return found
