"""Whatever a driver says, an agent's report is one that the web process takes."""

import math
from typing import Any
from uuid import UUID

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from gpupool.agent.events import EventBuffer
from gpupool.agent.facts import MOST_PROCESSES, device_fact, device_facts, given_device
from gpupool.discovery.base import Capability, Device, DeviceProcess, Link, LinkType, MemoryRegion, MemoryType, Noticed
from gpupool.stream.intake import decode
from gpupool.stream.messages import Observed

WILD = Device(
    stable_id="GPU-1" + "x" * 300,
    kind="gpu",
    vendor="nvidia" * 9,
    name="n\x00" * 300,
    memory_bytes=-1,
    memory_used_bytes=1 << 65,
    utilization=math.nan,
    temperature_celsius=math.inf,
    facts={f"fact{n}" * 40: "v\x00" * 3000 for n in range(300)},
    traceable_id="t" * 400,
    tags=tuple(f"tag{n}" * 40 for n in range(90)),
    regions=(MemoryRegion(kind=MemoryType.VRAM, size_bytes=1),) * 90,
    capability=Capability(architecture="hopper" * 90, precisions=frozenset({"fp8", "bf16"})),
    links=(Link(peer="GPU-2" * 90, kind=LinkType.NVLINK),) * 900,
    processes=tuple(DeviceProcess(pid=n, name="p" * 900, memory_bytes=None) for n in range(3000)),
    telemetry={f"reading_{n}": math.nan if n % 2 else 1.0 for n in range(500)},
    pci_address="0000:17:00.0",
    numa_node=1,
    recovery_action="reset",
)


def accepted(*devices: Device, **changes: Any) -> Observed:
    """The report as the web process reads it. Raises BadMessage."""
    report = Observed(sequence=1, devices=[device_fact(device) for device in devices], instances=[], **changes)
    message = decode(msgspec.json.encode(report))
    assert isinstance(message, Observed)
    return message


def test_what_no_driver_should_say_is_cut() -> None:
    (fact,) = accepted(WILD).devices
    assert (fact.memory_bytes, fact.memory_used_bytes, fact.utilization, fact.temperature_celsius) == (None,) * 4
    assert len(fact.processes) == MOST_PROCESSES
    assert fact.facts["recovery_action"] == "reset"
    assert set(fact.telemetry.values()) == {1.0}


def test_the_same_device_is_told_in_the_same_words() -> None:
    plain = Device(
        stable_id="GPU-1", kind="gpu", vendor="nvidia", name="A100",
        capability=Capability(precisions=frozenset({"fp8", "bf16", "fp16", "int8"})),
    )  # fmt: skip
    assert device_fact(plain).capability["precisions"] == ["bf16", "fp16", "fp8", "int8"]
    assert given_device(WILD).pci_address == "0000:17:00.0"


@given(
    st.text(max_size=300), st.floats(), st.integers(), st.dictionaries(st.text(max_size=120), st.floats(), max_size=5)
)
def test_any_words_and_numbers_are_taken(text: str, real: float, whole: int, readings: dict[str, float]) -> None:
    device = Device(
        stable_id=f"id{text}", kind="gpu", vendor="nvidia", name=text, memory_bytes=whole, utilization=real,
        index=abs(whole) % (1 << 31), facts={text: text}, telemetry=readings,
    )  # fmt: skip
    accepted(device)


def test_a_report_of_many_large_events_stays_within_a_frame(tmp_path: Any) -> None:
    buffer = EventBuffer(tmp_path / "events.json", boot_id="b")
    buffer.acknowledge(0)
    huge = {f"key{n}": "v" * 5000 for n in range(200)}
    buffer.add(Noticed(source="nvml", kind="xid", at=1.0, text="€" * 5000, data=huge) for _ in range(100))
    told, reports = 0, 0
    while events := buffer.to_tell(now=float(reports)):
        accepted(events=events)
        told += len(events)
        reports += 1
        buffer.acknowledge(events[-1].sequence)
    assert told == 100


@pytest.mark.parametrize(
    "odd",
    [
        {"index": (1 << 32) - 1},
        {"regions": (MemoryRegion(kind=MemoryType.VRAM, size_bytes=(1 << 64) - 1, base=1 << 80),)},
        {"links": (Link(peer="GPU-2", kind=LinkType.XGMI, lanes=1 << 70, bandwidth_bytes=10**30),)},
        {"capability": Capability(compute_units=1 << 70, peak_tflops=math.nan)},
        {"processes": (DeviceProcess(pid=1 << 70), DeviceProcess(pid=-1))},
        {"name": "half a character: \ud800", "facts": {"serial": "\udc80"}},
    ],
)
def test_one_odd_value_does_not_silence_a_node(odd: dict[str, Any]) -> None:
    device = Device(**{"stable_id": "GPU-1", "kind": "gpu", "vendor": "amd", "name": "MI300X", **odd})
    (fact,) = accepted(device).devices
    assert fact.index is None
    assert [region["size_bytes"] for region in fact.regions] in ([], [None])
    assert [link["bandwidth_bytes"] for link in fact.links] in ([], [None])
    assert fact.capability["compute_units"] is None
    assert fact.processes == []


def test_what_a_node_says_of_many_devices_fits_a_frame() -> None:
    crowd = tuple(DeviceProcess(pid=n, name="/usr/bin/python" * 9, memory_bytes=1 << 30) for n in range(1, 400))
    devices = [replace(WILD, stable_id=f"GPU-{n}", processes=crowd) for n in range(64)]
    owners = {399: UUID(int=7)}
    report = decode(msgspec.json.encode(Observed(sequence=1, devices=device_facts(devices, owners), instances=[])))
    assert [fact.stable_id for fact in report.devices] == [f"GPU-{n}" for n in range(64)]
    assert {fact.processes[0]["instance_id"] for fact in report.devices} == {str(UUID(int=7))}  # our own before others


def test_two_devices_whose_names_are_alike_when_cut_are_told_once() -> None:
    alike = [replace(WILD, stable_id="x" * 200 + end) for end in "ab"]
    assert len(device_facts(alike)) == 1
