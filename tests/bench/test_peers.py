"""How peers are set up: pins, one worker, no network; and their environments, made once."""

import subprocess
from pathlib import Path

import pytest

from bench.environments import environment, folder_of
from bench.peers import PEERS, Launch, Peer, Setting, system_binary
from bench.tools import ToolError

SYSTEM = [peer for peer in PEERS if not peer.requirements]
FROM_PYPI = [peer for peer in PEERS if peer.requirements]


def launched(peer: Peer, folder: Path) -> Launch:
    for file in ("envoy", "sglang-router", "vllm-router", "litellm"):
        for path in (f"bin/{file}", f"lib/python3/site-packages/envoy/_bin/{file}"):
            (folder / path).parent.mkdir(parents=True, exist_ok=True)
            (folder / path).touch()
    return peer.launch(Setting(folder, 8001, 8002, spare_port=8003, environment=folder))


def test_what_comes_from_pypi_is_pinned() -> None:
    assert [peer.name for peer in FROM_PYPI] == ["envoy", "sglang-router", "vllm-router", "litellm"]
    assert all("==" in requirement for peer in FROM_PYPI for requirement in peer.requirements)


@pytest.mark.parametrize("peer", PEERS, ids=lambda peer: peer.name)
def test_everything_stays_on_the_loopback_address(peer: Peer, tmp_path: Path) -> None:
    if peer in SYSTEM and system_binary(peer.name) is None:
        pytest.skip(f"{peer.name} is not installed")
    launch = launched(peer, tmp_path)
    configs = [path.read_text() for path in tmp_path.iterdir() if path.suffix in {".conf", ".cfg", ".yaml"}]
    words = " ".join([*launch.command, *configs])
    assert "127.0.0.1" in words
    assert "0.0.0.0" not in words
    assert "8001" in words
    assert "8002" in words


def test_each_has_one_worker(tmp_path: Path) -> None:
    by_name = {peer.name: peer for peer in PEERS}
    assert launched(by_name["envoy"], tmp_path).command[3:5] == ("--concurrency", "1")
    for name in ("sglang-router", "vllm-router"):
        assert launched(by_name[name], tmp_path).environ["TOKIO_WORKER_THREADS"] == "1"
    command = launched(by_name["litellm"], tmp_path).command
    assert command[command.index("--num_workers") + 1] == "1"


@pytest.mark.parametrize("name", ["nginx", "haproxy"])
def test_the_systems_own_accept_their_configuration(name: str, tmp_path: Path) -> None:
    if system_binary(name) is None:
        pytest.skip(f"{name} is not installed")
    peer = next(peer for peer in PEERS if peer.name == name)
    command = [*launched(peer, tmp_path).command, "-t" if name == "nginx" else "-c"]
    checked = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
    assert checked.returncode == 0, checked.stderr


def test_a_quick_run_installs_nothing(tmp_path: Path) -> None:
    with pytest.raises(ToolError, match="peer has no environment yet"):
        environment("peer", ("a-package==1",), install=False, under=tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_an_environment_that_is_there_is_used_again(tmp_path: Path) -> None:
    folder = folder_of("peer", ("a-package==1",), under=tmp_path)
    folder.mkdir()
    (folder / "installed").touch()
    assert environment("peer", ("a-package==1",), install=True, under=tmp_path) == folder
    assert folder_of("peer", ("a-package==2",), under=tmp_path) != folder


def test_what_cannot_be_installed_says_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(command: list[str], **_: object) -> subprocess.CompletedProcess[str]:
        return subprocess.CompletedProcess(command, "pip" in command, "", "looking\nno matching distribution\n")

    monkeypatch.setattr("bench.environments.subprocess.run", refuse)
    with pytest.raises(ToolError, match="peer cannot be installed: no matching distribution"):
        environment("peer", ("a-package==1",), install=True, under=tmp_path)
