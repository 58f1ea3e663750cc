"""The profile is a help, not a condition: without a profiler the bench says so."""

import os
import subprocess
from pathlib import Path

import pytest

from bench.plan import QUICK
from bench.profile import flat, profile, profilers
from bench.proxies import Proxy

REPORT = """\
# Samples: 3K of event 'cpu-clock'
#
# Overhead  Shared Object  Symbol

    12.50%  python3.11     [.] _PyEval_EvalFrameDefault
     3.10%  [kernel]       [k] tcp_sendmsg

"""


def test_without_a_profiler_a_note_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert profilers() == []
    notes = profile(Proxy("gatehouse", 1, os.getpid()), QUICK, tmp_path / "results", rate=10, cpus=None)
    assert notes == ["no profile: neither py-spy nor perf is installed"]
    assert not (tmp_path / "results").exists()


def test_the_flat_list_has_the_lines_and_not_the_remarks(monkeypatch: pytest.MonkeyPatch) -> None:
    def report(command: list[str], **_: object) -> subprocess.CompletedProcess[str]:
        return subprocess.CompletedProcess(command, 0, REPORT, "")

    monkeypatch.setattr("bench.profile.subprocess.run", report)
    lines = flat(Path("x.perf")).splitlines()
    assert [line.split()[0] for line in lines] == ["12.50%", "3.10%"]
