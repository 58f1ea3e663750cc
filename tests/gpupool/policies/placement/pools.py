"""Devices for placement tests."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any
from uuid import UUID

from gpupool.policies.placement import ClaimView, DeviceView, Need, NodeFacts

GIB = 1 << 30
ACME, GLOBEX = UUID(int=0xAC), UUID(int=0x61)


def a_node(number: int, **changes: Any) -> NodeFacts:
    return replace(NodeFacts(UUID(int=number), f"node-{number}"), **changes)


def a_device(number: int, *, node: NodeFacts | None = None, memory_gib: int | None = 80, **changes: Any) -> DeviceView:
    node = node or a_node(1)
    device = DeviceView(
        device_id=UUID(int=number),
        label=f"{node.name}/gpu-{number}",
        kind="gpu",
        memory_bytes=None if memory_gib is None else memory_gib * GIB,
        claimed_bytes=0,
        present=True,
        health="ok",
        node_reachable=True,
        node_cordoned=False,
        node=node,
        stable_id=f"gpu-{number:04d}",
        vendor="nvidia",
        name="NVIDIA H100 80GB HBM3",
    )
    return replace(device, **changes)


def claimed(device: DeviceView, *claims: ClaimView) -> DeviceView:
    every = (*device.claims, *claims)
    return replace(device, claims=every, claimed_bytes=sum(one.memory_bytes for one in every))


def a_claim(number: int, gib: int, **changes: Any) -> ClaimView:
    return replace(ClaimView(UUID(int=number), gib * GIB), **changes)


def a_need(gib: int = 10, **changes: Any) -> Need:
    return replace(Need("gpu", gib * GIB), **changes)


def linked(*groups: tuple[int, ...], kind: str, others: str = "") -> Mapping[int, dict[str, str]]:
    """Links by device number: `kind` within a group, `others` between groups."""
    links: dict[int, dict[str, str]] = {number: {} for group in groups for number in group}
    for group in groups:
        for first in group:
            for other in links:
                if other != first and (found := kind if other in group else others):
                    links[first][f"gpu-{other:04d}"] = found
    return links
