"""`manage.py relay` as a process."""

import os
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import httpx2 as httpx
import prometheus_client.values
import pytest

from config.management.commands.relay import share_metrics
from tenants.services.prices import fix_currency
from tests.house import TestHouse
from tests.house import house as house
from tests.ports import free_port
from tests.waiting import wait_until

_ROOT = Path(__file__).resolve().parents[3]


def run_relay(tmp_path: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    environ = {**os.environ, "GATEHOUSE_VAR_DIR": str(tmp_path / "var"), "GATEHOUSE_LOG_LEVEL": "WARNING"}
    command = [sys.executable, str(_ROOT / "manage.py"), "relay", *arguments]
    return subprocess.run(command, env=environ, capture_output=True, text=True, timeout=60, check=False)


def test_a_port_that_is_taken_ends_the_start_with_a_sentence(tmp_path: Path) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        ended = run_relay(tmp_path, "--port", str(port))
    assert ended.returncode == 1
    assert f"cannot listen on 127.0.0.1 port {port}" in ended.stderr
    assert "--port or GATEHOUSE_RELAY_PORT" in ended.stderr
    assert "Traceback" not in ended.stderr
    assert list((tmp_path / "var").glob("spool/*")) == []  # nothing half-started


def test_a_folder_that_cannot_be_written_ends_the_start_with_a_sentence(tmp_path: Path) -> None:
    (tmp_path / "var").mkdir()
    (tmp_path / "var" / "prometheus").write_text("a file in the way")
    ended = run_relay(tmp_path, "--port", str(free_port()))
    assert ended.returncode == 1
    assert "metrics cannot be kept under" in ended.stderr
    assert "Traceback" not in ended.stderr


@pytest.mark.parametrize(("fresh", "kept"), [(True, []), (False, ["counter_{dead}", "gauge_livesum_{own}"])])
def test_what_dead_relays_said_of_the_present_is_forgotten(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fresh: bool, kept: list[str]
) -> None:
    values: Any = prometheus_client.values
    monkeypatch.setattr(values, "ValueClass", values.ValueClass)  # put back afterwards, as the variable is
    monkeypatch.setenv("PROMETHEUS_MULTIPROC_DIR", "")
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    pids = {"dead": ended.pid, "own": os.getpid()}
    for name in ("counter_{dead}", "gauge_livesum_{dead}", "gauge_livesum_{own}"):
        (tmp_path / (name.format(**pids) + ".db")).touch()
    share_metrics(tmp_path, fresh=fresh)
    assert sorted(file.stem for file in tmp_path.iterdir()) == sorted(name.format(**pids) for name in kept)
    assert os.environ["PROMETHEUS_MULTIPROC_DIR"] == str(tmp_path)


def test_another_currency_than_the_installations_ends_the_start_with_a_sentence(house: TestHouse) -> None:
    environ = {**house.environ, "GATEHOUSE_CURRENCY": "JPY"}
    command = [sys.executable, str(_ROOT / "manage.py"), "relay", "--port", str(free_port())]
    fix_currency("USD")
    ended = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=60, check=False)
    assert ended.returncode == 1
    assert "begun in USD" in ended.stderr
    assert "Traceback" not in ended.stderr


def test_metrics_of_requests_are_shown(house: TestHouse) -> None:
    with house.client() as client:
        body = {"model": "tiny", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 3}
        answer = client.post("/v1/chat/completions", json=body)
        assert answer.status_code == 200
        assert client.post("/v1/chat/completions", json={**body, "model": "none"}).status_code == 404
        shown = client.get("/metrics")
    assert shown.headers["content-type"].startswith("text/plain")
    assert 'gatehouse_requests_total{api="chat",door="relay",model="tiny",outcome="success"} 1.0' in shown.text
    assert 'gatehouse_refusals_total{code="model_not_found",door="relay"} 1.0' in shown.text


@pytest.mark.shows("G24")
def test_an_alias_hides_what_the_engine_calls_itself(house: TestHouse) -> None:
    with house.client() as client:
        answer = client.post("/v1/completions", json={"model": "tiny", "prompt": "hi", "max_tokens": 2})
    assert answer.json()["model"] == "tiny"
    assert answer.headers["x-request-id"]


def test_a_signal_ends_it_in_order_with_what_was_under_way(house: TestHouse) -> None:
    body = {"model": "tiny", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 400, "stream": True}
    with house.client() as client, client.stream("POST", "/v1/chat/completions", json=body) as answer:
        lines = answer.iter_lines()
        assert next(lines).startswith("data: ")
        os.kill(house.pid("relay"), signal.SIGTERM)
        rest = [line for line in lines if line]
        assert rest[-1] == "data: [DONE]"

    def ended() -> bool:
        os.kill(house.pid("relay"), signal.SIGTERM)  # it is over: who asks again and again breaks nothing off
        return house._processes["relay"].poll() is not None

    wait_until(ended, "the relay's end")
    assert house.stop("relay") == 0, house.log("relay").read_text()
    row = house.ledger_row(answer.headers["x-request-id"])
    assert row.outcome == "success"
    with pytest.raises(httpx.TransportError):
        httpx.get(f"{house.relay_url}/healthz")
    house.start("relay")
