"""The whole installation on this machine: up, asked, stopped, killed hard, up again. Real parts throughout."""

import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from tests.waiting import is_gone, wait_until

ROOT = Path(__file__).resolve().parents[2]
READY_DEADLINE_SECONDS = 240.0
STOP_DEADLINE_SECONDS = 120.0
KILLED_DEADLINE_SECONDS = 5.0  # until a process that was killed has been given its last turn

pytestmark = pytest.mark.slow


class House:
    """A var folder and the `up` that runs on it."""

    def __init__(self, var_dir: Path) -> None:
        self.var_dir = var_dir
        self.environ = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith(("GATEHOUSE_", "VALKEY_")) and name != "DATABASE_URL"
        } | {"GATEHOUSE_VAR_DIR": str(var_dir)}
        self.process: subprocess.Popen[bytes] | None = None
        self.seen: set[psutil.Process] = set()  # by number and start: numbers are given again
        self._outputs = 0

    def command(self, *arguments: str) -> "subprocess.CompletedProcess[str]":
        command = [sys.executable, "manage.py", *arguments]
        return subprocess.run(command, cwd=ROOT, env=self.environ, capture_output=True, text=True, timeout=120)

    def up(self) -> str:
        """Start it, wait until it says that it is ready, and return what it said."""
        self._outputs += 1
        output = self.var_dir.with_name(f"{self.var_dir.name}-{self._outputs}.out")
        with output.open("w") as file:
            self.process = subprocess.Popen(
                [sys.executable, "manage.py", "up"],
                cwd=ROOT,
                env=self.environ,
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.STDOUT,
            )
        process = self.process

        def ready() -> bool:
            self._look()
            assert process.poll() is None, output.read_text()
            return "State: make status" in output.read_text()

        wait_until(ready, "it did not come up", deadline_seconds=READY_DEADLINE_SECONDS)
        return output.read_text()

    def _look(self) -> None:
        """Remember every process of this house, engines included: all carry its folder in their environment."""
        if self.process is not None:
            self.seen.update(psutil.Process(self.process.pid).children(recursive=True))

    def left(self) -> list[psutil.Process]:
        """Those seen that have not ended."""
        return [seen for seen in self.seen if seen.is_running() and not is_gone(seen.pid)]

    def pid_of(self, name: str) -> int:
        state = json.loads((self.var_dir / "run" / "processes.json").read_text())
        return int(next(item["pid"] for item in state if item["name"] == name))

    def engines(self) -> list[psutil.Process]:
        """Engine processes that agents of this folder started."""
        found = []
        for process in psutil.process_iter(["cmdline"]):
            if "gpupool.engines.llamacpp.serve" in (process.info["cmdline"] or []):
                try:
                    environ = process.environ()
                except psutil.Error:
                    continue
                if any(str(self.var_dir) in value for value in environ.values()):
                    found.append(process)
        return found

    def signal(self, number: signal.Signals) -> int:
        assert self.process is not None
        self._look()
        self.seen.update(self.engines())
        self.process.send_signal(number)
        return self.process.wait(STOP_DEADLINE_SECONDS)


@pytest.fixture(scope="module")
def house(tmp_path_factory: pytest.TempPathFactory) -> Iterator[House]:
    made = House(tmp_path_factory.mktemp("house") / "var")
    yield made
    if made.process is not None and made.process.poll() is None:
        made.process.terminate()
        made.process.wait(STOP_DEADLINE_SECONDS)
    made.command("down")


def _curl(said: str, **environ: str) -> "subprocess.CompletedProcess[str]":
    """Paste the printed line into a shell, with a deadline."""
    line = next(line for line in said.splitlines() if line.startswith("curl "))
    return subprocess.run(
        ["sh", "-c", f"{line} --silent --show-error --max-time 60"],
        env={**os.environ, **environ},
        capture_output=True,
        text=True,
        timeout=90,
    )


def _is_chat_completion(answer: str) -> bool:
    body = json.loads(answer)
    return bool(body["object"] == "chat.completion" and body["usage"]["completion_tokens"] > 0)


