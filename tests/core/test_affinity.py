"""A process is kept to the processors that it is told to run on."""

import os
import subprocess
import sys

import pytest

from core.affinity import parse_cpus, run_on
from core.env import SettingsError


@pytest.mark.parametrize(
    ("text", "cpus"), [("0", {0}), ("0-3", {0, 1, 2, 3}), ("0-1, 16-17,5", {0, 1, 5, 16, 17}), ("7-7", {7})]
)
def test_lists_are_the_kernels(text: str, cpus: set[int]) -> None:
    assert parse_cpus(text, variable="CPUS") == cpus


@pytest.mark.parametrize("text", ["a", "3-1", "0,", "-1", "0--2", "1.5"])
def test_what_is_none_is_refused_by_its_name(text: str) -> None:
    with pytest.raises(SettingsError, match="CPUS"):
        parse_cpus(text, variable="CPUS")


@pytest.mark.shows("R121")
@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="this system does not keep processes to processors")
def test_a_process_runs_where_it_is_told() -> None:
    cpu = min(os.sched_getaffinity(0))
    code = f"import os; from core.affinity import run_on; run_on('{cpu}', variable='X'); print(os.sched_getaffinity(0))"
    said = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True, cwd=os.getcwd())
    assert said.stdout.strip() == str({cpu})
    before = os.sched_getaffinity(0)
    run_on("", variable="X")
    assert os.sched_getaffinity(0) == before
    with pytest.raises(SettingsError, match="none of these"):
        run_on("9999", variable="X")
