"""Engines' log files: kept small, and quoted when something went wrong."""

import os
import re
from pathlib import Path
from typing import Final

LARGEST_LOG_BYTES: Final = 16 * 1024 * 1024
_CONTROL: Final = re.compile(r"\x1b\[[0-9;]*[A-Za-z]|[\x00-\x08\x0b-\x1f\x7f]")


def make_room(path: Path, *, largest_bytes: int = LARGEST_LOG_BYTES) -> None:
    """Move a log that has grown beyond `largest_bytes` to `NAME.1`. Not while its engine runs: see `trim`."""
    try:
        if path.stat().st_size > largest_bytes:
            path.replace(path.with_name(path.name + ".1"))
    except FileNotFoundError:
        return


def trim(path: Path, *, largest_bytes: int = LARGEST_LOG_BYTES) -> None:
    """Copy an overgrown log of a running engine to `NAME.1` and empty it.

    The engine goes on writing at the new end, because its log is open for appending. What it writes
    between copy and truncation is lost; a log is worth less than a full disk.
    """
    try:
        if path.stat().st_size <= largest_bytes:
            return
        with open(path, "rb") as source, open(path.with_name(path.name + ".1"), "wb") as copy:
            source.seek(-largest_bytes // 2, os.SEEK_END)
            while block := source.read(1 << 20):
                copy.write(block)
        os.truncate(path, 0)
    except OSError:
        return  # tried again at the next turn


def last_line(path: Path, *, longest: int = 200) -> str:
    """The last line that says something, without control characters; empty when there is none."""
    try:
        with open(path, "rb") as file:
            file.seek(0, os.SEEK_END)
            file.seek(max(0, file.tell() - 8192))
            lines = file.read().decode("utf-8", errors="replace").splitlines()
    except OSError:
        return ""
    for line in reversed(lines):
        clean = _CONTROL.sub("", line).strip()
        if clean:
            return clean[:longest]
    return ""
