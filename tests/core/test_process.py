"""Children die with us, in order when asked and at once when we are killed."""

import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from core.embedded.process import (
    Account,
    StartError,
    can_search,
    free_port,
    is_free,
    last_lines,
    service_account,
    spawn,
    stop,
)
from tests.waiting import DEADLINE_SECONDS, is_gone, killed_when_silent, wait_until

ROOT = Path(__file__).resolve().parents[2]


def test_output_goes_to_the_log_and_group_is_its_own(tmp_path: Path) -> None:
    log = tmp_path / "log"
    child = spawn([sys.executable, "-c", "import os; print(os.getpgid(0) == os.getpid())"], log=log)
    assert child.wait(DEADLINE_SECONDS) == 0
    assert last_lines(log) == ["True"]


def test_child_dies_when_its_parent_is_killed(tmp_path: Path) -> None:
    script = (
        "import sys, time; from pathlib import Path; from core.embedded.process import spawn\n"
        "child = spawn([sys.executable, '-c', 'import time; time.sleep(600)'], log=Path(sys.argv[1]) / 'log')\n"
        "print(child.pid, flush=True); time.sleep(600)"
    )
    parent = subprocess.Popen([sys.executable, "-c", script, tmp_path], cwd=ROOT, stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    with killed_when_silent(parent):
        pid = int(parent.stdout.readline())
    assert psutil.pid_exists(pid)
    parent.kill()
    parent.wait()
    parent.stdout.close()
    wait_until(lambda: is_gone(pid), "the child outlived its parent")


def test_stop_kills_what_ignores_it_and_its_children(tmp_path: Path) -> None:
    script = (
        "import signal, subprocess, sys, time; signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        "child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'])\n"
        "print(child.pid, flush=True); time.sleep(600)"
    )
    log = tmp_path / "log"
    child = spawn([sys.executable, "-c", script], log=log)
    wait_until(lambda: bool(last_lines(log)), "no output")
    grandchild = int(last_lines(log)[0])
    assert stop(child, grace_seconds=0.1) == -signal.SIGKILL
    wait_until(lambda: is_gone(grandchild), "the grandchild was left")


def test_unknown_program_is_a_sentence_in_the_log(tmp_path: Path) -> None:
    child = spawn(["/nowhere/program"], log=tmp_path / "log")
    assert child.wait(DEADLINE_SECONDS) == 1
    assert "/nowhere/program cannot be started" in last_lines(tmp_path / "log")[-1]


def test_log_that_cannot_be_written_is_a_start_error(tmp_path: Path) -> None:
    with pytest.raises(StartError, match="cannot be started"):
        spawn(["true"], log=tmp_path / "absent" / "log")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root changes its user")
def test_child_runs_as_the_service_user_and_passes_a_closed_folder(tmp_path: Path) -> None:
    account = service_account()
    assert account is not None
    closed = tmp_path / "closed"
    inside = closed / "inside"
    inside.mkdir(parents=True)
    os.chown(inside, account.uid, account.gid)
    closed.chmod(0o700)
    assert not can_search(inside, account)
    script = f"import os; open({str(inside / 'made')!r}, 'w'); print(os.getuid(), os.getgid(), os.getgroups())"
    log = tmp_path / "log"
    command = ["/usr/bin/env", "python3", "-c", script]
    child = spawn(command, log=log, account=account, keep_search=True, cwd=Path("/"))
    assert child.wait(DEADLINE_SECONDS) == 0, last_lines(log)
    assert last_lines(log) == [f"{account.uid} {account.gid} []"]
    assert (inside / "made").stat().st_uid == account.uid
    refused = spawn(command, log=tmp_path / "log2", account=account, cwd=Path("/"))
    assert refused.wait(DEADLINE_SECONDS) == 1


@pytest.mark.skipif(os.geteuid() == 0, reason="root has a service user")
def test_no_service_user_unless_root() -> None:
    assert service_account() is None


def test_service_user_that_cannot_be_made_is_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("core.embedded.process.os.geteuid", lambda: 0)
    monkeypatch.setattr("core.embedded.process.shutil.which", lambda *_, **__: None)
    with pytest.raises(StartError, match="make it by hand, run as another user, or set DATABASE_URL"):
        service_account("gatehouse-none")


def test_closed_parent_is_seen(tmp_path: Path) -> None:
    stranger = Account("stranger", 54321, 54321)
    inside = tmp_path / "a" / "b"
    inside.mkdir(parents=True)
    (tmp_path / "a").chmod(0o700)
    assert not can_search(inside, stranger)


def test_next_free_port_is_taken() -> None:
    with socket.socket() as busy:
        busy.bind(("127.0.0.1", 0))
        busy.listen()
        port = busy.getsockname()[1]
        assert not is_free(port)
        chosen = free_port(preferred=port, taken=frozenset({port + 1}))
    assert chosen > port + 1
    assert is_free(free_port())


def test_no_free_port_is_a_sentence() -> None:
    with pytest.raises(StartError, match="no free port from 65535"):
        free_port(preferred=65535, taken=frozenset({65535}))


def test_last_lines_are_the_last_and_a_missing_log_has_none(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text("".join(f"{n}\n" for n in range(100)))
    assert last_lines(log, 2) == ["98", "99"]
    assert last_lines(tmp_path / "absent") == []
