"""Finding a Python and making its environment: sentences instead of tracebacks, and resuming."""

import fcntl
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from config.up import bootstrap
from config.up.bootstrap import BootstrapError, check_needs, free_disk_mb

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = ROOT / "config" / "up" / "python.sh"


def _fake_python(folder: Path, name: str, *, version: str, has_venv: bool = True) -> None:
    """A program that answers the script's two questions as a Python of that version would."""
    path = folder / name
    path.write_text(
        "#!/bin/sh\n"
        f'case "$2" in\n  *version*) echo {version} ;;\n  *venv*) exit {0 if has_venv else 1} ;;\n'
        f'  *) echo "{name} runs $(basename "$1") $2" ;;\nesac\n'
    )
    path.chmod(0o755)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The only folder on PATH: the tools that the script needs, and what a test puts there."""
    for tool in ("sh", "dirname", "basename"):
        found = shutil.which(tool)
        assert found is not None
        (tmp_path / tool).symlink_to(found)
    return tmp_path


def _find(folder: Path, **environ: str) -> "subprocess.CompletedProcess[str]":
    command = [str(folder / "sh"), str(SCRIPT), "runtime"]
    return subprocess.run(command, env={"PATH": str(folder), **environ}, capture_output=True, text=True, timeout=20)


def test_newest_supported_python_is_taken(folder: Path) -> None:
    _fake_python(folder, "python3", version="3.14")
    _fake_python(folder, "python3.11", version="3.11")
    _fake_python(folder, "python3.12", version="3.12")
    assert _find(folder).stdout == "python3.12 runs bootstrap.py runtime\n"


def test_named_python_is_taken(folder: Path) -> None:
    _fake_python(folder, "python3.13", version="3.13")
    _fake_python(folder, "mine", version="3.11")
    assert _find(folder, PYTHON="mine").stdout == "mine runs bootstrap.py runtime\n"


def test_python_without_venv_gives_way_to_one_that_has_it(folder: Path) -> None:
    _fake_python(folder, "python3.13", version="3.13", has_venv=False)
    _fake_python(folder, "python3", version="3.11")
    assert _find(folder).stdout == "python3 runs bootstrap.py runtime\n"


@pytest.mark.parametrize(
    ("name", "version", "has_venv", "environ", "said"),
    [
        (
            "python3",
            "3.9",
            True,
            {},
            "Python 3.11, 3.12 or 3.13 is needed and none was found on PATH (python3 is Python 3.9)",
        ),
        ("python3", "3.11", False, {}, "apt install python3-venv"),
        ("old", "3.8", True, {"PYTHON": "old"}, "PYTHON=old is no Python 3.11, 3.12 or 3.13 (old is Python 3.8)"),
        ("unused", "3.8", True, {"PYTHON": "absent"}, "PYTHON=absent is no Python 3.11, 3.12 or 3.13"),
    ],
)
def test_what_is_missing_is_said_before_anything_is_written(
    folder: Path, name: str, version: str, has_venv: bool, environ: dict[str, str], said: str
) -> None:
    _fake_python(folder, name, version=version, has_venv=has_venv)
    done = _find(folder, **environ)
    assert done.returncode == 1
    assert done.stdout == ""
    assert done.stderr.count("\n") == 1
    assert said in done.stderr


def test_needs_are_said_with_what_is_there(tmp_path: Path) -> None:
    assert "needs about 1 MB of disk" in check_needs(disk_mb=1, memory_mb=1, folder=tmp_path / "not" / "there")


def test_full_disk_and_small_memory_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(BootstrapError, match="the disk is too full"):
        check_needs(disk_mb=free_disk_mb(tmp_path) + 10_000_000, memory_mb=0, folder=tmp_path)
    monkeypatch.setattr(bootstrap, "available_memory_mb", lambda: 100)
    with pytest.raises(BootstrapError, match="too little memory"):
        check_needs(disk_mb=0, memory_mb=101, folder=tmp_path)
    monkeypatch.setattr(bootstrap, "available_memory_mb", lambda: None)
    assert "an unknown amount of memory" in check_needs(disk_mb=0, memory_mb=101, folder=tmp_path)


@pytest.fixture
def clone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A clone whose requirements need nothing from a registry."""
    for name in ("requirements.txt", "requirements-model.txt", "requirements-dev.txt"):
        (tmp_path / name).write_text("# nothing\n")
    monkeypatch.setattr(bootstrap, "ROOT", tmp_path)
    monkeypatch.setattr(bootstrap, "VENV", tmp_path / ".venv")
    monkeypatch.setattr(bootstrap, "RUNTIME_DISK_MB", 1)
    monkeypatch.setattr(bootstrap, "DEV_DISK_MB", 1)
    return tmp_path


def test_broken_install_resumes_and_a_whole_one_is_left_alone(clone: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (clone / "requirements.txt").write_text("--broken-option\n")
    assert bootstrap.main(["runtime"]) == 1
    assert "installing runtime packages failed. The last lines of" in capsys.readouterr().err
    assert (clone / ".venv" / "installing").exists()

    half = next((clone / ".venv" / "lib").glob("python*/site-packages")) / "half-1.0.dist-info"
    half.mkdir()
    (half / "METADATA").write_text("Name: half\nVersion: 1.0\n")
    (clone / "requirements.txt").write_text("# mended\n")
    assert bootstrap.main(["runtime"]) == 0
    assert not half.exists()
    assert not (clone / ".venv" / "installing").exists()

    log = clone / ".venv" / "install.log"
    log.unlink()
    assert bootstrap.main(["runtime"]) == 0
    assert not log.exists()

    (clone / "requirements-dev.txt").write_text("# one more\n")
    assert bootstrap.main(["runtime"]) == 0
    assert not log.exists()
    assert bootstrap.main(["dev"]) == 0
    assert log.exists()

    shutil.rmtree(clone / ".venv" / "bin")
    assert bootstrap.main(["runtime"]) == 0
    assert (clone / ".venv" / "bin" / "python").exists()


def test_clean_removes_what_was_made_and_refuses_while_up_runs(clone: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (clone / ".venv").mkdir()
    (clone / "var").mkdir()
    with (clone / "var" / "up.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert bootstrap.main(["clean"]) == 1
        assert "make down" in capsys.readouterr().err
        assert (clone / "var").exists()
    assert bootstrap.main(["clean"]) == 0
    assert sorted(path.name for path in clone.iterdir() if path.is_dir()) == []


def test_bootstrap_needs_nothing_installed() -> None:
    command = [sys.executable, "-I", "-S", str(ROOT / "config" / "up" / "bootstrap.py"), "what"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=20)
    assert done.returncode == 1
    assert done.stderr.startswith("gatehouse: usage")
