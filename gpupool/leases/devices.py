"""The book of devices in the lease store: who has how much of which, changed by compare-and-set alone.

`/gpu/pools/{device}` is a device's record, `/gpu/claims/{holder}` a claim over one or several of them. A claim
and its portions on all records are written in one transaction or not at all.
"""

import asyncio
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field, replace
from typing import Final, TypeVar, assert_never
from uuid import UUID

import msgspec
import structlog

from core.clock import Clock
from core.ids import uuid7
from gpupool.leases.base import (
    Committed,
    Condition,
    Conflict,
    CreatedAt,
    Delete,
    Entry,
    IsAbsent,
    LeaseStore,
    ModifiedAt,
    Operation,
    Put,
    Snapshot,
)
from gpupool.leases.fencing import Superseded
from gpupool.leases.liveness import id_in, live_nodes_of
from gpupool.policies.device_record import (
    Adopt,
    Book,
    BookClaim,
    ClaimRecord,
    DeviceRecord,
    Drop,
    Fix,
    Forget,
    Standing,
    Write,
    decide_allocation,
    doubted,
    marked,
    with_claim,
    without_claim,
)
from gpupool.policies.lease import Portion, Refused

logger = structlog.get_logger(__name__)

GPU_PREFIX: Final = "/gpu/"
POOLS_PREFIX: Final = "/gpu/pools/"
CLAIMS_PREFIX: Final = "/gpu/claims/"
MOST_DEVICES: Final = 100  # of one claim: etcd takes 128 operations in one transaction
_BATCH: Final = 100
_ATTEMPTS: Final = 50
_AT_ONCE: Final = 8

T = TypeVar("T", DeviceRecord, ClaimRecord)


@dataclass(frozen=True, slots=True)
class Allocated:
    """The claim stands. `token` is higher than that of every earlier claim, and tells it from them."""

    holder: str
    token: int


@dataclass(frozen=True, slots=True)
class Denied:
    """There is no claim; `reason` ends a sentence about `device_id`, or about the holder where it is None."""

    device_id: UUID | None
    reason: str


@dataclass(frozen=True, slots=True)
class BookView:
    """The book as it was at `revision`, with what compare-and-set needs, and the nodes that were alive."""

    revision: int
    book: Book
    live_nodes: frozenset[UUID]
    modified: Mapping[UUID, int] = field(default_factory=dict)
    created: Mapping[str, int] = field(default_factory=dict)


def pool_key(device_id: UUID) -> str:
    return f"{POOLS_PREFIX}{device_id}"


def claim_key(holder: str) -> str:
    return f"{CLAIMS_PREFIX}{holder}"


