"""What changes by itself in the console's lists of nodes and instances, by row; whole lists, in a query or two."""

from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any, Final
from uuid import UUID

import msgspec
from django.db.models import Q

from dashboard import selectors
from dashboard.frames import DeviceRow, InstanceRow, device_row, instance_rows
from dashboard.reasons import reason_in_others
from gpupool import selectors as pool
from gpupool.models import Instance, InstanceState, Node
from gpupool.reads.nodes import table_of_nodes
from gpupool.services import switched_off

_MOST_INSTANCES: Final = 5000
_MOST_OF_A_NODE: Final = 100
_SHOWN_AFTER_STOP: Final = timedelta(minutes=10)
"""So that a page that shows an instance sees it stop."""


class InstanceNow(msgspec.Struct, frozen=True, omit_defaults=True):
    """What of an instance changes; as of frames.InstanceRow."""

    state: str
    reason: str
    running: int | None
    waiting: int | None
    since: float
    restarts: int
    reason_in: dict[str, str] = {}


class NodeNow(msgspec.Struct, frozen=True):
    """What of a node changes: its state, and how many instances run there."""

    state: str
    running: int


def read_instances(now: datetime) -> Mapping[str, InstanceNow]:
    """The newest instances that are not stopped, and those that did a moment ago."""
    lately = Q(state_changed_at__gt=now - _SHOWN_AFTER_STOP)
    rows = (
        pool.with_figures(Instance.objects.filter(~Q(state=InstanceState.STOPPED) | lately), now)
        .order_by("-created_at")
        .values_list("pk", "state", "reason", "running_now", "waiting_now", "state_changed_at", "restarts", "engine")[
            :_MOST_INSTANCES
        ]
    )
    off = {name: switched_off(name) for name in pool.switched_off_engines()}
    found = {}
    for pk, state, reason, running, waiting, since, restarts, engine in rows:
        told = reason or off.get(engine, "")
        found[str(pk)] = InstanceNow(state, told, running, waiting, since.timestamp(), restarts, reason_in_others(told))
    return found


def read_nodes() -> Mapping[str, NodeNow]:
    nodes: Any = table_of_nodes()  # its annotations are unknown to the types
    return {str(pk): NodeNow(state, running) for pk, state, running in nodes.values_list("pk", "state", "running")}


def read_node(node_id: UUID, now: datetime) -> Mapping[str, NodeNow | DeviceRow | InstanceRow] | None:
    """A node, its devices and its instances; None for one that is gone."""
    state = Node.objects.filter(pk=node_id).values_list("state", flat=True).first()
    if state is None:
        return None
    instances = instance_rows(selectors.list_instances(now=now).filter(node=node_id)[:_MOST_OF_A_NODE])
    devices = [device_row(device, now=now) for device in pool.list_devices_overview(node_id)]
    return {
        str(node_id): NodeNow(state, len(instances)),
        **{row.id: row for row in devices},
        **{row.id: row for row in instances},
    }
