"""An environment of its own for each peer that comes from PyPI, made once under var/ and used again."""

import hashlib
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from bench.tools import FOLDER, ToolError

ENVIRONMENTS: Final = FOLDER.parent / "var" / "bench"
_INSTALL_SECONDS: Final = 600.0
_DONE: Final = "installed"


def folder_of(name: str, requirements: Sequence[str], *, under: Path = ENVIRONMENTS) -> Path:
    """Where the environment lies: another pin or interpreter is another folder."""
    words = "\n".join([*requirements, f"{sys.version_info.major}.{sys.version_info.minor}"])
    return under / f"{name}-{hashlib.sha256(words.encode()).hexdigest()[:10]}"


def environment(name: str, requirements: Sequence[str], *, install: bool, under: Path = ENVIRONMENTS) -> Path:
    """The folder of an environment with these requirements, made where `install` allows it.

    Raises ToolError in a sentence when it is not there and may not or cannot be made.
    """
    folder = folder_of(name, requirements, under=under)
    if (folder / _DONE).exists():
        return folder
    if not install:
        raise ToolError(f"{name} has no environment yet; a full run makes it")
    shutil.rmtree(folder, ignore_errors=True)  # one that was interrupted
    print(f"installing {' '.join(requirements)}", file=sys.stderr, flush=True)
    pip = [str(folder / "bin" / "python"), "-m", "pip", "install", "--quiet", "--no-input", "--only-binary", ":all:"]
    for command in ([sys.executable, "-m", "venv", str(folder)], [*pip, *requirements]):
        try:
            made = subprocess.run(command, capture_output=True, text=True, timeout=_INSTALL_SECONDS, check=False)
        except subprocess.TimeoutExpired:
            raise ToolError(f"{name} was not installed within {_INSTALL_SECONDS:.0f} s") from None
        if made.returncode != 0:
            last = (made.stderr.strip().splitlines() or ["no word why"])[-1]
            raise ToolError(f"{name} cannot be installed: {last[:300]}")
    (folder / _DONE).write_text("\n".join(requirements) + "\n")
    return folder
