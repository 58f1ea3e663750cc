"""A machine's files under a folder of the test's own, as sources read them by `root`."""

from collections.abc import Mapping
from pathlib import Path


def write(root: Path, files: Mapping[str, str]) -> None:
    """By path below the root: /proc/meminfo is `proc/meminfo`."""
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
