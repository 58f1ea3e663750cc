"""Reading files of /proc, /sys and the like: short ones, which may be gone between one look and the next."""

from pathlib import Path
from typing import Final

_MOST: Final = 4 << 20  # /proc/cpuinfo of the largest machines is below it


def text_of(path: Path, most: int = _MOST) -> str:
    """Its text without space around it, at most so many bytes of it; empty where it cannot be read."""
    return text_if_any(path, most) or ""


def text_if_any(path: Path, most: int = _MOST) -> str | None:
    """The same, with None where it cannot be read: an empty file says something too."""
    try:
        with path.open("rb") as file:
            return file.read(most).decode(errors="replace").strip()
    except OSError:
        return None
