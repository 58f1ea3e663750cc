"""What went wrong, what was done about it, and what the agents shall do."""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any, Final
from uuid import UUID

from django.conf import settings
from django.db.models import Q, QuerySet

from core.ids import uuid7_from
from gpupool.models import (
    Device,
    DeviceEvent,
    HealingAction,
    Instance,
    InstanceState,
    Lease,
    NodeState,
    XidRule,
)
from gpupool.models.health import OPEN_ACTIONS
from gpupool.policies.findings import TOGETHER_SECONDS, Event
from gpupool.policies.healing_world import Attempt, DeviceState, Isolation, Occupant, Rules, Standing, World
from gpupool.policies.lease import holder_of, instance_in
from gpupool.policies.remedy import ASKS_NODE, LIMIT_POWER, Remedy
from gpupool.policies.way_back import last_error, why_out
from gpupool.policies.xid import CATALOGUE, PAPER_CODES, Rule, Verb
from gpupool.stream.messages import DeviceAction

MOST_EVENTS: Final = 1000
_DAY: Final = timedelta(days=1)
_SLACK: Final = timedelta(minutes=5)
"""By how much the clocks of the web processes may differ."""


# For agents and the stream


def device_actions(node_id: UUID) -> list[DeviceAction]:
    """What the node's agent shall do now; an action stays until its end is told.

    One that empties its device, or the whole node, first is shown once nothing of ours is left there.
    """
    rows = HealingAction.objects.filter(
        node_id=node_id,
        state__in=OPEN_ACTIONS,
        action__in=[*ASKS_NODE, LIMIT_POWER],
    ).select_related("device")
    held = Lease.objects.filter(device__node_id=node_id, released_at__isnull=True)
    columns = held.values_list("device__stable_id", "device__partition_of")
    claimed = {name for names in columns for name in names if name}
    return [
        DeviceAction(
            action_id=row.pk,
            action=row.action,
            stable_id="" if row.action == Remedy.REBOOT or row.device is None else row.device.stable_id,
            dry_run=not settings.GATEHOUSE.healing_hardware and row.action not in _SOFT,
            reason=row.reason,
            watts=row.data.get("watts"),
        )
        for row in rows.order_by("pk")
        if _emptied(row, claimed)
    ]


_SOFT: Final = frozenset({Remedy.CLEAR_CACHE, Remedy.END_PROCESSES})


def _emptied(row: HealingAction, claimed: set[str]) -> bool:
    """Whether nothing of ours is left, by the names of devices that are claimed, or have a part that is."""
    if row.action in (Remedy.CLEAR_CACHE, LIMIT_POWER):
        return True
    return not claimed if row.action == Remedy.REBOOT else row.device is None or row.device.stable_id not in claimed


# For healing itself


def healing_rules() -> Rules:
    """How much may be done here."""
    return Rules(hardware=settings.GATEHOUSE.healing_hardware)


def anything_undecided() -> bool:
    return DeviceEvent.objects.filter(decided=False).exists()


def read_healing_world(*, now: datetime, mass_failure: bool = False) -> World:
    """All GPUs with their events and what was done lately."""
    undecided = DeviceEvent.objects.filter(decided=False).order_by("pk")
    # Those that nobody has looked at first: however many wait for something, what comes after them does not.
    held, fresh = undecided.exclude(verdict=""), undecided.filter(verdict="")
    events = sorted([*held[:MOST_EVENTS], *fresh[:MOST_EVENTS]], key=lambda row: row.pk)
    return World(
        now=now.timestamp(),
        events=[_event(row) for row in events],
        recent=_recent(now),
        devices=device_states(),
        attempts=list_attempts(since=now - _DAY),
        overrides=overrides(),
        mass_failure=mass_failure,
    )


def _recent(now: datetime, device_id: UUID | None = None) -> list[Event]:
    """Decided events that may belong to new ones, and those since which a device that is out is watched."""
    near = Q(received_at__gte=now - timedelta(seconds=2 * TOGETHER_SECONDS))
    watched = Q(
        device__isolated_by=Isolation.HEALING, received_at__gte=now - timedelta(seconds=healing_rules().probation)
    )
    # Ids are made in the order of time: what is older than this is not read through.
    since = now - timedelta(seconds=healing_rules().probation) - _SLACK
    rows = DeviceEvent.objects.filter(near | watched, decided=True, pk__gte=uuid7_from(int(since.timestamp() * 1000)))
    if device_id is not None:
        rows = rows.filter(device_id=device_id)
    return [_event(row) for row in reversed(rows.order_by("-pk")[:MOST_EVENTS])]


def list_attempts(*, since: datetime, device_id: UUID | None = None) -> list[Attempt]:
    """Actions begun since then, and those that are open, the oldest first."""
    rows = HealingAction.objects.filter(Q(created_at__gte=since) | Q(state__in=OPEN_ACTIONS))
    rows = rows.exclude(action=LIMIT_POWER)  # a person's wish, and no attempt at an error
    if device_id is not None:
        rows = rows.filter(device_id=device_id)
    return [
        Attempt(
            action_id=row.pk,
            node_id=row.node_id,
            device_id=row.device_id,
            remedy=Remedy(row.action),
            state=Standing(row.state),
            at=row.created_at.timestamp(),
            ended_at=None if row.finished_at is None else row.finished_at.timestamp(),
        )
        for row in rows.order_by("pk")
    ]


