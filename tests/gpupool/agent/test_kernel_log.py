"""The kernel's log is followed without waiting for it, each line once, over restarts of the agent."""

import errno
import os
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from core.clock import ManualClock
from gpupool.agent.kernel_log import DEVICE, KernelLogSource

XID = "NVRM: Xid (PCI:0000:17:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus."


class Ring:
    """A socket of datagrams that is read as the kernel's device is: a record a read, and nothing to wait for."""

    def __init__(self) -> None:
        self._here, self._there = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._here.setblocking(False)
        self.opened = 0

    def open(self, path: Path) -> int:
        self.opened += 1
        return os.dup(self._here.fileno())

    def write(self, sequence: int, text: str = XID, *, ago: float = 0.0) -> None:
        """A record; by the kernel's clock it is so many seconds old."""
        self._there.send(f"4,{sequence},{int((time.monotonic() - ago) * 1e6)},-;{text}\n".encode())

    def close(self) -> None:
        self._here.close()
        self._there.close()


@pytest.fixture
def ring() -> Iterator[Ring]:
    ring = Ring()
    yield ring
    ring.close()


def source(tmp_path: Path, ring: Ring, *, boot: str = "first", clock: ManualClock | None = None) -> KernelLogSource:
    place = tmp_path / "kernel_log.json"
    return KernelLogSource(place, boot_id=boot, clock=clock or ManualClock(), open_log=ring.open)


@pytest.mark.shows("P24")
async def test_errors_are_noticed_each_as_often_as_it_was_written(tmp_path: Path, ring: Ring) -> None:
    follower = source(tmp_path, ring)
    for sequence, text in enumerate((XID, "usb 1-1: new device", XID), start=1):
        ring.write(sequence, text)
    noticed = (await follower.probe()).noticed
    assert [(one.kind, one.code, one.pci_address) for one in noticed] == [("xid", 79, noticed[0].pci_address)] * 2
    assert noticed[0].pci_address.startswith("0000:17:00")
    assert (await follower.probe()).noticed == ()
    await follower.close()


async def test_an_agent_that_starts_anew_tells_of_no_line_again(tmp_path: Path, ring: Ring) -> None:
    first = source(tmp_path, ring)
    ring.write(10)
    assert len((await first.probe()).noticed) == 1
    await first.close()
    second = source(tmp_path, ring)
    ring.write(10)  # the ring is read from its beginning
    ring.write(11)
    assert len((await second.probe()).noticed) == 1
    await second.close()
    rebooted = source(tmp_path, ring, boot="second")
    ring.write(3)
    assert len((await rebooted.probe()).noticed) == 1
    await rebooted.close()


async def test_old_errors_are_passed_over_by_who_has_never_looked(tmp_path: Path, ring: Ring) -> None:
    clock = ManualClock()
    follower = KernelLogSource(tmp_path / "place", boot_id="b", clock=clock, open_log=ring.open, oldest_seconds=20.0)
    begun = time.monotonic()
    ring.write(1, ago=30.0)
    ring.write(2, ago=10.0)
    (noticed,) = (await follower.probe()).noticed
    since = time.monotonic() - begun  # by which it has become older, at most
    assert noticed.at == pytest.approx(clock.now().timestamp() - 10.0, abs=1.0 + since)
    await follower.close()


async def test_a_kernels_clock_that_is_minutes_off_is_put_right(tmp_path: Path, ring: Ring) -> None:
    clock = ManualClock()
    follower = source(tmp_path, ring, clock=clock)
    await follower.probe()
    clock.advance(1.0)
    ring.write(1, ago=30.0)
    ring.write(2, ago=-30.0)
    now = clock.now().timestamp()
    early, late = (await follower.probe()).noticed
    assert (early.at, late.at) == (now - 1.0, now)  # written since the last look, and not later than now
    await follower.close()


async def test_a_log_that_may_not_be_read_is_said_and_tried_again_later(tmp_path: Path, ring: Ring) -> None:
    clock, tries = ManualClock(), 0

    def refused(path: Path) -> int:
        nonlocal tries
        tries += 1
        raise PermissionError(errno.EPERM, "Operation not permitted")

    follower = KernelLogSource(tmp_path / "place", boot_id="b", clock=clock, open_log=refused)
    for _ in range(3):
        assert (await follower.probe()).noticed == ()
        assert follower.away == f"The kernel's log {DEVICE} cannot be opened: Operation not permitted."
    assert tries == 1
    clock.advance(61.0)
    await follower.probe()
    assert tries == 2
    await follower.close()


async def test_a_file_is_followed_over_its_rotation(tmp_path: Path) -> None:
    file, place = tmp_path / "kern.log", tmp_path / "place"
    at = f"[{time.monotonic():.6f}]"
    file.write_text(f"{at} {XID}\n{at} NVRM: Xid (PCI:0000:17:00): 3")
    follower = KernelLogSource(place, boot_id="b", clock=ManualClock(), path=file)
    assert [one.code for one in (await follower.probe()).noticed] == [79]
    with file.open("a") as log:
        log.write("1, pid=7, name=x, Ch 00000008\n")  # the rest of a line that was not whole
    assert [one.code for one in (await follower.probe()).noticed] == [31]
    file.rename(tmp_path / "kern.log.1")
    file.write_text(f"{at} {XID}\n")
    assert [one.code for one in (await follower.probe()).noticed] == [79]
    await follower.close()
    again = KernelLogSource(place, boot_id="b", clock=ManualClock(), path=file)
    assert (await again.probe()).noticed == ()
    await again.close()


async def test_what_was_written_just_before_a_rotation_is_read(tmp_path: Path) -> None:
    file = tmp_path / "kern.log"
    file.write_text("")
    follower = KernelLogSource(tmp_path / "place", boot_id="b", clock=ManualClock(), path=file)
    await follower.probe()
    at = f"[{time.monotonic():.6f}]"
    with file.open("a") as log:
        log.write(f"{at} {XID}\n")
    file.rename(tmp_path / "kern.log.1")
    first = (await follower.probe()).noticed  # the new file is not there yet
    file.write_text(f"{at} NVRM: Xid (PCI:0000:17:00): 31, pid=7, name=x, Ch 00000008\n")
    second = (await follower.probe()).noticed
    assert [one.code for one in (*first, *second)] == [79, 31]
    assert follower.away == ""
    await follower.close()


async def test_a_line_without_an_end_does_not_hold_up_the_others(tmp_path: Path) -> None:
    file = tmp_path / "kern.log"
    file.write_text("x" * 1_200_000 + f"\n[{time.monotonic():.6f}] {XID}\n")
    follower = KernelLogSource(tmp_path / "place", boot_id="b", clock=ManualClock(), path=file)
    noticed = [one.code for _ in range(4) for one in (await follower.probe()).noticed]
    assert noticed == [79]
    await follower.close()


@pytest.mark.skipif(not os.access(DEVICE, os.R_OK), reason=f"{DEVICE} is not readable here")
async def test_the_machines_own_log_is_read_to_its_end(tmp_path: Path) -> None:
    follower = KernelLogSource(tmp_path / "place", boot_id="b", clock=ManualClock())
    await follower.probe()
    assert follower.away == "" or "cannot be opened" in follower.away  # readable, and yet not for everybody
    await follower.close()
