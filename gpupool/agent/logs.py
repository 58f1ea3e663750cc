"""Engines' log files: kept small, and quoted when something went wrong."""

import os
import re
from pathlib import Path
from typing import Final

from gpupool.policies.log_text import clean_line

LARGEST_LOG_BYTES: Final = 16 * 1024 * 1024
_ERROR: Final = re.compile(r"\b(error|failed|cannot|unable|killed)\b", re.IGNORECASE)
_QUOTED_BYTES: Final = 8192


def make_room(path: Path, *, largest_bytes: int = LARGEST_LOG_BYTES) -> int:
    """Move a log that has grown beyond `largest_bytes` to `NAME.1`; returns the size of the one to append to.

    Not while its engine runs: see `trim`. Raises OSError.
    """
    try:
        size = path.stat().st_size
    except FileNotFoundError:
        return 0
    if size <= largest_bytes:
        return size
    path.replace(path.with_name(path.name + ".1"))
    return 0


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


def telling_line(path: Path, *, since: int = 0, longest: int = 200) -> str:
    """The line that best says why an engine ended: the first of its last lines that speaks of an error, else the last.

    Only what was written after byte `since` counts. No control characters, no secrets; empty where there is nothing.
    """
    try:
        with open(path, "rb") as file:
            end = file.seek(0, os.SEEK_END)
            begin = max(min(since, end), end - _QUOTED_BYTES)
            file.seek(begin)
            text = file.read(_QUOTED_BYTES).decode("utf-8", errors="replace")
    except OSError:
        return ""
    if begin > since:
        text = text.partition("\n")[2]  # the first line is part of one: half a secret does not look like one
    lines = [clean for line in text.splitlines()[-40:] if (clean := clean_line(line).strip())][-20:]
    return next((line for line in lines if _ERROR.search(line)), lines[-1] if lines else "")[:longest]
