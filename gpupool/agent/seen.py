"""By what files are known again that were compared with their checksums, so that a restart need not read them anew."""

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from gpupool.weights.files import UnfitFolder, files_of


def fingerprint(path: Path, manifest: Mapping[str, Any]) -> str:
    """Of an artefact's manifest and its files' sizes, times and places; empty where they cannot be looked at."""
    digest = hashlib.sha256(msgspec.json.encode(manifest, order="sorted"))
    try:
        for name, file in files_of(path).items():
            about = file.stat()
            digest.update(f"{name}|{about.st_size}|{about.st_mtime_ns}|{about.st_ino}|{about.st_dev}\n".encode())
    except (OSError, UnfitFolder):
        return ""
    return digest.hexdigest()
