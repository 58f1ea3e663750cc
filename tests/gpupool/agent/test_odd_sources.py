"""A driver or tool whose words nobody foresaw costs its own devices' readings, and nothing else."""

import asyncio
from pathlib import Path

import msgspec
import pytest
from msgspec.structs import replace

from gpupool.agent.events import EventBuffer
from gpupool.discovery.base import Device, Inventory, Noticed
from gpupool.stream.intake import decode
from gpupool.stream.messages import Observed
from tests.doubles.node_web import FakeWeb
from tests.gpupool.agent.conftest import running_agent

GPU = Device(stable_id="GPU-1", kind="gpu", vendor="amd", name="MI300X", memory_bytes=1 << 37, memory_used_bytes=1)


class Odd:
    """Answers once, and fails from then on."""

    def __init__(self) -> None:
        self.looks = 0

    async def probe(self) -> Inventory:
        self.looks += 1
        if self.looks > 1:
            raise OverflowError("cannot convert float infinity to integer")
        return Inventory((GPU,))

    async def close(self) -> None:
        return None


class Well:
    async def probe(self) -> Inventory:
        return Inventory((replace(GPU, stable_id="GPU-2"),))

    async def close(self) -> None:
        return None


@pytest.mark.shows("P23")
async def test_a_source_that_fails_leaves_the_others_and_its_devices_unknown(web: FakeWeb, var_dir: Path) -> None:
    await web.desire()
    async with running_agent(web, var_dir, sources=[Odd(), Well()]):
        await web.until(lambda: any(_health(report) == "unknown" for report in web.observed))
        last = [fact for fact in web.observed[-1].devices if fact.kind == "gpu"]
        assert {fact.stable_id: fact.health for fact in last} == {"GPU-1": "unknown", "GPU-2": "ok"}
        assert {fact.stable_id: fact.memory_used_bytes for fact in last} == {"GPU-1": None, "GPU-2": 1}


def _health(report: Observed) -> str:
    return next((fact.health for fact in report.devices if fact.stable_id == "GPU-1"), "")


class Driver:
    """Answers, or hangs."""

    def __init__(self, *devices: Device, hangs: bool = False, reason: str = "") -> None:
        self._inventory = Inventory(devices, reason)
        self._hangs = hangs

    async def probe(self) -> Inventory:
        if self._hangs:
            await asyncio.Event().wait()
        return self._inventory

    async def close(self) -> None:
        return None


def told_of(web: FakeWeb) -> dict[str, str]:
    """Health of each GPU in the newest report."""
    return {fact.stable_id: fact.health for fact in web.observed[-1].devices if fact.kind == "gpu"}


@pytest.mark.shows("P23")
@pytest.mark.parametrize("driver", [Driver(hangs=True), Driver(reason="NVIDIA's driver was asked and killed.")])
async def test_an_agent_that_starts_while_a_driver_hangs_says_that_its_devices_are_unknown(
    web: FakeWeb, var_dir: Path, driver: Driver
) -> None:
    await web.desire()
    async with running_agent(web, var_dir, sources=[Driver(GPU)]):
        await web.until(lambda: bool(web.observed) and told_of(web) == {"GPU-1": "ok"})
    reports = len(web.observed)
    async with running_agent(web, var_dir, sources=[driver], first_look_seconds=0.5):
        await web.until(lambda: len(web.observed) not in (0, reports) and told_of(web) == {"GPU-1": "unknown"})
        (fact,) = [fact for fact in web.observed[-1].devices if fact.kind == "gpu"]
        assert (fact.memory_bytes, fact.memory_used_bytes) == (1 << 37, None)


async def test_what_a_driver_finds_now_counts_and_not_what_was_known(web: FakeWeb, var_dir: Path) -> None:
    await web.desire()
    async with running_agent(web, var_dir, sources=[Driver(GPU, replace(GPU, stable_id="GPU-2"))]):
        await web.until(lambda: bool(web.observed) and len(told_of(web)) == 2)
    async with running_agent(web, var_dir, sources=[Driver(GPU)]):
        await web.until(lambda: bool(web.observed) and told_of(web) == {"GPU-1": "ok"})


@pytest.mark.parametrize(
    "odd",
    [
        Noticed(source="kernel_log", kind="xid", at=1.0, code=10**12),
        Noticed(source="kernel_log", kind="xid", at=float("inf"), pci_address="0" * 3000),
        Noticed(source="nvml", kind="xid", at=float("nan"), stable_id="GPU\x00-1", data={"a\x00": "\ud800"}),
        Noticed(source="nvml", kind="xid", at=1.0, text="\udc80"),
    ],
)
def test_an_odd_event_is_told_in_words_that_are_taken(odd: Noticed, tmp_path: Path) -> None:
    events = EventBuffer(tmp_path / "events.json", boot_id="b")
    events.add([odd])
    events.acknowledge(0)
    told = Observed(sequence=1, devices=[], instances=[], events=events.to_tell(now=0.0))
    report = decode(msgspec.json.encode(told))
    assert isinstance(report, Observed)
    assert len(report.events) == 1
