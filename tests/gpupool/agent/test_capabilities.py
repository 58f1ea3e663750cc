"""What a node says it can isolate by, each with a reason that tells an operator what to do."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest

from gpupool.agent.ability import Ability
from gpupool.agent.capabilities import read_capabilities, run_tool, toolkit_config
from gpupool.discovery.base import Device
from gpupool.policies.isolation import CAPABILITIES
from gpupool.stream.bounds import check_json
from tests.gpupool.agent.isolation.test_cgroup import tree

SAYS = {
    "bwrap": (0, "bubblewrap 0.8.0\n"),
    "runsc": (0, "runsc version release-20250401.0\nspec: 1.1.0-rc.1\n"),
    "nvidia-ctk": (0, "NVIDIA Container Toolkit CLI version 1.17.4\ncommit: 9b69590c\n"),
    "systemctl": (0, "systemd 252 (252.38-1~deb12u1)\n+PAM\n"),
}


def which(*tools: str) -> Callable[[str], str | None]:
    return lambda name: f"/usr/bin/{name}" if name in tools else None


async def read(
    root: Path, *tools: str, says: dict[str, tuple[int, str]] | None = None, parts: int | None = None, **environ: str
) -> dict[str, Any]:
    told = SAYS | (says or {})

    async def run(argv: Sequence[str]) -> tuple[int, str]:
        return told[argv[0].removeprefix("/usr/bin/")]

    return await read_capabilities(root=root, environ=environ, run=run, which=which(*tools), mig_devices=parts)


def write(root: Path, path: str, text: str) -> None:
    (root / path).parent.mkdir(parents=True, exist_ok=True)
    (root / path).write_text(text)


@pytest.mark.shows("R20", "R21")
async def test_a_bare_node_lacks_everything_and_says_why(tmp_path: Path) -> None:
    record = await read(tmp_path)
    assert set(record) == set(CAPABILITIES)
    for name, entry in record.items():
        assert entry["available"] is False, name
        assert entry["reason"].endswith("."), name
    check_json("capabilities", record, depth=4, most=500, longest=2000)  # the web process takes it


@pytest.mark.shows("R20", "R21")
async def test_a_node_with_everything_has_everything(tmp_path: Path) -> None:
    tree(tmp_path)
    write(tmp_path, "proc/sys/user/max_user_namespaces", "63000\n")
    write(tmp_path, "etc/nvidia-container-runtime/config.toml", "[nvidia-container-cli]\nno-cgroups = false\n")
    write(
        tmp_path,
        "var/run/cdi/nvidia.yaml",
        "cdiVersion: 0.6.0\nkind: nvidia.com/gpu\ndevices:\n- name: '0'\n- name: GPU-1\n",
    )
    write(tmp_path, "run/mps/control", "")
    record = await read(tmp_path, *SAYS, parts=3, CUDA_MPS_PIPE_DIRECTORY="/run/mps")
    assert {name for name, entry in record.items() if not entry["available"]} == set()
    assert record["bubblewrap"]["version"] == "0.8.0"
    assert record["gvisor"]["version"] == "release-20250401.0"
    assert record["cdi"]["kinds"] == {"nvidia.com/gpu": 2}
    assert record["mps"]["pipe_directory"] == "/run/mps"
    assert record["container_toolkit"] == {
        "available": True, "reason": "", "version": "1.17.4", "no_cgroups": False,
    }  # fmt: skip


@pytest.mark.shows("R21")
@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[nvidia-container-cli]\nno-cgroups = true\n", "no-cgroups = true"),
        ("[features]\ncgroups_v2 = false\n", "cgroups_v2 off"),
        ("[nvidia-container-cli\n", "cannot be read"),
    ],
)
def test_a_toolkit_that_takes_devices_away_is_said(text: str, words: str) -> None:
    entry = toolkit_config(text)
    assert entry["available"] is False
    assert words in entry["reason"]


def test_a_toolkit_as_it_comes_is_fine() -> None:
    assert toolkit_config("")["available"] is True
    assert toolkit_config("[features]\ncgroups_v2 = true\n")["cgroups_v2"] is True


@pytest.mark.shows("R20")
@pytest.mark.parametrize(
    ("tool", "said", "name", "words"),
    [
        ("systemctl", (0, "systemd 241 (241)\n"), "systemd", "need 245"),
        ("nvidia-ctk", (0, "NVIDIA Container Toolkit CLI version 1.13.5\n"), "container_toolkit", "need 1.14"),
        ("bwrap", (1, "bwrap: setting up uid map: Permission denied\n"), "bubblewrap", "uid map: Permission denied"),
        ("runsc", (1, "exec format error"), "gvisor", "exec format error"),
    ],
)
async def test_a_tool_that_is_too_old_or_does_not_work_is_said(
    tmp_path: Path, tool: str, said: tuple[int, str], name: str, words: str
) -> None:
    record = await read(tmp_path, tool, says={tool: said})
    assert record[name]["available"] is False
    assert words in record[name]["reason"]


@pytest.mark.parametrize(
    ("path", "value", "words"),
    [
        ("proc/sys/user/max_user_namespaces", "0", "max_user_namespaces is 0"),
        ("proc/sys/kernel/unprivileged_userns_clone", "0", "unprivileged_userns_clone is 0"),
        ("proc/sys/kernel/apparmor_restrict_unprivileged_userns", "1", "AppArmor"),
    ],
)
async def test_what_keeps_user_namespaces_away_is_named(tmp_path: Path, path: str, value: str, words: str) -> None:
    write(tmp_path, "proc/sys/user/max_user_namespaces", "63000")
    write(tmp_path, path, value)
    assert words in (await read(tmp_path))["user_namespaces"]["reason"]


async def test_what_a_tool_says_and_how_it_ended() -> None:
    code, said = await run_tool(("sh", "-c", "echo here; exit 3"))
    assert (code, said) == (3, "here\n")
    assert (await run_tool(("/no/such/tool",)))[0] == 127


async def test_what_has_changed_is_told_again_and_only_that() -> None:
    record: dict[str, Any] = {"mps": {"available": False, "reason": "It does not run."}}
    parts: list[int | None] = []

    async def look(count: int | None) -> dict[str, Any]:
        parts.append(count)
        return record

    ability = Ability(look)
    gpu = Device(stable_id="GPU-1", kind="gpu", vendor="nvidia", name="A100", allocatable=False)
    part = Device(stable_id="MIG-1", kind="gpu", vendor="nvidia", name="A100 1g", partition_of="GPU-1")
    assert await ability.look([gpu, part])
    assert parts == [1]
    assert ability.told() == record
    assert not await ability.look([])
    assert parts[-1] is None  # no driver has told of a GPU
    assert ability.told_if_new() == {}
    record = {"mps": {"available": True, "reason": ""}}
    assert await ability.look([])
    assert ability.told_if_new() == record
    assert ability.told_if_new() == {}


@pytest.mark.parametrize("text", ["kind: 2023-13-45", "[" * 5000, "kind: [", 'kind: "a\\0b"\ndevices: [{name: x}]'])
async def test_a_specification_that_is_none_does_not_keep_the_node_from_telling(tmp_path: Path, text: str) -> None:
    (tmp_path / "etc/cdi").mkdir(parents=True)
    (tmp_path / "etc/cdi/odd.yaml").write_text(text)
    record = await read_capabilities(root=tmp_path, environ={}, which=lambda name: None)
    assert "\\u0000" not in msgspec.json.encode(record).decode()
    assert all(record[name]["available"] is False for name in ("mps", "bubblewrap", "container_toolkit"))
