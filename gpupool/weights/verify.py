"""Whether the artefact on this node is the one that its manifest names, before a load. Blocks: run it in a thread."""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from gpupool.policies.manifest import BadManifest, Manifest, compare_names, differs, read_manifest
from gpupool.weights.files import UnfitFolder, files_of
from gpupool.weights.hashing import DeadlinePassed, hasher, within

VERIFY_SECONDS: Final = 90.0


@dataclass(frozen=True, slots=True)
class Verified:
    """Every file is the one that was admitted."""

    files: int
    bytes: int
    seconds: float


@dataclass(frozen=True, slots=True)
class Mismatch:
    """It is not that artefact; `reason` is a sentence, `file` empty where no one file is to blame."""

    file: str
    reason: str


@dataclass(frozen=True, slots=True)
class Unfinished:
    """It cannot be said in time, or the files cannot be read now; trying again can help."""

    reason: str


def verify(
    path: Path,
    manifest: Mapping[str, Any] | Manifest,
    deadline_seconds: float | None = VERIFY_SECONDS,
    *,
    threads: int | None = None,
    clock: Callable[[], float] = time.monotonic,
    stopped: Callable[[], bool] = lambda: False,
) -> Verified | Mismatch | Unfinished:
    """Compare the files of the artefact at `path` (see `files_of`) with the manifest: names and sizes, then digests.

    A file with a tree digest is held against that alone, chunks side by side. Ends within about a megabyte's
    hashing of the deadline, or of when `stopped` says so. Raises nothing that has to do with the files.
    """
    began = clock()
    try:
        expected = manifest if isinstance(manifest, Manifest) else read_manifest(manifest)
        files = files_of(path)
        if differences := compare_names(expected, {name: file.stat().st_size for name, file in files.items()}):
            return Mismatch(differences[0].path, differences[0].reason)
        wrong = _first_wrong(expected, files, _until(stopped, within(deadline_seconds, clock)), threads)
    except (BadManifest, UnfitFolder) as error:
        return Mismatch("", str(error))
    except _Stopped:
        return Unfinished("The comparison was given up: nobody waits for it.")
    except DeadlinePassed:
        return Unfinished(f"The artefact's SHA-256 was not there after {deadline_seconds:g} seconds.")
    except OSError as error:
        return Unfinished(f"{error.filename or path} cannot be read: {error.strerror}.")
    if wrong is not None:
        return Mismatch(wrong, differs(wrong).reason)
    return Verified(files=len(expected.files), bytes=expected.total_bytes, seconds=clock() - began)


class _Stopped(Exception):
    """Nobody wants to know any more."""


def _until(stopped: Callable[[], bool], check: Callable[[], None]) -> Callable[[], None]:
    def both() -> None:
        if stopped():
            raise _Stopped
        check()

    return both


def _first_wrong(
    expected: Manifest, files: Mapping[str, Path], check: Callable[[], None], threads: int | None
) -> str | None:
    alone = next(iter(files.values())) if len(files) == 1 else None  # one file may be called otherwise here
    at = {file.path: alone or files[file.path] for file in expected.files}
    with hasher(threads=threads, chunk_bytes=expected.chunk_bytes, check=check) as pool:
        streams = [file for file in expected.files if file.tree is None]
        plain = pool.plain([at[file.path] for file in streams])
        for file in expected.files:
            if file.tree is not None and pool.tree(at[file.path]) != file.tree:
                return file.path
        for file, found in zip(streams, plain, strict=True):
            if found != file.sha256:
                return file.path
    return None
