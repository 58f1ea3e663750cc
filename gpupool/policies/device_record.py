"""What the lease store's book says of a device, and what may be written there. Pure.

A record's status is `failed` or `unknown` while its device stands so, else `free` or `allocated` by its claims.
A claim is one key over all its devices: what a record lists of it is a copy, made in the same transaction.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from uuid import UUID

from gpupool.policies.lease import ClaimDecision, Portion, Refused, decide_portion


class Status(StrEnum):
    FREE = "free"
    ALLOCATED = "allocated"
    FAILED = "failed"
    UNKNOWN = "unknown"


class Standing(StrEnum):
    """How a device is, whoever holds it."""

    OK = "ok"
    FAILED = "failed"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class HeldPortion:
    """What one holder has of the device. `holder` is instance:<uuid>, or namespace/pod-uid."""

    holder: str
    memory_bytes: int
    share: float | None = None
    whole: bool = False

    @property
    def portion(self) -> Portion:
        return Portion(self.memory_bytes, self.share, self.whole)


@dataclass(frozen=True, slots=True)
class DeviceRecord:
    """One device's record. `boot_id` is the epoch that its claims are valid in; `at` is seconds since the epoch."""

    status: Status
    capacity_bytes: int | None
    allocatable: bool
    boot_id: str
    node_id: UUID
    claims: tuple[HeldPortion, ...] = ()
    reason: str = ""  # why it is failed or unknown, in a sentence's end
    at: float = 0.0
    event_id: str = ""  # of the write; the same on all that was written together


@dataclass(frozen=True, slots=True)
class ClaimRecord:
    """One holder's claim over all its devices. `token` where it is not `base` and the key's create revision."""

    holder: str
    node_id: UUID
    boot_id: str
    portions: Mapping[UUID, Portion]
    base: int = 0
    token: int | None = None
    event_id: str = ""
    at: float = 0.0


@dataclass(frozen=True, slots=True)
class DeviceFacts:
    """A device as its node's reports have it."""

    device_id: UUID
    node_id: UUID
    capacity_bytes: int | None
    allocatable: bool
    boot_id: str
    standing: Standing
    reason: str = ""


@dataclass(frozen=True, slots=True)
class RecordedClaim:
    """A claim as the database has it, active."""

    holder: str
    token: int
    node_id: UUID
    boot_id: str
    portions: Mapping[UUID, Portion]


@dataclass(frozen=True, slots=True)
class BookClaim:
    """A claim as the book has it, with the token its holder goes by."""

    record: ClaimRecord
    token: int


@dataclass(frozen=True, slots=True)
class Forget:
    """Take a claim out of the book."""

    holder: str
    reason: str


@dataclass(frozen=True, slots=True)
class Adopt:
    """Take a claim of the database into the book."""

    claim: RecordedClaim


@dataclass(frozen=True, slots=True)
class Write:
    """Bring a record in line with what its device is and what the claims say."""

    device_id: UUID
    record: DeviceRecord


@dataclass(frozen=True, slots=True)
class Drop:
    """Take out the record of a device that does not exist any more."""

    device_id: UUID


Fix = Forget | Adopt | Write | Drop


@dataclass(frozen=True, slots=True)
class Book:
    """The whole book at one revision."""

    records: Mapping[UUID, DeviceRecord] = field(default_factory=dict)
    claims: Mapping[str, BookClaim] = field(default_factory=dict)


def decide_allocation(record: DeviceRecord | None, wanted: Portion, *, boot_id: str) -> ClaimDecision:
    """May `wanted` be promised on this device in the epoch `boot_id`? Raises ValueError as `decide_portion` does."""
    if record is None:
        return Refused("it is not in the book yet")
    if not record.allocatable:
        return Refused("it is divided: its parts can be claimed, it cannot")
    if record.boot_id != boot_id:
        return Refused("its node has been restarted since the place was chosen")
    if record.status in (Status.FAILED, Status.UNKNOWN):
        return Refused(record.reason or f"its record is {record.status}")
    return decide_portion(
        device_bytes=record.capacity_bytes, held=[one.portion for one in record.claims], wanted=wanted
    )


def with_claim(record: DeviceRecord, holder: str, portion: Portion) -> DeviceRecord:
    """The record with the holder's portion on it."""
    others = [one for one in record.claims if one.holder != holder]
    held = HeldPortion(holder, portion.memory_bytes, portion.share, portion.whole)
    return _with_claims(record, [*others, held])


def without_claim(record: DeviceRecord, holder: str) -> DeviceRecord:
    """The record without the holder's portion."""
    return _with_claims(record, [one for one in record.claims if one.holder != holder])


def doubted(record: DeviceRecord, reason: str) -> DeviceRecord:
    """The record of a device of which what was read and what was expected do not agree. Its claims stay."""
    return replace(record, status=Status.UNKNOWN, reason=reason)


