"""The whole of `make bench`, with few requests: relay, drain and servers of its own, nginx where installed."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from bench.environments import ENVIRONMENTS, folder_of
from bench.peers import PEERS, Peer, system_binary
from bench.plan import QUICK, Plan
from bench.proxies import Proxy
from bench.run import NAMES, one_per_process, parser, plan_of, rates_of
from bench.tools import missing_parts

ROOT = Path(__file__).resolve().parents[2]


def is_there(peer: Peer) -> bool:
    """Whether a quick run measures it: it installs nothing."""
    if not peer.requirements:
        return system_binary(peer.name) is not None
    return (folder_of(peer.name, peer.requirements, under=ENVIRONMENTS) / "installed").exists()


@pytest.mark.slow
def test_quick_run_measures_every_proxy_without_a_failure(tmp_path: Path) -> None:
    if reason := missing_parts():
        pytest.skip(reason)
    output = tmp_path / "result.json"
    ours = ("DATABASE_URL", "VALKEY_", "GATEHOUSE_", "DJANGO_")
    environ = {name: value for name, value in os.environ.items() if not name.startswith(ours)}
    command = [sys.executable, "-m", "bench", "--quick", "--output", str(output)]
    run = subprocess.run(command, cwd=ROOT, env=environ, capture_output=True, text=True, timeout=400, check=False)
    assert run.returncode == 0, run.stderr[-2000:] + run.stdout[-2000:]
    result = json.loads(output.read_text())
    assert result["failures"] == []
    assert set(result["proxies"]) == {"gatehouse", "gatehouse_limited"} | {p.name for p in PEERS if is_there(p)}
    for peer in PEERS:
        assert is_there(peer) or any(note.startswith(f"{peer.name} is skipped") for note in result["notes"])
    for entry in result["proxies"].values():
        assert {"request_us", "event_us", "burst_event_us", "saturated_us", "ttft_added_p99_ms"} <= set(entry)
    assert (
        result["proxies"]["gatehouse"]["slow_streams"] | {"count": 20, "failed": 0}
        == (result["proxies"]["gatehouse"]["slow_streams"])
    )
    assert "bar: CPU per request, x nginx: " in run.stdout


def test_without_a_compiler_it_is_skipped_with_a_word(tmp_path: Path) -> None:
    environ = {**os.environ, "PATH": str(tmp_path)}
    run = subprocess.run(
        [sys.executable, "-m", "bench"], cwd=ROOT, env=environ, capture_output=True, text=True, timeout=60, check=False
    )
    assert run.returncode == 0
    assert run.stdout.startswith("bench skipped: gcc and make are needed")


def test_some_can_be_left_out_and_memory_is_watched_unless_quick() -> None:
    options = parser().parse_args(["--only", "gatehouse", "nginx"])
    assert (options.only, options.memory, options.profile) == (["gatehouse", "nginx"], None, False)
    assert parser().parse_args([]).only == list(NAMES)
    assert parser().parse_args(["--quick", "--memory"]).memory is True
    assert parser().parse_args(["--no-memory"]).memory is False


def test_what_is_asked_for_stays_bounded() -> None:
    assert plan_of(parser().parse_args(["--quick"])) == QUICK
    plan = plan_of(parser().parse_args(["--rounds", "99", "--slow-streams", "9999"]))
    assert (plan.rounds, plan.slow_streams) == (20, 2000)
    assert plan.requests == Plan().requests


def test_a_proxy_that_cannot_carry_the_rate_gets_its_own() -> None:
    half = {"gatehouse": 2000.0, "nginx": 20_000.0, "gatehouse_limited": 1600.0, "litellm": 100.0}
    rates = rates_of(half, half["gatehouse"])
    assert rates == {"gatehouse": 2000.0, "nginx": 2000.0, "gatehouse_limited": 2000.0, "litellm": 100.0}


def test_a_process_seen_with_two_keys_is_crowded_once() -> None:
    proxies = [Proxy("nginx", 1, 10), Proxy("gatehouse", 2, 20), Proxy("gatehouse_limited", 2, 20)]
    assert [proxy.name for proxy in one_per_process(proxies)] == ["nginx", "gatehouse"]
