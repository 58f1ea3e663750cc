"""Control groups, on a tree of plain files; and for real where a memory controller of version 2 is writable."""

import os
import subprocess
from pathlib import Path
from uuid import UUID, uuid4

import pytest

from gpupool.agent.isolation.cgroup import (
    ENTER,
    GroupRefused,
    Groups,
    Limits,
    delegated_group,
    used_bytes,
    why_no_groups,
)

GIB = 1 << 30
INSTANCE = UUID(int=7)


def tree(root: Path, *, controllers: str = "cpu memory pids", handed_on: str = "", procs: str = "") -> Path:
    """A root with one delegated group, which this process is in."""
    group = root / "sys/fs/cgroup/system.slice/agent.service"
    group.mkdir(parents=True)
    (root / "proc/self").mkdir(parents=True)
    (root / "proc/self/cgroup").write_text("0::/system.slice/agent.service\n")
    (group / "cgroup.controllers").write_text(controllers)
    (group / "cgroup.subtree_control").write_text(handed_on)
    (group / "cgroup.procs").write_text(procs or f"{os.getpid()}\n")
    return group


@pytest.mark.shows("R20", "R23")
def test_an_instance_gets_its_claim_as_a_hard_limit(tmp_path: Path) -> None:
    base = tree(tmp_path)
    group = Groups(tmp_path).make(INSTANCE, Limits(2 * GIB, cpu_cores=1.5))
    assert group == base / f"gatehouse-{INSTANCE}"
    assert (group / "memory.max").read_text() == str(2 * GIB)
    assert (group / "memory.high").read_text() == str(int(1.8 * GIB))
    assert (group / "cpu.max").read_text() == "150000 100000"
    # The agent is in a leaf of its own: a group with processes cannot hand controllers on.
    assert (base / "gatehouse-agent/cgroup.procs").read_text() == str(os.getpid())
    assert (base / "cgroup.subtree_control").read_text() == "+memory +cpu"


def test_without_cores_the_processors_are_not_limited(tmp_path: Path) -> None:
    base = tree(tmp_path, handed_on="memory")
    group = Groups(tmp_path).make(INSTANCE, Limits(GIB))
    assert not (group / "cpu.max").exists()
    assert not (base / "gatehouse-agent").exists()  # it was handed on already


def test_an_agent_in_its_leaf_finds_the_group_above(tmp_path: Path) -> None:
    base = tree(tmp_path, handed_on="memory")
    (base / "gatehouse-agent").mkdir()
    (base / "gatehouse-agent/cgroup.controllers").write_text("memory")
    (tmp_path / "proc/self/cgroup").write_text("0::/system.slice/agent.service/gatehouse-agent\n")
    assert delegated_group(tmp_path) == base
    assert why_no_groups(tmp_path) is None


@pytest.mark.shows("R20")
@pytest.mark.parametrize(
    ("lines", "controllers", "words"),
    [
        ("4:memory:/x\n", "memory", "no control groups of version 2"),
        ("4:memory:/x\n0::/nowhere\n", "memory", "no control groups of version 2"),
        ("0::/system.slice/agent.service\n", "cpu pids", "The memory controller is not in"),
    ],
)
def test_a_machine_without_them_says_why(tmp_path: Path, lines: str, controllers: str, words: str) -> None:
    tree(tmp_path, controllers=controllers)
    (tmp_path / "proc/self/cgroup").write_text(lines)
    assert words in (why_no_groups(tmp_path) or "")
    with pytest.raises(GroupRefused, match=words.split()[0]):
        Groups(tmp_path).make(INSTANCE, Limits(GIB))


def test_a_group_that_others_are_in_is_left_alone(tmp_path: Path) -> None:
    base = tree(tmp_path, procs=f"{os.getpid()}\n1\n")
    assert "such as 1" in (why_no_groups(tmp_path) or "")
    assert (base / "cgroup.procs").read_text() == f"{os.getpid()}\n1\n"


def test_what_the_kernel_ended_for_memory_is_said_and_the_group_is_killed(tmp_path: Path) -> None:
    tree(tmp_path, handed_on="memory")
    groups = Groups(tmp_path)
    group = groups.make(INSTANCE, Limits(GIB))
    (group / "memory.events").write_text("low 0\nhigh 9\nmax 3\noom 1\noom_kill 2\n")
    (group / "cgroup.kill").write_text("")
    (group / "memory.current").write_text("4096\n")
    assert groups.find(INSTANCE) == group
    assert used_bytes(group) == 4096
    assert "all of its claim of host memory" in groups.remove(INSTANCE)
    assert (group / "cgroup.kill").read_text() == "1"
    assert groups.remove(uuid4()) == ""


def test_a_group_that_could_not_be_removed_does_not_blame_the_next_start(tmp_path: Path) -> None:
    tree(tmp_path, handed_on="memory")
    groups = Groups(tmp_path)
    group = groups.make(INSTANCE, Limits(GIB))
    (group / "memory.events").write_text("oom_kill 2\n")
    assert groups.remove(INSTANCE)  # its files keep it there, as a process that is ending would
    groups.make(INSTANCE, Limits(GIB))
    assert groups.remove(INSTANCE) == ""
    groups.make(INSTANCE, Limits(GIB))
    (group / "memory.events").write_text("oom_kill 3\n")
    assert "all of its claim" in groups.remove(INSTANCE)


def test_an_engine_is_in_its_group_before_it_begins(tmp_path: Path) -> None:
    group = tmp_path / "group"
    group.mkdir()
    said = subprocess.run([*ENTER, str(group), "echo", "an engine"], check=True, capture_output=True, text=True)
    assert (said.stdout, (group / "cgroup.procs").read_text()) == ("an engine\n", "0\n")
    refused = subprocess.run([*ENTER, str(tmp_path / "none"), "echo", "an engine"], check=False, capture_output=True)
    assert refused.returncode != 0  # it never runs outside
    assert refused.stdout == b""


@pytest.mark.skipif(why_no_groups(Path("/")) is not None, reason=why_no_groups(Path("/")) or "")
def test_a_real_group_holds_a_process_to_its_limit() -> None:
    groups, instance = Groups(), uuid4()
    group = groups.make(instance, Limits(64 << 20))
    try:
        grow = "b = bytearray(512 << 20); print(len(b))"
        ended = subprocess.run([*ENTER, str(group), "python3", "-c", grow], check=False, capture_output=True)
        assert ended.returncode != 0
    finally:
        said = groups.remove(instance)
    assert "all of its claim" in said
