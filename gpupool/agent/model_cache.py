"""What engines keep beside their weights to start faster (compiled kernels, graphs): a folder a version and node.

After a load that came to nothing it is emptied: what a broken start left there breaks the next one too.
"""

import contextlib
import hashlib
import os
import shutil
from pathlib import Path
from typing import Final

import msgspec

from gpupool.stream.messages import DesiredInstance

_KEPT: Final = 20
_VARIABLES: Final = {"XDG_CACHE_HOME": "", "TORCHINDUCTOR_CACHE_DIR": "inductor", "TRITON_CACHE_DIR": "triton"}


class ModelCache:
    """The folder `model_cache` of one agent."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def folder(self, row: DesiredInstance) -> Path:
        """The folder of what this row starts: the same for every instance of a version here."""
        started = [row.engine, row.artefact_uri, row.engine_args, str(row.tenant_id)]
        return self.path / hashlib.sha256(msgspec.json.encode(started, order="sorted")).hexdigest()[:16]

    def prepare(self, row: DesiredInstance) -> dict[str, str]:
        """Make the folder; returns the variables that point engines to it. Raises OSError."""
        folder = self.folder(row)
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        os.utime(folder)
        self._trim(folder)
        return {name: str(folder / inside) for name, inside in _VARIABLES.items()}

    def clean(self, row: DesiredInstance) -> None:
        """Empty it. What cannot be removed stays: the next start says what is wrong."""
        shutil.rmtree(self.folder(row), ignore_errors=True)

    def _trim(self, current: Path) -> None:
        others = [folder for folder in self.path.iterdir() if folder != current]
        with contextlib.suppress(OSError):
            others.sort(key=lambda folder: folder.stat().st_mtime, reverse=True)
            for folder in others[_KEPT:]:
                shutil.rmtree(folder, ignore_errors=True)
