"""The supervisor: starts in order, restarts with back-off, gives up on what never lived, stops in reverse."""

import json
import os
import signal
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from config.up.supervisor import (
    START_ATTEMPTS,
    STEADY_SECONDS,
    ProcessService,
    Supervisor,
    end_leftovers,
    restart_delay_seconds,
    running_processes,
)
from core.clock import ManualClock
from core.embedded.process import StartError
from tests.waiting import is_gone, wait_until

ROOT = Path(__file__).resolve().parents[2]


@dataclass
class Double:
    """A service that lives and dies as told."""

    name: str
    log: Path
    events: list[str]
    status: int | None = None
    pid: int | None = None
    refuses: bool = False
    starts: int = field(default=0, init=False)

    def start(self) -> None:
        self.starts += 1
        if self.refuses:
            raise StartError(f"{self.name} has no port\nand more")
        self.status = None
        self.events.append(f"start {self.name}")

    def poll(self) -> int | None:
        return self.status

    def stop(self, *, hard: Callable[[], bool]) -> None:
        self.events.append(f"stop {self.name}{' hard' if hard() else ''}")


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def supervisor(tmp_path: Path, clock: ManualClock) -> Supervisor:
    return Supervisor(tmp_path / "processes.json", clock=clock.monotonic)


@pytest.fixture
def double(tmp_path: Path) -> Double:
    return Double("relay", tmp_path / "relay.log", [])


@pytest.mark.parametrize(("failures", "seconds"), [(1, 0.5), (2, 1.0), (4, 4.0), (7, 30.0), (1000, 30.0)])
def test_delay_doubles_to_half_a_minute(failures: int, seconds: float) -> None:
    assert restart_delay_seconds(failures) == seconds


def test_dead_service_is_started_again_after_the_delay(
    supervisor: Supervisor, clock: ManualClock, double: Double
) -> None:
    supervisor.start(double)
    double.status = -signal.SIGKILL
    assert supervisor.tick() == ["relay ended (SIGKILL); starting it again in 0.5 s"]
    clock.advance(0.4)
    supervisor.tick()
    assert double.starts == 1
    clock.advance(0.1)
    assert supervisor.tick() == ["relay was started again"]
    assert double.starts == 2
    assert supervisor.tick() == []


def test_service_that_lived_long_starts_again_quickly(
    supervisor: Supervisor, clock: ManualClock, double: Double
) -> None:
    supervisor.start(double)
    supervisor.settled = True
    for _ in range(6):
        double.status = 1
        supervisor.tick()
        clock.advance(30.0)
        supervisor.tick()
    clock.advance(STEADY_SECONDS + 1)
    double.status = 1
    assert supervisor.tick() == ["relay ended (exit status 1); starting it again in 0.5 s"]


def test_service_that_never_lives_ends_the_start_with_its_log(
    supervisor: Supervisor, clock: ManualClock, double: Double
) -> None:
    double.log.write_text("".join(f"line {n}\n" for n in range(30)))
    supervisor.start(double)
    for _ in range(START_ATTEMPTS - 1):
        double.status = 1
        supervisor.tick()
        clock.advance(30.0)
        supervisor.tick()
    double.status = 1
    with pytest.raises(StartError) as caught:
        supervisor.tick()
    said = str(caught.value).splitlines()
    assert said[0].startswith("relay does not stay up")
    assert said[1:] == [f"line {n}" for n in range(10, 30)]


def test_settled_house_never_gives_up(supervisor: Supervisor, clock: ManualClock, double: Double) -> None:
    supervisor.start(double)
    supervisor.settled = True
    double.status, double.refuses = 1, True
    for _ in range(10):
        supervisor.tick()
        clock.advance(30.0)
    double.refuses = False
    clock.advance(30.0)
    supervisor.tick()
    assert double.events == ["start relay", "start relay"]


def test_stops_in_reverse_and_keeps_what_it_is_told_to(supervisor: Supervisor, tmp_path: Path) -> None:
    events: list[str] = []
    for name in ("database", "web", "relay"):
        supervisor.start(Double(name, tmp_path / name, events))
    supervisor.stop_all(keep=("database",))
    assert supervisor.names == ["database"]
    supervisor.stop_all(hard=lambda: True)
    assert events[3:] == ["stop relay", "stop web", "stop database hard"]
    assert not (tmp_path / "processes.json").exists()


def _sleeper(tmp_path: Path, script: str = "import time; time.sleep(600)") -> ProcessService:
    return ProcessService("sleeper", [sys.executable, "-c", script], tmp_path / "log", os.environ, ROOT)


def test_real_process_is_restarted_after_a_kill(tmp_path: Path) -> None:
    supervisor = Supervisor(tmp_path / "processes.json")
    supervisor.settled = True
    service = _sleeper(tmp_path)
    supervisor.start(service)
    first = service.pid
    assert first is not None
    os.kill(first, signal.SIGKILL)

    def restarted() -> bool:
        supervisor.tick()
        return service.pid != first

    wait_until(restarted, "it was not started again")
    second = service.pid
    assert second is not None
    supervisor.stop_all()
    assert is_gone(second)


def test_hard_stop_does_not_wait_for_the_grace(tmp_path: Path) -> None:
    script = (
        "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('deaf', flush=True); time.sleep(600)"
    )
    service = _sleeper(tmp_path, script)
    service.grace_seconds = 600.0
    service.start()
    pid = service.pid
    assert pid is not None
    wait_until(lambda: "deaf" in service.log.read_text(), "it did not come up")
    service.stop(hard=lambda: True)
    assert is_gone(pid)


def test_leftovers_of_a_killed_start_are_ended_and_strangers_are_not(tmp_path: Path) -> None:
    state_file = tmp_path / "processes.json"
    supervisor = Supervisor(state_file)
    ours = _sleeper(tmp_path)
    supervisor.start(ours)
    state = json.loads(state_file.read_text())
    stranger = {"name": "stranger", "pid": os.getpid(), "created": 1.0, "failures": 0, "log": ""}
    state_file.write_text(json.dumps([*state, stranger]))
    assert [seen.alive for seen in running_processes(state_file)] == [True, False]
    assert end_leftovers(state_file) == 1
    assert ours.pid is not None
    assert is_gone(ours.pid)
    assert not state_file.exists()
    assert end_leftovers(state_file) == 0
