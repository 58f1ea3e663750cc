"""What the overview shows, with its page first and then over the live channel `fleet`.

Bounded by DEVICE_LIMIT and INSTANCE_LIMIT rows, so that it can be sent whole.
"""

from collections.abc import Iterable
from datetime import datetime
from typing import Any, Final

import msgspec

from dashboard import selectors
from dashboard.reasons import reason_in_others
from gpupool import selectors as pool
from gpupool.models import Instance, InstanceDesire, InstanceState
from gpupool.policies import silence
from gpupool.services import switched_off
from tenants.selectors import platform_rates

DEVICE_LIMIT: Final = 64
INSTANCE_LIMIT: Final = 100


class Figures(msgspec.Struct, frozen=True, kw_only=True):
    """The cards. Memory in bytes; None is unknown."""

    ready: int
    instances: int  # not stopped
    failed: int
    devices: int
    devices_unknown: int
    devices_simulated: int  # of the devices; figures count what runs on them, too
    memory: int | None
    reserved: int
    requests_per_second: float
    tokens_per_second: float
    requests: float  # in the last minute
    failures: float  # in the last minute


class DeviceRow(msgspec.Struct, frozen=True, kw_only=True):
    """One device; sizes in bytes, utilization 0 to 1; None is unknown."""

    id: str
    node: str
    name: str
    kind: str
    index: int | None
    memory: int | None
    reserved: int
    used: int | None
    schedulable: int | None
    utilization: float | None
    health: str
    observed_at: float | None  # seconds since the epoch
    simulated: bool


class InstanceRow(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One instance; times in seconds since the epoch. `reason_in`: the reason by language, see dashboard.reasons."""

    id: str
    model: str
    version: str
    engine: str
    state: str
    reason: str
    node: str
    endpoint: str
    attached: bool
    stopping: bool  # asked to stop, or stopped
    since: float
    restarts: int
    running: int | None
    waiting: int | None
    simulated: bool
    reason_in: dict[str, str] = {}


BLANK_DEVICE: Final = DeviceRow(
    id="",
    node="",
    name="",
    kind="",
    index=None,
    memory=None,
    reserved=0,
    used=None,
    schedulable=None,
    utilization=None,
    health="unknown",
    observed_at=None,
    simulated=False,
)
BLANK_INSTANCE: Final = InstanceRow(
    id="",
    model="",
    version="",
    engine="",
    state="unknown",
    reason="",
    node="",
    endpoint="",
    attached=False,
    stopping=False,
    since=0.0,
    restarts=0,
    running=None,
    waiting=None,
    simulated=False,
)
"""What the pages' row templates are rendered with; scripts fill copies of them."""


class ConsoleFrame(msgspec.Struct, frozen=True, kw_only=True):
    figures: Figures
    devices: list[DeviceRow]
    instances: list[InstanceRow]


def build_console_frame(*, now: datetime) -> ConsoleFrame:
    """Read everything that the overview shows; a constant number of queries."""
    devices = [device_row(device, now=now) for device in pool.list_devices_overview()]
    states = selectors.count_instances()
    rates = platform_rates(now)
    known = [device.memory for device in devices if device.memory is not None]
    return ConsoleFrame(
        figures=Figures(
            ready=states[InstanceState.READY],
            instances=states.total() - states[InstanceState.STOPPED],
            failed=states[InstanceState.FAILED],
            devices=len(devices),
            devices_unknown=sum(device.health == "unknown" for device in devices),
            devices_simulated=sum(device.simulated for device in devices),
            memory=sum(known) if known else None,
            reserved=sum(device.reserved for device in devices),
            requests_per_second=rates.requests_per_second,
            tokens_per_second=rates.tokens_per_second,
            requests=rates.requests,
            failures=rates.failures,
        ),
        devices=devices[:DEVICE_LIMIT],
        instances=instance_rows(selectors.list_instances(now=now)[:INSTANCE_LIMIT]),
    )


def device_row(device: pool.DeviceOverview, *, now: datetime) -> DeviceRow:
    """A device that is silent, or whose node is, says nothing about now: unknown, not zero."""
    stale = is_silent(device, now=now)
    health = "absent" if not device.present else "unknown" if stale else device.health
    return DeviceRow(
        id=str(device.id),
        node=device.node_name,
        name=device.name,
        kind=device.kind,
        index=device.index,
        memory=device.memory_bytes,
        reserved=device.reserved_bytes,
        used=None if stale else device.used_bytes,
        schedulable=None if stale and device.present else device.schedulable_bytes,
        utilization=None if stale else device.utilization,
        health=health,
        observed_at=device.observed_at.timestamp() if device.observed_at else None,
        simulated=device.simulated,
    )


def is_silent(device: pool.DeviceOverview, *, now: datetime) -> bool:
    """Whether what it said last may be long over."""
    return silence.is_silent(device.node_state, device.observed_at, now=now)


def instance_rows(instances: Iterable[Instance]) -> list[InstanceRow]:
    """Rows of the instances' tables, on the overview and on their own page; of what gpupool.selectors lists."""
    off = {name: switched_off(name) for name in pool.switched_off_engines()}
    return [_instance_row(instance, off.get(instance.engine, "")) for instance in instances]


def _instance_row(instance: Any, switched_off: str) -> InstanceRow:
    reason = instance.reason or switched_off
    return InstanceRow(
        id=str(instance.pk),
        model=instance.version.model.name,
        version=instance.version.name,
        engine=instance.engine,
        state=instance.state,
        reason=reason,
        reason_in=reason_in_others(reason),
        node=instance.node.name if instance.node else "",
        endpoint=pool.engine_address(instance),
        attached=instance.attached,
        stopping=instance.desire == InstanceDesire.STOPPED,
        since=instance.state_changed_at.timestamp(),
        restarts=instance.restarts,
        running=instance.running_now,
        waiting=instance.waiting_now,
        simulated=pool.is_made_up(instance),
    )
