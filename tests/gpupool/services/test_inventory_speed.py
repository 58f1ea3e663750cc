"""A tick of a thousand devices: every node of a simulated fleet reports once."""

import asyncio
import random
from time import process_time

import pytest

from gpupool import services
from gpupool.agent.facts import device_fact
from gpupool.models import Device, Node
from gpupool.simulation.devices import SimulatedDevices
from gpupool.simulation.kinds import KINDS
from gpupool.stream.messages import PROTOCOL, DeviceFact, Hello, Observed
from tenants.actor import SYSTEM
from tests.pace import pace

GPUS = 8
BUDGET_SECONDS = 1.0 / 125
"""Of a processor, for one node of eight GPUs: a thousand of them in a second."""

pytestmark = pytest.mark.django_db


def facts(source: SimulatedDevices) -> list[DeviceFact]:
    return [device_fact(device) for device in asyncio.run(source.probe()).devices]


def hello(name: str, devices: list[DeviceFact]) -> Hello:
    return Hello(
        protocol=PROTOCOL, node=name, boot_id="one", agent_version="test", address="127.0.0.1", facts={},
        devices=devices, instances=[], simulated=True,
    )  # fmt: skip


@pytest.mark.parametrize("count", [25, pytest.param(125, marks=pytest.mark.drill)])
def test_a_thousand_devices_are_written_down_in_a_second_of_a_processor(count: int) -> None:
    nodes = []
    for number in range(count):
        name = f"sim-{number:03}"
        source = SimulatedDevices(node=name, kind=KINDS["h100"], count=GPUS, running=list, chance=random.Random(number))
        made = services.create_node(name, actor=SYSTEM)
        nodes.append((made.node.pk, services.apply_hello(made.node.pk, hello(name, facts(source))), source))
    reports = [
        (node, intake.session_id, Observed(sequence=1, devices=facts(source), instances=[]))
        for node, intake, source in nodes
    ]
    before = pace()
    began = process_time()
    for node, session, report in reports:
        services.apply_observed(node, session, report)
    took = process_time() - began
    took /= min(before, pace())
    assert Device.objects.filter(kind="gpu", simulated=True, present=True).count() == count * GPUS
    assert Node.objects.filter(simulated=True).count() == count
    assert took / count < BUDGET_SECONDS, f"{took / count * 1000:.1f} ms a node"
