"""What drivers and the kernel's log tell of one node becomes its events: each error once, as often as it happened."""

import asyncio
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from gpupool.discovery.base import Device, Inventory, Noticed
from gpupool.stream.messages import EventFact
from tests.doubles.node_web import FakeWeb
from tests.gpupool.agent.conftest import running_agent

ADDRESS = "0000:17:00.0"


class Driver:
    """One GPU, and what its driver says of it next."""

    def __init__(self) -> None:
        self.next: list[Noticed] = []
        self.looks = 0

    async def probe(self) -> Inventory:
        said, self.next, self.looks = tuple(self.next), [], self.looks + 1
        gpu = Device(stable_id="GPU-1", kind="gpu", vendor="nvidia", name="A100", pci_address=ADDRESS)
        return Inventory((gpu,), "", said)

    async def close(self) -> None:
        return None

    def say(self, code: int) -> None:
        self.next.append(Noticed(source="nvml", kind="xid", at=time.time(), stable_id="GPU-1", code=code))


def by_kernel(code: int) -> str:
    return f"[{time.monotonic():.6f}] NVRM: Xid (PCI:0000:17:00): {code}, pid=7, name=python, Ch 00000008\n"


def told(web: FakeWeb) -> list[EventFact]:
    """Every event, by its number."""
    return list({event.sequence: event for report in web.observed for event in report.events}.values())


async def until_quiet(web: FakeWeb, driver: Driver, condition: Callable[[], bool]) -> None:
    """Until it is so, and for two looks longer."""
    await web.until(condition)
    looks = driver.looks
    await web.until(lambda: driver.looks >= looks + 2)


@pytest.mark.shows("P24")
async def test_an_error_that_both_tell_of_is_one_event_and_its_repeat_another(web: FakeWeb, var_dir: Path) -> None:
    kernel, driver = var_dir / "kern.log", Driver()
    kernel.write_text("")
    await web.desire()
    async with running_agent(web, var_dir, sources=[driver], kernel_log=kernel):
        await web.until(lambda: bool(web.observed))
        driver.say(31)
        with await asyncio.to_thread(kernel.open, "a") as log:
            log.write(by_kernel(31) + by_kernel(31) + by_kernel(79))
        await until_quiet(web, driver, lambda: len(told(web)) >= 3)
        assert sorted((event.code, event.stable_id) for event in told(web)) == [
            (31, "GPU-1"), (31, "GPU-1"), (79, "GPU-1"),
        ]  # fmt: skip
    reports = len(web.observed)
    async with running_agent(web, var_dir, sources=[driver], kernel_log=kernel):
        await web.until(lambda: bool(web.observed) and len(web.observed) < reports)
        driver.say(94)
        await until_quiet(web, driver, lambda: any(event.code == 94 for event in told(web)))
        (event,) = [event for event in told(web) if event.code == 94]
        assert event.sequence == 4  # numbers go on, and nothing of the log is told again
        assert {one.sequence for one in told(web)} == {1, 2, 3, 4}