def overrides() -> dict[int, Rule]:
    """Operators' own rules by code."""
    rules = {}
    for row in XidRule.objects.all():
        known = CATALOGUE.get(row.code) or PAPER_CODES.get(row.code)
        meaning = "an error" if known is None else known.meaning
        rules[row.code] = Rule(row.code, meaning, Verb(row.action), row.note, row.provenance)
    return rules


def device_states(device_id: UUID | None = None) -> list[DeviceState]:
    """Every GPU, or one device, as healing sees it."""
    devices = Device.objects.select_related("node").defer("regions", "links", "capability", "tags")
    rows = list(devices.filter(pk=device_id) if device_id is not None else devices.filter(kind="gpu"))
    if device_id is not None and not rows[0].partition_of:
        rows += devices.filter(node=rows[0].node_id, partition_of=rows[0].stable_id)
    wholes = {(row.node_id, row.stable_id): row.pk for row in rows if not row.partition_of}
    whole_of = {row.pk: wholes.get((row.node_id, row.partition_of)) for row in rows if row.partition_of}
    divided = set(whole_of.values())
    holders: dict[UUID, list[str]] = {}
    leases = Lease.objects.filter(released_at__isnull=True, device__in=rows).order_by("pk")
    for held_id, holder in leases.values_list("device_id", "holder"):
        holders.setdefault(held_id, []).append(holder)
    names = (instance_in(holder) for held in holders.values() for holder in held)
    known = Instance.objects.filter(pk__in={name for name in names if name is not None})
    instances = {holder_of(row.pk): row for row in known}
    for part, whole in whole_of.items():  # what runs on a part runs on the whole
        if whole is not None:
            holders.setdefault(whole, []).extend(holders.get(part, []))
    states = [_device_state(row, holders.get(row.pk, []), instances) for row in rows]
    states = [
        replace(one, part_of=whole_of.get(one.device_id), shared=one.shared or one.device_id in divided)
        for one in states
    ]
    return states if device_id is None else states[:1]


def _device_state(device: Device, holders: list[str], instances: Mapping[str, Instance]) -> DeviceState:
    occupants = tuple(
        Occupant(
            instance_id=instance.pk,
            pid=instance.pid,
            answers=instance.state in (InstanceState.READY, InstanceState.ASLEEP),
        )
        for holder in holders
        if (instance := instances.get(holder)) is not None and instance.state != InstanceState.STOPPED
    )
    return DeviceState(
        device_id=device.pk,
        node_id=device.node_id,
        label=f"{device.node.name}/{device.stable_id}",
        healthy=device.present and device.health == "ok" and device.node.state == NodeState.ONLINE,
        shared=bool(device.partition_of) or len(set(holders)) > 1 or _has_strangers(device.processes, occupants),
        idle=not holders and not device.processes,
        isolation=Isolation(device.isolated_by) if device.isolated_at is not None else Isolation.NOT,
        isolated_at=None if device.isolated_at is None else device.isolated_at.timestamp(),
        rebooted=device.isolated_at is not None and device.isolated_boot_id != device.node.boot_id,
        driver=str(device.facts.get("recovery_action", "")),
        remap_pending=bool(device.telemetry.get("remap_pending")),
        occupants=occupants,
    )


def _has_strangers(processes: Iterable[Mapping[str, Any]], occupants: tuple[Occupant, ...]) -> bool:
    """Whether a process on the device is none of ours: its agent names the instance of those that are."""
    ours = {one.pid for one in occupants}
    return any(not process.get("instance_id") and process.get("pid") not in ours for process in processes)


def _event(row: DeviceEvent) -> Event:
    return Event(
        event_id=row.pk,
        node_id=row.node_id,
        device_id=row.device_id,
        kind=row.kind,
        at=row.received_at.timestamp(),
        code=row.code,
        text=row.text,
        data={name: str(value) for name, value in row.data.items()},
    )


# For pages and the API


def list_events(filters: Mapping[str, Any]) -> QuerySet[DeviceEvent]:
    """Events, newest first; `filters` by node, device, kind, source, code, decided."""
    rows = DeviceEvent.objects.select_related("node", "device").order_by("-pk")
    return rows.filter(**{_COLUMNS.get(name, name): value for name, value in filters.items()})


def list_actions(filters: Mapping[str, Any]) -> QuerySet[HealingAction]:
    """Actions, newest first; `filters` by node, device, action, state."""
    rows = HealingAction.objects.select_related("node", "device").order_by("-pk")
    return rows.filter(**{_COLUMNS.get(name, name): value for name, value in filters.items()})


_COLUMNS: Final = {"node": "node__name", "device": "device__stable_id"}


def get_device(device_id: UUID) -> Device:
    """Raises Device.DoesNotExist."""
    return Device.objects.select_related("node").get(pk=device_id)


def why_device_is_out(device: Device, *, now: datetime) -> str | None:
    """Why a device that was taken out is not given back yet, in a sentence; None where it is not out."""
    if device.isolated_at is None:
        return None
    (state,) = device_states(device.pk)
    attempts = list_attempts(since=now - _DAY, device_id=device.pk)
    erred_at = last_error(_recent(now, device.pk), overrides())
    said = why_out(state, attempts, healing_rules(), now=now.timestamp(), erred_at=erred_at)
    return said or "Healing gives it back at its next look."
