"""The whole of `make bench`, with few requests: relay, drain and servers of its own, nginx where installed."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from bench.proxies import nginx_binary
from bench.tools import missing_parts

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.slow
def test_quick_run_measures_every_proxy_without_a_failure(tmp_path: Path) -> None:
    if reason := missing_parts():
        pytest.skip(reason)
    output = tmp_path / "result.json"
    ours = ("DATABASE_URL", "VALKEY_", "GATEHOUSE_", "DJANGO_")
    environ = {name: value for name, value in os.environ.items() if not name.startswith(ours)}
    command = [sys.executable, "-m", "bench", "--quick", "--output", str(output)]
    run = subprocess.run(command, cwd=ROOT, env=environ, capture_output=True, text=True, timeout=180, check=False)
    assert run.returncode == 0, run.stderr[-2000:] + run.stdout[-2000:]
    result = json.loads(output.read_text())
    assert result["failures"] == []
    names = {"gatehouse", "gatehouse_limited"} | ({"nginx"} if nginx_binary() else set())
    assert set(result["proxies"]) == names
    for entry in result["proxies"].values():
        assert {"request_us", "event_us", "saturated_us", "ttft_added_p99_ms"} <= set(entry)
    assert (
        result["proxies"]["gatehouse"]["slow_streams"] | {"count": 20, "failed": 0}
        == (result["proxies"]["gatehouse"]["slow_streams"])
    )
    assert "bar: gatehouse at most 5.0 x nginx" in run.stdout


def test_without_a_compiler_it_is_skipped_with_a_word(tmp_path: Path) -> None:
    environ = {**os.environ, "PATH": str(tmp_path)}
    run = subprocess.run(
        [sys.executable, "-m", "bench"], cwd=ROOT, env=environ, capture_output=True, text=True, timeout=60, check=False
    )
    assert run.returncode == 0
    assert run.stdout.startswith("bench skipped: gcc and make are needed")
