"""CPU of a process tree: children count, also those that have ended."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

if not Path("/proc/self/stat").exists():
    pytest.skip("needs /proc", allow_module_level=True)

from bench.cpu import cpu_seconds, process_tree, rss_bytes
from tests.waiting import killed_when_silent

_SPIN = "import time\nwhile time.process_time() < 0.2: pass\n"
_SPIN_AND_STAY = _SPIN + "print(1, flush=True)\ninput()\n"
_PARENT = f"""
import subprocess, sys
subprocess.run([sys.executable, "-c", {_SPIN!r}])
child = subprocess.Popen([sys.executable, "-c", {_SPIN_AND_STAY!r}], stdin=subprocess.PIPE)
input()
child.communicate(b"x")
"""


def test_children_count_living_or_ended() -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", _PARENT], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    with killed_when_silent(process):
        assert process.stdout.readline() == "1\n"  # the living child has spent its time, the other has ended
    assert len(process_tree(process.pid)) == 2
    assert cpu_seconds(process.pid) >= 0.38
    assert rss_bytes(process.pid) > 1_000_000
    process.communicate("x\n", timeout=60)


def test_a_process_that_is_gone_has_no_tree() -> None:
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    assert process_tree(process.pid) == {}
    assert cpu_seconds(process.pid) == 0


def test_our_own_tree_contains_us() -> None:
    assert os.getpid() in process_tree(os.getpid())
