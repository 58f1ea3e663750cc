"""The import contracts of pyproject.toml hold, and each of them catches what it is there for."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = ("config", "core", "dashboard", "gateway", "gpupool", "tenants")


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the code, to plant wrong imports in."""
    folder = tmp_path_factory.mktemp("walls")
    for package in PACKAGES:
        shutil.copytree(ROOT / package, folder / package, ignore=lambda _, names: {n for n in names if _is_no_code(n)})
    shutil.copy(ROOT / "pyproject.toml", folder)
    return folder


def _is_no_code(name: str) -> bool:
    return name == "__pycache__" or ("." in name and not name.endswith(".py"))


def _lint(folder: Path, *options: str) -> "subprocess.CompletedProcess[str]":
    command = [str(Path(sys.executable).with_name("lint-imports")), "--no-cache", "--no-logo", *options]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=60)


def test_every_contract_holds(tree: Path) -> None:
    done = _lint(tree)
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize(
    ("contract", "module", "planted"),
    [
        ("layers", "core/planted.py", "import tenants.principal"),
        ("layers", "tenants/planted.py", "import gpupool.models"),
        ("layers", "gpupool/planted.py", "import gateway.models"),
        ("layers", "gateway/planted.py", "import dashboard.apps"),
        ("layers", "dashboard/planted.py", "import config.environment"),
        ("policies", "gateway/policies/planted.py", "import time"),
        ("policies", "gpupool/policies/planted.py", "from random import random"),
        ("policies", "tenants/policies/planted.py", "import core.clock"),  # which imports time: indirectly
        ("policies", "tenants/policies/planted.py", "import tenants.models"),  # which imports Django
        ("relay", "gateway/relay/planted.py", "import tenants.selectors"),
        ("relay", "gateway/relay/planted.py", "import core.bus, core.epochs"),
        ("relay", "gateway/relay/planted.py", "import gateway.permissions, gateway.planted_bridge"),
        ("agent", "gpupool/agent/planted.py", "import gpupool.models"),
        ("agent", "gpupool/engines/vllm/planted.py", "import gpupool.services"),
        ("engines", "gpupool/engines/vllm/planted.py", "import gpupool.engines.llamacpp.wire"),
        ("siblings", "core/env.py", "import core.telemetry.logging"),  # which imports core.env
    ],
)
def test_contract_catches_a_planted_import(tree: Path, contract: str, module: str, planted: str) -> None:
    path = tree / module
    bridge = tree / "gateway" / "planted_bridge.py"  # an innocent module between the relay and rows
    before = path.read_text() if path.exists() else None
    path.write_text(f"{before or ''}\n{planted}\n")
    bridge.write_text("import gateway.models\n")
    try:
        done = _lint(tree, "--contract", contract)
    finally:
        bridge.unlink()
        path.unlink() if before is None else path.write_text(before)
    assert done.returncode == 1, done.stdout
    assert "BROKEN" in done.stdout
    assert ("No cycles are allowed in core" if contract == "siblings" else "planted") in done.stdout
