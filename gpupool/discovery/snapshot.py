"""What happened between two looks at the same devices. Pure: the second channel beside a driver's own events.

A change has an id made of what changed from what to what: told twice, by two agents or after a restart, it is the
same change.
"""

import hashlib
from collections.abc import Iterator, Sequence
from typing import Final

from gpupool.discovery.base import Device, Noticed

_NAMES: Final = ("name", "memory_bytes", "allocatable", "partition_of", "pci_address")
_FACTS: Final = ("driver", "vbios", "serial")
_ROUNDING: Final = 0.01
_COUNTERS: Final = (
    ("ecc", "ecc_uncorrected", "uncorrectable ECC errors"),
    ("ecc", "ecc_uncorrected_aggregate", "uncorrectable ECC errors over its life"),
    ("remap", "remapped_rows_uncorrectable", "memory rows remapped for uncorrectable errors"),
    ("remap", "remapped_rows_correctable", "memory rows remapped for correctable errors"),
    ("remap", "retired_pages", "retired memory pages"),
)


def diff(before: Sequence[Device], after: Sequence[Device], *, at: float) -> tuple[Noticed, ...]:
    """Events between two snapshots of one source; `at` is seconds since the epoch.

    What is unknown on either side is no change. A device that comes is none either: it is discovered.
    """
    now = {device.stable_id: device for device in after}
    events: list[Noticed] = []
    for old in before:
        new = now.get(old.stable_id)
        if new is None:
            # Where nothing at all was found the source has failed: that says nothing about one device.
            if after:
                data = {"from": "listed", "to": "gone"}
                kind = "change" if old.partition_of else "lost"  # parts come and go as somebody divides the whole
                events.append(_event(old, kind, data, f"{old.name} is not listed any more", at))
            continue
        events += _changes(old, new, at)
    return tuple(events)


def _changes(old: Device, new: Device, at: float) -> Iterator[Noticed]:
    if new.health == "failed" and old.health == "ok":
        why = new.facts.get("trouble", "it does not answer")
        yield _event(new, "lost", {"from": old.health, "to": why}, f"{new.name} does not answer: {why}", at)
    if old.recovery_action and new.recovery_action and old.recovery_action != new.recovery_action:
        data = {"from": old.recovery_action, "to": new.recovery_action}
        text = f"The driver asks for {new.recovery_action}, and for {old.recovery_action} before."
        yield _event(new, "recovery_action", data, text, at)
    yield from _counted(old, new, at)
    yield from _flagged(old, new, at)
    for name in _NAMES:
        yield from _change(new, name, getattr(old, name), getattr(new, name), at)
    for name in _FACTS:
        yield from _change(new, name, old.facts.get(name), new.facts.get(name), at)


def _change(device: Device, name: str, was: object, is_now: object, at: float) -> Iterator[Noticed]:
    if was is None or is_now is None or was == is_now:
        return
    if isinstance(was, int) and isinstance(is_now, int) and abs(was - is_now) < _ROUNDING * was:
        return  # one way of asking counts bytes, another MiB
    data = {"field": name, "from": str(was), "to": str(is_now)}
    yield _event(device, "change", data, f"{name} was {was or 'empty'} and is {is_now or 'empty'}.", at)


def _counted(old: Device, new: Device, at: float) -> Iterator[Noticed]:
    for kind, key, words in _COUNTERS:
        if key == "ecc_uncorrected_aggregate" and "ecc_uncorrected" in new.telemetry:
            continue  # the same errors, counted twice
        was, is_now = old.telemetry.get(key), new.telemetry.get(key)
        if was is not None and is_now is not None and is_now > was:  # less is a reset of the counter
            data = {"counter": key, "from": f"{was:g}", "to": f"{is_now:g}"}
            yield _event(new, kind, data, f"{is_now:g} {words}, {was:g} before.", at)


def _flagged(old: Device, new: Device, at: float) -> Iterator[Noticed]:
    for key, state, text in (
        ("remap_pending", "pending", "A memory row waits to be remapped."),
        ("remap_failed", "failed", "A memory row could not be remapped: remapping failed."),
        ("retired_pages_pending", "pending", "Memory pages wait to be retired."),
    ):
        had, has = old.telemetry.get(key), new.telemetry.get(key)
        if had is not None and has is not None and has > had:
            yield _event(new, "remap", {"state": state, "counter": key, "from": f"{had:g}", "to": f"{has:g}"}, text, at)


def _event(device: Device, kind: str, data: dict[str, str], text: str, at: float) -> Noticed:
    told = "\0".join((device.stable_id, kind, *(f"{key}={value}" for key, value in sorted(data.items()))))
    return Noticed(
        source="snapshot",
        kind=kind,
        at=at,
        stable_id=device.stable_id,
        pci_address=device.pci_address,
        text=text,
        data={"id": hashlib.sha256(told.encode()).hexdigest()[:16], **data},
    )
