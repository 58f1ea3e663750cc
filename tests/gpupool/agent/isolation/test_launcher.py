"""How a command is put into what its row asks for, and which device nodes it is shown."""

from pathlib import Path
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from gpupool.agent.isolation.cgroup import ENTER, Groups
from gpupool.agent.isolation.launcher import NO_ISOLATION, CannotIsolate, Command, Isolator, host_bytes
from gpupool.agent.isolation.nodes import NodesUnknown, device_nodes
from gpupool.agent.isolation.sandbox import artefact_mounts
from gpupool.engines.base import GivenDevice, device_environment
from gpupool.stream.messages import DesiredInstance
from tests.doubles.node_web import row
from tests.gpupool.agent.isolation.test_cgroup import tree

GIB = 1 << 30
GPU = GivenDevice("GPU-1", "gpu", "nvidia", 80 * GIB)
HOST = GivenDevice("cpu-test", "cpu", "host", 64 * GIB)
HAS = {"available": True, "reason": ""}
ABLE: dict[str, Any] = {
    "bubblewrap": {**HAS, "path": "/usr/bin/bwrap"},
    "gvisor": {**HAS, "path": "/usr/local/bin/runsc"},
    "cgroup": HAS,
    "mps": {**HAS, "pipe_directory": "/run/mps"},
}
COMMAND = Command(("python", "-m", "engine"), {"A": "1"}, Path("/log"))
CDI = {
    "cdiVersion": "0.6.0",
    "kind": "nvidia.com/gpu",
    "containerEdits": {"deviceNodes": [{"path": "/dev/nvidiactl"}, {"path": "/dev/nvidia-uvm"}]},
    "devices": [
        {"name": "GPU-1", "containerEdits": {"deviceNodes": [{"path": "/dev/nvidia0", "hostPath": "/dev/nvidia3"}]}},
        {
            "name": "MIG-1",
            "containerEdits": {"deviceNodes": [{"path": "/dev/nvidia1"}, {"path": "/dev/nvidia-caps/nvidia-cap30"}]},
        },
    ],
}


def asking(isolation: dict[str, Any], **changes: Any) -> DesiredInstance:
    plain = row(devices=["GPU-1"], artefact_uri="file:///models/m.gguf")
    return replace(plain, isolation=isolation, memory_bytes=4 * GIB, **changes)


@pytest.fixture
def model(tmp_path: Path) -> Path:
    path = tmp_path / "models" / "m.gguf"
    path.parent.mkdir()
    path.write_bytes(b"GGUF")
    (path.parent / "another-tenants.gguf").write_bytes(b"GGUF")
    return path


def isolator(tmp_path: Path, **changes: Any) -> Isolator:
    values: dict[str, Any] = {
        "work_dir": tmp_path / "work",
        "capabilities": lambda: ABLE,
        "cdi_specs": lambda: [CDI],
        "groups": Groups(tmp_path),
    }
    return Isolator(**{**values, **changes})


@pytest.mark.shows("R92", "P25")
def test_mps_gets_its_share_of_threads_and_its_limit_of_memory(tmp_path: Path, model: Path) -> None:
    wish = asking({"mps": True}, share=0.5)
    made = isolator(tmp_path).command(wish, [GPU, GivenDevice("GPU-2", "gpu", "nvidia")], model, COMMAND)
    assert made.argv == COMMAND.argv
    assert dict(made.env) == {
        "A": "1",
        "CUDA_MPS_PIPE_DIRECTORY": "/run/mps",
        "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT": "0=4096M,1=4096M",
        "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": "50",
    }


@pytest.mark.shows("R144")
def test_bubblewrap_shows_the_versions_own_files_and_its_own_devices(tmp_path: Path, model: Path) -> None:
    wish = asking({"sandbox": "bubblewrap"})
    made = isolator(tmp_path).command(wish, [GPU], model, COMMAND)
    work = tmp_path / "work" / str(wish.instance_id)
    words = list(made.argv)
    assert words[0] == "/usr/bin/bwrap"
    assert made.argv[-4:] == ("--", *COMMAND.argv)
    assert ["--ro-bind", str(model), str(model)] == words[(at := words.index(str(model))) - 1 : at + 2]
    assert str(model.parent) not in words
    assert [words[n + 1] for n, word in enumerate(words) if word == "--dev-bind-try"] == [
        "/dev/nvidiactl", "/dev/nvidia-uvm", "/dev/nvidia3",
    ]  # fmt: skip
    assert [words[n + 1] for n, word in enumerate(words) if word == "--bind"] == [str(work)]
    assert {"--unshare-pid", "--unshare-ipc"} <= set(words)
    assert "--die-with-parent" not in words  # its parent is the agent, which may end while its engines serve
    assert "--unshare-net" not in words  # the relay reaches it by the host's ports
    assert (made.cwd, work.stat().st_mode & 0o777) == (work, 0o700)