@pytest.mark.skipif(shutil.which("curl") is None, reason="curl is not installed")
def test_from_nothing_to_an_answer_and_back_to_nothing(house: House) -> None:
    """One long story, because each start takes seconds: its chapters are the promises of `make up`."""
    began = time.monotonic()
    said = house.up()
    first_seconds = time.monotonic() - began
    assert [int(step) for step in re.findall(r"^\[(\d)/8\]", said, re.MULTILINE)] == [2, 3, 4, 5, 6, 7, 8]
    first = _curl(said)
    assert _is_chat_completion(first.stdout), first.stdout + first.stderr
    key = re.search(r"sk-gh-\S+", said)
    assert key is not None
    logs = "".join(path.read_text(errors="replace") for path in (house.var_dir / "log").glob("*.log"))
    assert key.group().strip("'") not in logs

    # A second `up` on the same folder says so; status is well.
    again = house.command("up")
    assert again.returncode == 1
    assert "already runs in this clone" in again.stderr
    status = house.command("status")
    if status.returncode:  # it leaves each door two seconds, which a busy machine may exceed once
        status = house.command("status")
    assert status.returncode == 0, status.stdout

    # What dies is started again.
    drain = house.pid_of("drain")
    os.kill(drain, signal.SIGKILL)
    wait_until(lambda: house.pid_of("drain") != drain, "the drain was not started again")

    # Killed hard: everything but the engine is gone within seconds, and the next start adopts that one.
    engines = house.engines()
    assert len(engines) == 1
    house.signal(signal.SIGKILL)
    wait_until(lambda: set(house.left()) <= set(engines), "processes outlived a killed `up`")
    assert house.command("status").returncode == 1
    began = time.monotonic()
    said = house.up()
    # 20 s on an idle machine, and tests do not have one: on a busy one the first start tells what is long.
    assert time.monotonic() - began < max(60.0, first_seconds)
    assert house.engines() == engines

    # The key is a hash now: the line takes it from the environment, and a new one can be had.
    assert "$GATEHOUSE_API_KEY" in said
    assert not re.search(r"sk-gh-\w", said)
    rotated = house.command("demo_key").stdout.strip()
    second = _curl(said, GATEHOUSE_API_KEY=rotated)
    assert _is_chat_completion(second.stdout), second.stdout + second.stderr
    wait_until(
        lambda: "invalid_api_key" in _curl(said, GATEHOUSE_API_KEY=shlex.split(key.group())[0].strip("'")).stdout,
        "the old key still works",
    )

    # Ctrl-C: nothing is left, engines included.
    assert house.signal(signal.SIGINT) == 0
    wait_until(lambda: house.left() == [], "processes outlived `up`", deadline_seconds=KILLED_DEADLINE_SECONDS)
    assert house.engines() == []
    assert not (house.var_dir / "run" / "environment.json").exists()
    assert house.command("down").stdout == "Gatehouse is not running.\n"


@pytest.mark.parametrize("step", [5, 7])
def test_stopped_in_the_middle_of_starting_leaves_nothing(house: House, step: int) -> None:
    output = house.var_dir.with_name(f"step-{step}.out")
    with output.open("w") as file:
        house.process = subprocess.Popen(
            [sys.executable, "manage.py", "up"], cwd=ROOT, env=house.environ, stdout=file, stderr=subprocess.STDOUT
        )
    wait_until(lambda: f"[{step}/8]" in output.read_text(), f"step {step} did not come", deadline_seconds=120)
    assert house.signal(signal.SIGINT) == 0, output.read_text()
    wait_until(lambda: house.left() == [], "processes outlived `up`", deadline_seconds=KILLED_DEADLINE_SECONDS)
    assert house.engines() == []


def test_data_of_another_major_is_refused(tmp_path: Path) -> None:
    house = House(tmp_path / "var")
    (house.var_dir / "postgres").mkdir(parents=True)
    (house.var_dir / "postgres" / "PG_VERSION").write_text("15\n")
    done = house.command("up")
    assert done.returncode == 1
    assert "holds data of PostgreSQL 15" in done.stderr
    assert "Traceback" not in done.stderr
    assert house.command("status").returncode == 1


@pytest.mark.parametrize(
    ("variable", "value", "said"),
    [
        ("GATEHOUSE_RELAY_PORT", "99999", "GATEHOUSE_RELAY_PORT='99999' is above 65535"),
        ("DATABASE_URL", "mysql://h/n", "DATABASE_URL must look like"),
        ("DATABASE_URL", "postgresql://u:p@127.0.0.1:1/n", "PostgreSQL does not answer there"),
        ("GATEHOUSE_VAR_DIR", "/proc/var", "/proc/var cannot be written"),
    ],
)
def test_wrong_setting_is_a_sentence(tmp_path: Path, variable: str, value: str, said: str) -> None:
    house = House(tmp_path / "var")
    house.environ[variable] = value
    done = house.command("up")
    assert done.returncode == 1
    assert said in done.stderr
    assert "Traceback" not in done.stderr
