"""Devices as their node's agent reports them. Readings come every second: they are written in one statement."""

from collections.abc import Sequence
from datetime import datetime
from typing import Final

import msgspec
from django.db import connection

from core.epochs import Section
from gpupool.models import Device, Node
from gpupool.services.changes import Changes
from gpupool.stream.messages import DeviceFact
from tenants.actor import Actor
from tenants.services import record_audit

_MADE: Final = (
    "kind", "vendor", "name", "index", "memory_bytes", "health", "present", "traceable_id", "allocatable",
    "partition_of", "tags", "regions", "capability", "links", "simulated",
)  # fmt: skip
"""What a device is; it seldom changes."""

_READINGS: Final = """
UPDATE gpupool_device AS device
SET memory_used_bytes = said.used, utilization = said.utilization, temperature_celsius = said.temperature,
    telemetry = said.telemetry, processes = said.processes, facts = said.facts, observed_at = %s
FROM jsonb_to_recordset(%s::jsonb) AS said(
    id uuid, used bigint, utilization float8, temperature float8, telemetry jsonb, processes jsonb, facts jsonb
)
WHERE device.id = said.id
"""


def apply_devices(node: Node, facts: Sequence[DeviceFact], *, actor: Actor, changes: Changes, now: datetime) -> None:
    """Everything that a report lists, and that it does not list what is gone. Inside the report's transaction."""
    rows = Device.objects.filter(node=node).defer("telemetry", "processes", "facts")  # written, whatever they were
    locked = rows.select_for_update(no_key=True).order_by("pk")  # in the order in which claims lock them
    known = {device.stable_id: device for device in locked}
    remade: list[Device] = []
    read: list[tuple[Device, DeviceFact]] = []
    for fact in facts:
        device = known.pop(fact.stable_id, None)
        if device is None:
            _discover(node, fact, actor=actor, changes=changes, now=now)
            continue
        before, standing = _made(device), _standing(device)
        _remake(device, fact, node)
        _note_standing(device, standing, actor=actor, changes=changes)
        if _made(device) != before:
            remade.append(device)
        read.append((device, fact))
    Device.objects.bulk_update(remade, _MADE)
    _write_readings(read, now)
    for device in known.values():
        if device.present:
            _lose(device, actor=actor, changes=changes)


def _discover(node: Node, fact: DeviceFact, *, actor: Actor, changes: Changes, now: datetime) -> None:
    device = Device(node=node, stable_id=fact.stable_id, observed_at=now)
    _remake(device, fact, node)
    device.memory_used_bytes, device.utilization = fact.memory_used_bytes, fact.utilization
    device.temperature_celsius, device.telemetry = fact.temperature_celsius, dict(fact.telemetry)
    device.processes, device.facts = list(fact.processes), dict(fact.facts)
    device.save(force_insert=True)
    record_audit(
        "device.discovered",
        subject=device,
        actor=actor,
        after={"device": fact.stable_id, "memory_bytes": fact.memory_bytes},
    )
    changes.add(Section.POOL, device.pk)


def _lose(device: Device, *, actor: Actor, changes: Changes) -> None:
    """It is not there any more, and nothing about it is known."""
    standing = _standing(device)
    device.present, device.health, device.memory_used_bytes = False, "unknown", None
    device.utilization, device.temperature_celsius = None, None
    device.telemetry, device.processes = {}, []
    _note_standing(device, standing, actor=actor, changes=changes)
    device.save(
        update_fields=[
            "present", "health", "memory_used_bytes", "utilization", "temperature_celsius", "telemetry", "processes",
        ]
    )  # fmt: skip


def _remake(device: Device, fact: DeviceFact, node: Node) -> None:
    device.kind, device.vendor, device.name, device.index = fact.kind, fact.vendor, fact.name, fact.index
    device.memory_bytes, device.health, device.present = fact.memory_bytes, fact.health, True
    device.traceable_id, device.allocatable = fact.traceable_id, fact.allocatable
    device.partition_of, device.simulated = fact.partition_of, node.simulated
    device.tags, device.regions, device.links = list(fact.tags), list(fact.regions), list(fact.links)
    device.capability = dict(fact.capability)


def _write_readings(read: Sequence[tuple[Device, DeviceFact]], now: datetime) -> None:
    if not read:
        return
    rows = [
        {
            "id": device.pk,
            "used": fact.memory_used_bytes,
            "utilization": fact.utilization,
            "temperature": fact.temperature_celsius,
            "telemetry": fact.telemetry,
            "processes": fact.processes,
            "facts": fact.facts,
        }
        for device, fact in read
    ]
    with connection.cursor() as cursor:
        cursor.execute(_READINGS, [now, msgspec.json.encode(rows).decode()])


def _made(device: Device) -> tuple[object, ...]:
    return tuple(getattr(device, name) for name in _MADE)


def _standing(device: Device) -> dict[str, object]:
    return {"memory_bytes": device.memory_bytes, "health": device.health, "present": device.present}


def _note_standing(device: Device, before: dict[str, object], *, actor: Actor, changes: Changes) -> None:
    after = _standing(device)
    if before != after:
        record_audit("device.state_changed", subject=device, actor=actor, before=before, after=after)
        changes.add(Section.POOL, device.pk)
