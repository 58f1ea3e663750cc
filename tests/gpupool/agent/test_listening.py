"""SIGUSR1 goes to processes that handle it by the launch shim, and to no other: it would end them."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from gpupool.agent.listening import listens, shim_path, signal_listeners
from tests.gpupool.processes import eventually
from tests.waiting import killed_when_silent

pytestmark = pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="this machine has no /proc")

TORCH = """
# Stands in for torch: says when its cache is emptied and which gradients are clipped.
import sys, types
class cuda:
    @staticmethod
    def is_initialized(): return True
    @staticmethod
    def empty_cache(): print("emptied", flush=True)
class nn:
    class utils:
        @staticmethod
        def clip_grad_norm_(parameters, norm): print("clipped", parameters, norm, flush=True)
"""


@contextmanager
def an_engine(folder: Path, code: str, *, shim: bool = True) -> Iterator["subprocess.Popen[str]"]:
    (folder / "torch.py").write_text(TORCH)
    python_path = shim_path(str(folder)) if shim else str(folder)
    process = subprocess.Popen(
        [sys.executable, "-c", code + "\nprint('ready', flush=True)\nwhile True: time.sleep(0.05)"],
        env={"PATH": os.environ["PATH"], "PYTHONPATH": python_path},
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None
        with killed_when_silent(process):
            line = process.stdout.readline()
            while line.strip() != "ready":
                assert line, "the process has ended"
                line = process.stdout.readline()
            yield process
    finally:
        process.kill()
        process.wait(10)


def said(process: "subprocess.Popen[str]") -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


@pytest.mark.shows("R152")
def test_a_process_under_the_shim_empties_its_cache_and_goes_on(tmp_path: Path) -> None:
    with an_engine(tmp_path, "import time, torch") as process:
        assert listens(process.pid)
        assert signal_listeners([process.pid]) == 1
        assert said(process) == "emptied"
        assert signal_listeners([process.pid]) == 1
        assert said(process) == "emptied"
        assert process.poll() is None


def test_gradients_that_a_trainer_registered_are_clipped(tmp_path: Path) -> None:
    code = "import time, torch, gatehouse_shim\ngatehouse_shim.clip_on_signal([1, 2], 0.5)"
    with an_engine(tmp_path, code) as process:
        signal_listeners([process.pid])
        assert said(process) == "clipped [1, 2] 0.5"


def test_a_process_without_the_shim_is_not_signalled(tmp_path: Path) -> None:
    with an_engine(tmp_path, "import time", shim=False) as process:
        assert not listens(process.pid)
        assert signal_listeners([process.pid]) == 0
        assert process.poll() is None
    handles = "import signal, time\nsignal.signal(signal.SIGUSR1, lambda *_: None)"
    with an_engine(tmp_path, handles, shim=False) as process:
        assert not listens(process.pid)  # what it does with the signal is its own


def test_whoever_handles_the_signal_after_the_shim_keeps_it(tmp_path: Path) -> None:
    code = "import signal, sys, time\nsignal.signal(signal.SIGUSR1, lambda *_: sys.exit(3))"
    with an_engine(tmp_path, code) as process:
        assert not listens(process.pid)
        assert signal_listeners([process.pid]) == 0


def test_workers_listen_too_whether_they_are_forked_or_started(tmp_path: Path) -> None:
    code = (
        "import os, subprocess, sys, time, torch\n"
        "child = os.fork()\n"
        "if child == 0:\n"
        "    while True: time.sleep(0.05)\n"
        "other = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(60)'])\n"
        "print(child, other.pid, flush=True)"
    )
    (tmp_path / "torch.py").write_text(TORCH)
    process = subprocess.Popen(
        [sys.executable, "-c", code + "\nwhile True: time.sleep(0.05)"],
        env={"PATH": os.environ["PATH"], "PYTHONPATH": shim_path(str(tmp_path))},
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        forked, started = map(int, said(process).split())
        eventually(lambda: listens(forked) and listens(started))
        assert signal_listeners([forked]) == 1
        assert said(process) == "emptied"
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait(10)


def test_a_sitecustomize_of_the_machines_own_still_runs(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text("import sys\nsys.here = True")
    with an_engine(tmp_path, "import sys, time\nassert sys.here") as process:
        assert listens(process.pid)
