"""From events to findings: what each asks for, which belong together, and whose word it is. Pure.

Errors come in groups: a double-bit error brings its details and the record of the remapped row, and every error
that ends a context brings a cleanup. What belongs to another event asks for nothing of its own.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final
from uuid import UUID

from gpupool.policies.remedy import REMEDY_OF, Remedy
from gpupool.policies.xid import Provenance, Rule, Verb, followed_verb, recovery_verb, rule_for

TOGETHER_SECONDS: Final = 60.0
"""Two errors of one device that are closer than this may have one cause."""

_RMA: Final = " A failed row remap comes back after every reset: the device is for its maker to replace."


@dataclass(frozen=True, slots=True)
class Event:
    """One event as the policy sees it; `at` is when the web process took it in, seconds since the epoch."""

    event_id: UUID
    node_id: UUID
    device_id: UUID | None
    kind: str
    at: float
    code: int | None = None
    text: str = ""
    data: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Finding:
    """What one event asks for, and why, in a sentence. `remedy` NOTE: nothing."""

    event: Event
    remedy: Remedy
    reason: str
    provenance: str
    known: bool = True  # somebody's rule; else the default


def find(event: Event, near: Sequence[Event], overrides: Mapping[int, Rule]) -> Finding:
    """What `event` means beside the events `near` it: of the same device, within TOGETHER_SECONDS, itself left out."""
    match event.kind:
        case "xid" | "code":
            return _coded(event, near, overrides)
        case "recovery_action":
            return _asked_by_driver(event)
        case "ecc":
            return _ecc(event)
        case "remap":
            return _remap(event)
        case "lost":
            return _lost(event)
        case "verify":
            rule = Rule(0x1A, "verification failed", Verb.ISOLATE, "", Provenance.PAPER)
            return Finding(event, REMEDY_OF[rule.verb], f"Verification failed: {event.text}.", rule.provenance)
        case "evicted":
            return Finding(event, Remedy.REBUILD, f"Its agent ended it: {event.text}", Provenance.DEFAULT)
        case "change" | "memory" | "driver" | "dropped" | "sxid":
            return Finding(event, Remedy.NOTE, event.text or "It changed.", Provenance.DEFAULT)
        case _:
            told = event.text or event.kind
            return Finding(event, Remedy.REBUILD, f"Nobody knows this event: {told}.", Provenance.DEFAULT, known=False)


def near(event: Event, events: Sequence[Event]) -> list[Event]:
    """The others of the same device that are close in time."""
    return [
        other
        for other in events
        if other.event_id != event.event_id
        and other.device_id == event.device_id
        and other.node_id == event.node_id
        and abs(other.at - event.at) <= TOGETHER_SECONDS
    ]


def _coded(event: Event, beside: Sequence[Event], overrides: Mapping[int, Rule]) -> Finding:
    code = event.code
    if code is None:
        return Finding(event, Remedy.REBUILD, "An error without a number.", Provenance.DEFAULT, known=False)
    rule = rule_for(code, overrides)
    if rule is None:
        reason = f"XID {code} is in no catalogue: the instances that it hit are rebuilt."
        return Finding(event, Remedy.REBUILD, reason, Provenance.DEFAULT, known=False)
    said = f"XID {code}, {rule.meaning}"
    if rule.provenance == Provenance.PAPER:
        said = f"Code {code:#x}, {rule.meaning}"
    codes = {other.code for other in beside if other.kind == "xid" and other.code is not None}
    joined = _joined(code, codes)
    if code not in overrides and joined is not None:
        return Finding(event, joined[0], f"{said}: {joined[1]}", rule.provenance)
    remedy = REMEDY_OF[rule.verb]
    if rule.verb is Verb.FOLLOW_TEXT:
        followed = recovery_verb(event.data.get("recovery_action", "")) or followed_verb(event.text)
        if followed is None:
            return Finding(event, remedy, f"{said}: its text names no state ({event.text[:200]}).", rule.provenance)
        return Finding(event, REMEDY_OF[followed], f"{said}: the driver asks for {followed}.", Provenance.DRIVER)
    note = f" ({rule.note})" if rule.note else ""
    return Finding(event, remedy, f"{said}{note}: {rule.provenance} says {rule.verb}.", rule.provenance)


def _joined(code: int, codes: set[int]) -> tuple[Remedy, str] | None:
    """What a code means beside others; None where it stands for itself."""
    if code == 45:
        others = sorted(codes - {45})
        if others:
            return Remedy.NOTE, f"the cleanup after XID {others[0]}."
    if (code == 64 and codes & {48, 63}) or (code in (48, 63) and 64 in codes):  # whichever is told last
        return Remedy.CORDON, f"the row of the error beside it could not be remapped.{_RMA}"
    if code == 63 and 48 in codes:
        return Remedy.NOTE, "the row of the double-bit error beside it was recorded; its reset brings the new row."
    if code in (171, 172) and 48 in codes:
        return Remedy.NOTE, "a detail of the double-bit error beside it."
    if code == 163 and 162 in codes:
        return Remedy.NOTE, "it was over again with XID 162."
    return None


def _asked_by_driver(event: Event) -> Finding:
    words = event.data.get("to") or event.data.get("action") or event.text
    verb = recovery_verb(words) or followed_verb(words)
    if verb is None:
        reason = f"The driver names a recovery action that nobody knows: {words[:200]}."
        return Finding(event, Remedy.NOTE, reason, Provenance.DRIVER, known=False)
    if verb is Verb.IGNORE:
        return Finding(event, Remedy.NOTE, "The driver asks for nothing any more.", Provenance.DRIVER)
    return Finding(event, REMEDY_OF[verb], f"The driver asks for {verb}.", Provenance.DRIVER)


def _ecc(event: Event) -> Finding:
    """Corrected errors are a trend; one that could not be corrected is what XID 48 tells, by another way."""
    said = " ".join((event.data.get("counter", ""), event.data.get("severity", ""), event.text)).lower()
    if any(word in said for word in ("uncorrect", "double bit", "fatal", "poison")):
        reason = "An ECC error that could not be corrected: as XID 48, the device needs a reset."
        return Finding(event, REMEDY_OF[Verb.RESET_GPU], reason, Provenance.NVIDIA)
    return Finding(event, Remedy.NOTE, "Corrected ECC errors: a trend to watch, as XID 92.", Provenance.NVIDIA)


def _lost(event: Event) -> Finding:
    """Off the bus, only a restart of the machine brings it back; one that is merely not listed may be so on purpose."""
    said = event.text or "it does not answer any more"
    if "fallen off the bus" in said or event.data.get("to") == "lost":
        return Finding(
            event, REMEDY_OF[Verb.DRAIN_REBOOT], f"As XID 79, the device is gone: {said}.", Provenance.NVIDIA
        )
    return Finding(event, Remedy.ISOLATE, f"The device is gone: {said}.", Provenance.DEFAULT)


def _remap(event: Event) -> Finding:
    said = f"{event.data.get('state', '')} {event.text}".lower()
    if "fail" in said:
        reason = "A row could not be remapped: as XID 64, the device needs a reset." + _RMA
        return Finding(event, REMEDY_OF[Verb.RESET_GPU], reason, Provenance.NVIDIA)
    reason = "A row was remapped or a page retired: recorded, as XID 63."
    if "pending" in said or "wait" in said:
        reason = "A row remap waits for a reset: it is done when nothing runs on the device."
    return Finding(event, Remedy.NOTE, reason, Provenance.NVIDIA)