def marked(record: DeviceRecord, standing: Standing, reason: str) -> DeviceRecord:
    """The record of a device that stands so now; from every standing there is a way back to `ok`."""
    return replace(record, status=_status(standing, record.claims), reason="" if standing == Standing.OK else reason)


def as_reported(facts: DeviceFacts, claims: Iterable[HeldPortion]) -> DeviceRecord:
    """The record as the node's reports and the claims would have it."""
    held = tuple(sorted(claims, key=lambda one: one.holder))
    return DeviceRecord(
        status=_status(facts.standing, held),
        capacity_bytes=facts.capacity_bytes,
        allocatable=facts.allocatable,
        boot_id=facts.boot_id,
        node_id=facts.node_id,
        claims=held,
        reason="" if facts.standing == Standing.OK else facts.reason,
    )


def is_same(one: DeviceRecord | None, other: DeviceRecord) -> bool:
    """Do they say the same, whenever they were written?"""
    return one is not None and replace(one, at=0.0, event_id="") == replace(other, at=0.0, event_id="")


def standing_of(*, reachable: bool, present: bool, isolated: str | None, health: str) -> tuple[Standing, str]:
    """How a device stands by what is reported of it, and why in a sentence's end.

    Of a node that is silent nothing is known, whatever it said last: its devices are nobody's to give away.
    `isolated` is why somebody took it out of service, None where nobody did.
    """
    if not reachable:
        return Standing.UNKNOWN, "its node is not reachable"
    if not present:
        return Standing.UNKNOWN, "it is no longer there"
    if isolated is not None:
        return (
            Standing.FAILED,
            f"it was taken out of service: {isolated}" if isolated else "it was taken out of service",
        )
    if health == Standing.FAILED:
        return Standing.FAILED, "it has failed"
    if health != Standing.OK:
        return Standing.UNKNOWN, "nobody can say how it is now"
    return Standing.OK, ""


def mend(book: Book, facts: Iterable[DeviceFacts], recorded: Iterable[RecordedClaim]) -> tuple[Fix, ...]:
    """All differences between the book, the nodes' reports and the database, in the order to mend them.

    The database says who holds: a claim that never got there was cut off half-way, or has ended since. A claim
    of an earlier boot is void. What is only in the database was lost with a store, and is taken in again.
    """
    devices = {one.device_id: one for one in facts}
    wanted = {claim.holder: claim for claim in recorded}
    fixes: list[Fix] = []
    held: dict[UUID, list[HeldPortion]] = {}
    for holder, claim in book.claims.items():
        reason = _why_forgotten(claim, wanted.get(holder), devices)
        if reason is not None:
            fixes.append(Forget(holder, reason))
            continue
        _hold(held, holder, claim.record.portions)
    forgotten = {fix.holder for fix in fixes if isinstance(fix, Forget)}
    for holder, row in wanted.items():
        if holder in book.claims.keys() - forgotten or not _is_valid(row.boot_id, row.portions, devices):
            continue
        fixes.append(Adopt(row))
        _hold(held, holder, row.portions)
    for device_id, one in devices.items():
        record = as_reported(one, held.get(device_id, ()))
        if not is_same(book.records.get(device_id), record):
            fixes.append(Write(device_id, record))
    fixes += [Drop(device_id) for device_id in book.records if device_id not in devices and device_id not in held]
    return tuple(fixes)


def _why_forgotten(claim: BookClaim, row: RecordedClaim | None, devices: Mapping[UUID, DeviceFacts]) -> str | None:
    if row is None:
        return "nobody holds it any more"
    if row.token != claim.token or row.portions != claim.record.portions:
        return "the database has another claim of its holder"
    if not _is_valid(row.boot_id, row.portions, devices):
        return "its node has been restarted"
    return None


def _is_valid(boot_id: str, portions: Iterable[UUID], devices: Mapping[UUID, DeviceFacts]) -> bool:
    """Is it a claim of its devices' present boot? Of a device that nobody reports, nobody knows better."""
    return all(device_id not in devices or devices[device_id].boot_id == boot_id for device_id in portions)


def _hold(held: dict[UUID, list[HeldPortion]], holder: str, portions: Mapping[UUID, Portion]) -> None:
    for device_id, one in portions.items():
        held.setdefault(device_id, []).append(HeldPortion(holder, one.memory_bytes, one.share, one.whole))


def _with_claims(record: DeviceRecord, claims: list[HeldPortion]) -> DeviceRecord:
    held = tuple(sorted(claims, key=lambda one: one.holder))
    status = record.status
    if status in (Status.FREE, Status.ALLOCATED):
        status = _status(Standing.OK, held)
    return replace(record, claims=held, status=status)


def _status(standing: Standing, claims: tuple[HeldPortion, ...]) -> Status:
    if standing != Standing.OK:
        return Status(standing.value)
    return Status.ALLOCATED if claims else Status.FREE