def test_under_mps_a_sandbox_shares_the_hosts_memory_with_its_daemon(tmp_path: Path, model: Path) -> None:
    made = isolator(tmp_path).command(asking({"sandbox": "bubblewrap", "mps": True}), [GPU], model, COMMAND)
    words = list(made.argv)
    assert "--unshare-ipc" not in words
    assert {"/run/mps", "/dev/shm"} <= {words[n + 1] for n, word in enumerate(words) if word == "--bind"}


def test_files_that_the_command_names_are_shown_too(tmp_path: Path, model: Path) -> None:
    adapter = tmp_path / "adapter.gguf"
    adapter.write_bytes(b"GGUF")
    command = Command((*COMMAND.argv, "--model", str(model), "--lora", str(adapter)), {}, Path("/log"))
    words = list(isolator(tmp_path).command(asking({"sandbox": "bubblewrap"}), [HOST], model, command).argv)
    at = words.index(str(adapter))
    assert words[at - 1 : at + 2] == ["--ro-bind", str(adapter), str(adapter)]


@pytest.mark.shows("R144")
@pytest.mark.parametrize("named", ["/", "..", "link"])
def test_no_argument_shows_the_folder_that_all_instances_work_in(tmp_path: Path, model: Path, named: str) -> None:
    (tmp_path / "link").symlink_to(tmp_path)
    path = {"/": "/", "..": f"{tmp_path}/x/..", "link": str(tmp_path / "link")}[named]
    (tmp_path / "x").mkdir()
    command = Command((*COMMAND.argv, "--lora", path), {}, Path("/log"))
    with pytest.raises(CannotIsolate, match="what is others'"):
        isolator(tmp_path).command(asking({"sandbox": "bubblewrap"}), [GPU], model, command)


def test_gvisor_gets_a_bundle(tmp_path: Path, model: Path) -> None:
    wish = asking({"sandbox": "gvisor"})
    made = isolator(tmp_path).command(wish, [GPU], model, COMMAND)
    assert made.argv[0] == "/usr/local/bin/runsc"
    assert "--nvproxy" in made.argv
    bundle = Path(made.argv[made.argv.index("--bundle") + 1])
    config = msgspec.json.decode((bundle / "config.json").read_bytes())
    assert config["process"]["args"] == list(COMMAND.argv)
    assert "A=1" in config["process"]["env"]
    assert config["root"] == {"path": "rootfs", "readonly": True}
    binds = {mount["destination"]: mount["options"] for mount in config["mounts"] if mount["type"] == "bind"}
    assert binds[str(model)] == ["rbind", "ro"]
    assert binds[str(made.cwd)] == ["rbind", "rw"]
    assert (bundle / "rootfs" / str(model).lstrip("/")).is_file()


@pytest.mark.shows("R23")
def test_a_control_group_is_outermost_and_holds_what_is_claimed_of_the_host(tmp_path: Path, model: Path) -> None:
    base = tree(tmp_path, handed_on="memory")
    wish = asking({"sandbox": "bubblewrap", "cgroup": True}, host_memory_bytes=GIB)
    made = isolator(tmp_path).command(wish, [HOST], model, COMMAND)
    group = base / f"gatehouse-{wish.instance_id}"
    assert made.argv[: len(ENTER) + 2] == (*ENTER, str(group), "/usr/bin/bwrap")
    assert host_bytes(wish, [HOST]) == 5 * GIB
    assert (group / "memory.max").read_text() == str(5 * GIB)


@pytest.mark.parametrize(
    ("isolation", "devices", "retry", "words"),
    [
        ({"sandbox": "chroot"}, [GPU], False, "sandbox is one of"),
        ({"cgroup": True}, [GPU], False, "host_memory_bytes"),
        ({"mps": True}, [HOST], False, "has none"),
        ({"sandbox": "bubblewrap"}, [GivenDevice("GPU-9", "gpu", "nvidia")], True, "device nodes of GPU-9"),
    ],
)
def test_what_cannot_be_isolated_is_not_started(
    tmp_path: Path, model: Path, isolation: dict[str, Any], devices: list[GivenDevice], retry: bool, words: str
) -> None:
    with pytest.raises(CannotIsolate, match=words) as refused:
        isolator(tmp_path, root=tmp_path).command(asking(isolation), devices, model, COMMAND)
    assert refused.value.retry is retry


