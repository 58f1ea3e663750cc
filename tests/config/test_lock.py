import os
import subprocess
import sys
from pathlib import Path

import pytest

from config.up.lock import AlreadyRunning, VarLock
from tests.waiting import killed_when_silent

ROOT = Path(__file__).resolve().parents[2]


def test_second_holder_is_told_who_holds_it(tmp_path: Path) -> None:
    first, second = VarLock(tmp_path / "var"), VarLock(tmp_path / "var")
    first.acquire()
    assert second.holder() == os.getpid()
    with pytest.raises(AlreadyRunning, match=f"process {os.getpid()}"):
        second.acquire()
    first.release()
    assert second.holder() is None
    second.acquire()
    second.release()


def test_killed_holder_leaves_it_free(tmp_path: Path) -> None:
    script = (
        "import sys, time; from pathlib import Path; from config.up.lock import VarLock\n"
        "VarLock(Path(sys.argv[1])).acquire(); print('held', flush=True); time.sleep(600)"
    )
    holder = subprocess.Popen([sys.executable, "-c", script, tmp_path], cwd=ROOT, stdout=subprocess.PIPE, text=True)
    assert holder.stdout is not None
    # The lock object is dropped at once: the lock must not be.
    with killed_when_silent(holder):
        assert holder.stdout.readline() == "held\n"
    lock = VarLock(tmp_path)
    assert lock.holder() == holder.pid
    holder.kill()
    holder.wait()
    holder.stdout.close()
    assert lock.holder() is None
    lock.acquire()
    lock.release()
