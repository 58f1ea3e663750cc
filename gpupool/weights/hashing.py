"""SHA-256 of large files: chunks side by side for the tree digest, one stream for the digest that others publish.

`hashlib` releases the interpreter's lock, so threads are enough. The plain digest of a file is one stream and bound to
one core; several files, or the chunks of one, use all of them.
"""

import hashlib
import os
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from gpupool.policies.manifest import CHUNK_BYTES, Manifest, ManifestFile, tree_digest
from gpupool.weights.files import files_of

_PIECE: Final = 1 << 20
_MOST_WORKERS: Final = 16


class DeadlinePassed(Exception):
    """Hashing took longer than it was given."""


Check = Callable[[], None]  # raises where work has to end


def workers() -> int:
    """As many threads as this process has cores, up to sixteen: a disk gives no more to more."""
    return min(len(os.sched_getaffinity(0)), _MOST_WORKERS)


def within(deadline_seconds: float | None, clock: Callable[[], float] = time.monotonic) -> Check:
    """A check that raises DeadlinePassed once the time is over; None: there is all the time."""
    if deadline_seconds is None:
        return lambda: None
    end = clock() + deadline_seconds

    def check() -> None:
        if clock() > end:
            raise DeadlinePassed

    return check


class Hasher:
    """A pool of threads that hashes files. Use as a context; not itself to be shared between threads."""

    def __init__(self, *, threads: int | None = None, chunk_bytes: int = CHUNK_BYTES, check: Check = lambda: None):
        self._chunk_bytes = chunk_bytes
        self._check = check
        self._pool = ThreadPoolExecutor(threads or workers(), thread_name_prefix="hash")

    def close(self) -> None:
        self._pool.shutdown(wait=True, cancel_futures=True)

    def plain(self, paths: list[Path]) -> Iterator[str]:
        """SHA-256 of each file, files side by side. Raises DeadlinePassed, OSError."""
        return self._pool.map(self._plain, paths)

    def tree(self, path: Path) -> str:
        """The tree digest of a file, chunks side by side. Raises DeadlinePassed, OSError."""
        with _opened(path) as file:
            size = os.fstat(file).st_size
            starts = range(0, size, self._chunk_bytes)
            return tree_digest(list(self._pool.map(lambda start: self._chunk(file, start), starts)))

    def _plain(self, path: Path) -> str:
        state, piece = hashlib.sha256(), bytearray(_PIECE)
        view = memoryview(piece)
        with open(path, "rb", buffering=0) as file:
            while read := file.readinto(piece):
                state.update(view[:read])
                self._check()
        return state.hexdigest()

    def _chunk(self, file: int, start: int) -> bytes:
        state, end = hashlib.sha256(), start + self._chunk_bytes
        while start < end and (piece := os.pread(file, min(_PIECE, end - start), start)):
            state.update(piece)
            start += len(piece)
            self._check()
        return state.digest()


@contextmanager
def hasher(
    *, threads: int | None = None, chunk_bytes: int = CHUNK_BYTES, check: Check = lambda: None
) -> Iterator[Hasher]:
    """A Hasher whose threads have ended when the block does, also after a passed deadline."""
    made = Hasher(threads=threads, chunk_bytes=chunk_bytes, check=check)
    try:
        yield made
    finally:
        made.close()


def make_manifest(path: Path, *, chunk_bytes: int = CHUNK_BYTES, threads: int | None = None) -> Manifest:
    """Both digests of every file of the artefact at `path`. Raises OSError, UnfitFolder."""
    files = files_of(path)
    with hasher(threads=threads, chunk_bytes=chunk_bytes) as pool:
        plain = pool.plain(list(files.values()))
        trees = [pool.tree(file) for file in files.values()]
        listed = [
            ManifestFile(path=name, bytes=file.stat().st_size, sha256=whole, tree=tree)
            for (name, file), whole, tree in zip(files.items(), plain, trees, strict=True)
        ]
    return Manifest(files=tuple(listed), chunk_bytes=chunk_bytes)


@contextmanager
def _opened(path: Path) -> Iterator[int]:
    file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        yield file
    finally:
        os.close(file)