class DeviceBook:
    """Reads and writes the book. Every method raises StoreUnavailable; those that write raise Superseded too."""

    def __init__(self, store: LeaseStore, *, clock: Clock, base: int = 0, guards: Sequence[Condition] = ()) -> None:
        """`guards` must hold in every transaction, as that the leader is still the one; `base` makes tokens."""
        self._store = store
        self._clock = clock
        self._base = base
        self._guards = tuple(guards)
        self._turns: dict[UUID, asyncio.Lock] = {}
        self._gate = asyncio.Semaphore(_AT_ONCE)
        self._written: deque[int] = deque(maxlen=1000)

    def wrote(self, revision: int) -> bool:
        """Was it this book that wrote at `revision`, lately? For who watches what others do."""
        return revision in self._written

    async def read(self) -> BookView:
        """Everything at one revision."""
        return view_of(await self._store.range(GPU_PREFIX))

    async def allocate(
        self, holder: str, portions: Mapping[UUID, Portion], *, node_id: UUID, boot_id: str
    ) -> Allocated | Denied:
        """A claim on all of the devices or on none.

        Asked again with the same holder it is refused, unless it was this very call that wrote it and did not
        hear of it. Raises ValueError for a claim on nothing, or on more devices than a store takes at once.
        """
        if not 0 < len(portions) <= MOST_DEVICES:
            raise ValueError(f"a claim is on 1 to {MOST_DEVICES} devices")
        event_id, now = str(uuid7()), self._clock.now().timestamp()
        claim = ClaimRecord(holder, node_id, boot_id, dict(portions), base=self._base, event_id=event_id, at=now)
        async with AsyncExitStack() as turns:
            # In this process one after the other, in one order: many at once would only send each other back.
            for device_id in sorted(portions):
                await turns.enter_async_context(self._turns.setdefault(device_id, asyncio.Lock()))
            for _ in range(_ATTEMPTS):
                async with self._gate:  # so that none waits for a connection until its deadline
                    outcome = await self._try(claim)
                if outcome is not None:
                    return outcome
        return Denied(None, "others claim of the same devices all the time, and it did not get its turn")

    async def release(self, holder: str, *, token: int | None = None, reason: str = "") -> bool:
        """End the claim, on all its devices at once; False when there is none, or a later one than `token`."""
        for _ in range(_ATTEMPTS):
            entry = await self._store.get(claim_key(holder))
            if entry is None:
                return False
            claim = _claim_in(entry)
            if token is not None and token_of(claim, entry.create_revision) != token:
                return False
            entries = await self._records(claim.portions)
            conditions: list[Condition] = [CreatedAt(entry.key, entry.create_revision)]
            operations: list[Operation] = [Delete(entry.key)]
            for record_entry in entries.values():
                record = _record_in(record_entry)
                if record_entry is not None and record is not None:
                    if all(one.holder != holder for one in record.claims):
                        # The holder is compared, not only the revision: this record knows nothing of the claim.
                        record = doubted(record, "its record does not name who held it")
                    conditions.append(ModifiedAt(record_entry.key, record_entry.mod_revision))
                    operations.append(self._put(record_entry.key, without_claim(record, holder)))
            if isinstance(await self._transact(conditions, operations), Committed):
                logger.info("claim_ended", holder=holder, reason=reason)
                return True
        return False

    async def mark(self, device_id: UUID, standing: Standing, *, reason: str = "") -> bool:
        """Say how the device stands, its claims as they are; False when it is not in the book.

        The nodes' reports have the last word: at the next mending the record says what they do.
        """
        for _ in range(_ATTEMPTS):
            entry = await self._store.get(pool_key(device_id))
            known = _record_in(entry)
            if entry is None or known is None:
                return False
            record = marked(known, standing, reason)
            outcome = await self._transact([ModifiedAt(entry.key, entry.mod_revision)], [self._put(entry.key, record)])
            if isinstance(outcome, Committed):
                return True
        return False

    async def apply(self, view: BookView, fixes: Iterable[Fix]) -> bool:
        """Mend the book as it was in `view`; False where it has changed since: what is left needs a new look."""
        modified = dict(view.modified)
        records = dict(view.book.records)
        writes: list[tuple[UUID, DeviceRecord]] = []
        for fix in fixes:
            match fix:
                case Write(device_id=device_id, record=record):
                    writes.append((device_id, record))
                    continue
                case Forget(holder=holder):
                    claim = view.book.claims[holder].record
                    changes = {pk: without_claim(records[pk], holder) for pk in claim.portions if pk in records}
                    conditions: list[Condition] = [CreatedAt(claim_key(holder), view.created[holder])]
                    operations: list[Operation] = [Delete(claim_key(holder))]
                case Adopt(claim=row):
                    adopted = ClaimRecord(row.holder, row.node_id, row.boot_id, row.portions, self._base, row.token)
                    changes = {
                        pk: with_claim(records[pk], row.holder, one)
                        for pk, one in row.portions.items()
                        if pk in records
                    }
                    conditions = [IsAbsent(claim_key(row.holder))]
                    operations = [self._put(claim_key(row.holder), adopted)]
                case Drop(device_id=device_id):
                    changes = {}
                    conditions, operations = [self._unchanged(device_id, modified)], [Delete(pool_key(device_id))]
                case _:
                    assert_never(fix)
            logger.info("book_mended", fix=type(fix).__name__, subject=_subject(fix))
            outcome = await self._change(conditions, operations, changes, modified)
            if outcome is None:
                return False
            records |= changes
        for start in range(0, len(writes), _BATCH):
            if await self._change([], [], dict(writes[start : start + _BATCH]), modified) is None:
                return False
        return True

    async def _change(
        self,
        conditions: list[Condition],
        operations: list[Operation],
        changes: Mapping[UUID, DeviceRecord],
        modified: dict[UUID, int],
    ) -> Committed | None:
        """One transaction over these records as they were last seen, and what else is asked for."""
        event_id = str(uuid7())
        outcome = await self._transact(
            [*conditions, *(self._unchanged(device_id, modified) for device_id in changes)],
            [*operations, *(self._put(pool_key(pk), record, event_id) for pk, record in changes.items())],
        )
        if isinstance(outcome, Conflict):
            return None
        modified.update(dict.fromkeys(changes, outcome.revision))
        return outcome

    @staticmethod
    def _unchanged(device_id: UUID, modified: Mapping[UUID, int]) -> Condition:
        key = pool_key(device_id)
        return ModifiedAt(key, modified[device_id]) if device_id in modified else IsAbsent(key)

    async def _try(self, claim: ClaimRecord) -> Allocated | Denied | None:
        """One attempt, on what is there now; None when it has changed meanwhile."""
        key = claim_key(claim.holder)
        standing = await self._store.get(key)
        if standing is not None:
            known = _claim_in(standing)
            if known.event_id == claim.event_id:  # written by an attempt whose answer was lost
                return Allocated(claim.holder, token_of(known, standing.create_revision))
            return Denied(None, "it has a claim already")
        entries = await self._records(claim.portions)
        conditions: list[Condition] = [IsAbsent(key)]
        operations: list[Operation] = [Put(key, msgspec.json.encode(claim))]
        for device_id, wanted in claim.portions.items():
            entry = entries[device_id]
            record = _record_in(entry)
            decision = decide_allocation(record, wanted, boot_id=claim.boot_id)
            if isinstance(decision, Refused):
                return Denied(device_id, decision.reason)
            assert entry is not None
            assert record is not None
            conditions.append(ModifiedAt(entry.key, entry.mod_revision))
            operations.append(self._put(entry.key, with_claim(record, claim.holder, wanted), claim.event_id))
        outcome = await self._transact(conditions, operations)
        if isinstance(outcome, Committed):
            return Allocated(claim.holder, self._base + outcome.revision)
        await self._doubt_what_names_nobody(claim.portions)
        return None

    async def _doubt_what_names_nobody(self, device_ids: Iterable[UUID]) -> None:
        """After a conflict: a record that names a holder without a claim is unknown, until it is mended."""
        for device_id, entry in (await self._records(device_ids)).items():
            record = _record_in(entry)
            if entry is None or record is None:
                continue
            for held in record.claims:
                claim = await self._store.get(claim_key(held.holder))
                if claim is not None and device_id in _claim_in(claim).portions:
                    continue
                unknown = doubted(record, f"it is held by {held.holder}, who has no claim")
                await self._transact([ModifiedAt(entry.key, entry.mod_revision)], [self._put(entry.key, unknown)])
                break

    async def _records(self, device_ids: Iterable[UUID]) -> dict[UUID, Entry | None]:
        return {device_id: await self._store.get(pool_key(device_id)) for device_id in device_ids}

    async def _transact(self, conditions: Sequence[Condition], operations: Sequence[Operation]) -> Committed | Conflict:
        outcome = await self._store.transact([*self._guards, *conditions], operations)
        if isinstance(outcome, Conflict):
            for guard in self._guards:
                if not _holds(guard, await self._store.get(guard.key)):
                    raise Superseded(f"{guard.key} is not what this leader won")
        else:
            self._written.append(outcome.revision)
        return outcome

    def _put(self, key: str, value: DeviceRecord | ClaimRecord, event_id: str = "") -> Put:
        stamped = replace(value, at=self._clock.now().timestamp(), event_id=event_id or str(uuid7()))
        return Put(key, msgspec.json.encode(stamped))


