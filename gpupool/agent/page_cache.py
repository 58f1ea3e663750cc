"""Weights in the host's page cache: how much of them is there, and bringing them there. Blocks: run it in a thread."""

import contextlib
import ctypes
import mmap
import os
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Final

from gpupool.weights.files import UnfitFolder, files_of

_BLOCK_BYTES: Final = 4 * 1024 * 1024
_CACHESTAT: Final = 451  # Linux 6.5, on every architecture


class _Range(ctypes.Structure):
    _fields_ = (("offset", ctypes.c_uint64), ("length", ctypes.c_uint64))


class _Found(ctypes.Structure):
    _fields_ = tuple((name, ctypes.c_uint64) for name in ("cached", "dirty", "writeback", "evicted", "recently"))


def weight_files(path: Path) -> list[Path]:
    """The files of an artefact; empty when they cannot be listed."""
    try:
        return list(files_of(path).values())
    except (OSError, UnfitFolder):
        return []


def cached_share(files: Iterable[Path]) -> float | None:
    """Share of the files' bytes that are in memory, 0 to 1; None where the machine does not say."""
    total = cached = 0
    for file in files:
        try:
            size = file.stat().st_size
            found = _cached_bytes(file, size) if size else 0
        except (OSError, ValueError):
            return None
        if found is None:
            return None
        total, cached = total + size, cached + min(found, size)
    return cached / total if total else None


def read_in(files: Iterable[Path], *, stopped: Callable[[], bool] = lambda: False) -> int:
    """Read the files once, so that the kernel has them; returns the bytes read. What cannot be read is passed over."""
    done = 0
    for file in files:
        with contextlib.suppress(OSError), open(file, "rb", buffering=0) as opened:
            while not stopped() and (block := opened.read(_BLOCK_BYTES)):
                done += len(block)
    return done


def drop(files: Iterable[Path]) -> None:
    """Let go of what is in memory, so that the next read is from the disk; of no use where others have it mapped."""
    if not hasattr(os, "posix_fadvise"):
        return
    for file in files:
        with contextlib.suppress(OSError), open(file, "rb") as opened:
            os.posix_fadvise(opened.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def _cached_bytes(file: Path, size: int) -> int | None:
    with open(file, "rb") as opened:
        stated = _by_cachestat(opened.fileno(), size)
        if stated is not None:
            return stated
        # Of files that are not its own, the kernel tells a process that all of it is there.
        return _by_mincore(opened.fileno(), size) if os.access(file, os.W_OK) else None


def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)


def _by_cachestat(descriptor: int, size: int) -> int | None:
    if os.uname().sysname != "Linux":
        return None
    asked, found = _Range(0, size), _Found()
    if _libc().syscall(_CACHESTAT, descriptor, ctypes.byref(asked), ctypes.byref(found), 0) != 0:
        return None
    return int(found.cached) * mmap.PAGESIZE


def _by_mincore(descriptor: int, size: int) -> int | None:
    with mmap.mmap(descriptor, size, access=mmap.ACCESS_COPY) as mapped:
        first = ctypes.c_char.from_buffer(mapped)
        try:
            pages = (ctypes.c_ubyte * ((size + mmap.PAGESIZE - 1) // mmap.PAGESIZE))()
            address, length = ctypes.c_void_p(ctypes.addressof(first)), ctypes.c_size_t(size)
            if _libc().mincore(address, length, pages) != 0:
                return None
            return sum(page & 1 for page in pages) * mmap.PAGESIZE
        finally:
            del first
