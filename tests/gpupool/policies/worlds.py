"""What the reconcile policy sees, as its tests build it."""

from dataclasses import replace
from uuid import UUID

from gpupool.policies.instance import State
from gpupool.policies.placement import DeviceView, Need
from gpupool.policies.reconcile import (
    InstanceView,
    NodeView,
    Rules,
    VersionView,
    World,
)

RULES = Rules()
VERSION = UUID(int=1)
NOW = 1_000_000.0


def a_version(replicas: int = 1, **changes: object) -> VersionView:
    version = VersionView(VERSION, "m v1", replicas, Need("gpu", 10))
    return replace(version, **changes)  # type: ignore[arg-type]  # of its own fields


def an_instance(
    number: int, state: State, *, node: int | None = 1, age: float = 0.0, **changes: object
) -> InstanceView:
    instance = InstanceView(
        instance_id=UUID(int=number),
        version_id=VERSION,
        node_id=None if node is None else UUID(int=node),
        state=state,
        wanted=True,
        since=NOW - age,
    )
    return replace(instance, **changes)  # type: ignore[arg-type]  # of its own fields


def a_node(number: int, *, alive: bool = True) -> NodeView:
    return NodeView(UUID(int=number), f"node-{number}", connected=True, alive=alive)


def a_device(number: int, *, node_alive: bool = True, claimed: int = 0) -> DeviceView:
    return DeviceView(UUID(int=number), f"gpu-{number}", "gpu", 25, claimed, True, "ok", node_alive, False)


def a_world(
    version: VersionView,
    *instances: InstanceView,
    nodes: tuple[NodeView, ...] = (a_node(1), a_node(2), a_node(3)),
    devices: tuple[DeviceView, ...] = (a_device(1), a_device(2)),
) -> World:
    return World(NOW, [version], instances, nodes, devices)