def view_of(snapshot: Snapshot) -> BookView:
    """The book in a range over `/gpu/`."""
    records: dict[UUID, DeviceRecord] = {}
    claims: dict[str, BookClaim] = {}
    modified: dict[UUID, int] = {}
    created: dict[str, int] = {}
    for entry in snapshot.entries:
        if entry.key.startswith(POOLS_PREFIX):
            device_id = id_in(entry.key, POOLS_PREFIX)
            if device_id is None:
                continue
            modified[device_id] = entry.mod_revision
            if (record := _record_in(entry)) is not None:
                records[device_id] = record
        elif entry.key.startswith(CLAIMS_PREFIX):
            claim = _claim_in(entry)
            claims[claim.holder] = BookClaim(claim, token_of(claim, entry.create_revision))
            created[claim.holder] = entry.create_revision
    return BookView(snapshot.revision, Book(records, claims), live_nodes_of(snapshot), modified, created)


def _subject(fix: Fix) -> str:
    match fix:
        case Forget(holder=holder, reason=reason):
            return f"{holder}: {reason}"
        case Adopt(claim=claim):
            return claim.holder
        case Write(device_id=device_id) | Drop(device_id=device_id):
            return str(device_id)
        case _:
            assert_never(fix)


def token_of(claim: ClaimRecord, create_revision: int) -> int:
    return claim.base + create_revision if claim.token is None else claim.token


def _record_in(entry: Entry | None) -> DeviceRecord | None:
    """None too for what nobody can read: the next mending writes the record anew over it."""
    return None if entry is None else _decode(entry, DeviceRecord)


def _claim_in(entry: Entry) -> ClaimRecord:
    """What nobody can read is a claim on nothing, which no row accounts for: the next mending ends it."""
    holder = entry.key.removeprefix(CLAIMS_PREFIX)
    claim = _decode(entry, ClaimRecord)
    if claim is None or claim.holder != holder:
        return ClaimRecord(holder, UUID(int=0), "", {})
    return claim


def _decode(entry: Entry, kind: type[T]) -> T | None:
    # A store is shared, and an upgrade goes back: a value of somebody else's must not end the leader.
    try:
        return msgspec.json.decode(entry.value, type=kind)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        logger.warning("not_of_the_book", key=entry.key, error=str(error))
        return None


def _holds(condition: Condition, entry: Entry | None) -> bool:
    match condition:
        case IsAbsent():
            return entry is None
        case CreatedAt(revision=revision):
            return entry is not None and entry.create_revision == revision
        case ModifiedAt(revision=revision):
            return entry is not None and entry.mod_revision == revision
        case _:
            assert_never(condition)