@pytest.mark.shows("R143")
def test_an_agent_that_knows_nothing_of_its_node_refuses(model: Path) -> None:
    with pytest.raises(CannotIsolate, match="has not said"):
        NO_ISOLATION.command(asking({"sandbox": "bubblewrap"}), [GPU], model, COMMAND)


def test_a_work_folder_goes_with_its_instance(tmp_path: Path, model: Path) -> None:
    wish = asking({"sandbox": "bubblewrap"})
    made = isolator(tmp_path).command(wish, [HOST], model, COMMAND)
    assert made.cwd.exists()
    isolator(tmp_path).forget(wish.instance_id)
    assert not made.cwd.exists()


@pytest.mark.shows("P22")
def test_nodes_are_of_the_cdi_specification_that_names_the_device() -> None:
    assert device_nodes([GPU], specs=[CDI]) == ("/dev/nvidiactl", "/dev/nvidia-uvm", "/dev/nvidia3")
    part = GivenDevice("MIG-1", "gpu", "nvidia")
    assert device_nodes([part], specs=[CDI])[-1] == "/dev/nvidia-caps/nvidia-cap30"
    with pytest.raises(NodesUnknown, match="device-name-strategy=uuid"):
        device_nodes([GivenDevice("MIG-2", "gpu", "nvidia")], specs=[CDI])
    assert device_nodes([HOST], specs=[]) == ()


def test_without_a_specification_the_drivers_files_tell(tmp_path: Path) -> None:
    for name, uuid, minor in (("0000:17:00.0", "GPU-1", 5), ("0000:65:00.0", "GPU-2", 0)):
        folder = tmp_path / "proc/driver/nvidia/gpus" / name
        folder.mkdir(parents=True)
        (folder / "information").write_text(f"Model: \t\t NVIDIA\nGPU UUID: \t {uuid}\nDevice Minor: \t {minor}\n")
    for node in ("nvidiactl", "nvidia-uvm", "nvidia0", "nvidia5", "kfd", "dri/renderD129"):
        path = tmp_path / "dev" / node
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    (tmp_path / "sys/bus/pci/devices/0000:03:00.0/drm/renderD129").mkdir(parents=True)
    assert device_nodes([GPU], root=tmp_path) == ("/dev/nvidiactl", "/dev/nvidia-uvm", "/dev/nvidia5")
    amd = GivenDevice("GPU-a", "gpu", "amd", pci_address="0000:03:00.0")
    assert device_nodes([amd], root=tmp_path) == ("/dev/kfd", "/dev/dri/renderD129")
    with pytest.raises(NodesUnknown):
        device_nodes([GivenDevice("GPU-b", "gpu", "amd")], root=tmp_path)


@pytest.mark.shows("P10", "R151")
def test_devices_are_named_by_uuid_in_the_order_of_the_bus() -> None:
    env = device_environment([GPU, GivenDevice("MIG-1", "gpu", "nvidia")])
    assert env["CUDA_DEVICE_ORDER"] == "PCI_BUS_ID"
    assert env["CUDA_VISIBLE_DEVICES"] == "GPU-1,MIG-1"
    assert device_environment([HOST])["CUDA_VISIBLE_DEVICES"] == ""


def test_a_folder_is_shown_whole_and_a_model_in_parts_with_its_parts(tmp_path: Path) -> None:
    (tmp_path / "model").mkdir()
    config = tmp_path / "model" / "config.json"
    config.write_text("{}")
    assert artefact_mounts(config) == ((tmp_path / "model", tmp_path / "model"),)
    parts = [tmp_path / f"m-0000{n}-of-00002.gguf" for n in (1, 2)]
    for part in (*parts, tmp_path / "m-00001-of-00003.gguf"):
        part.write_bytes(b"GGUF")
    assert artefact_mounts(parts[0]) == tuple((part, part) for part in parts)
    link = tmp_path / "link.gguf"
    link.symlink_to(parts[0])
    assert artefact_mounts(link) == ((parts[0], link),)
