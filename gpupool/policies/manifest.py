"""Which files an artefact has, and their digests. The shape, its canonical bytes, and the comparison; no reading.

Each file has the SHA-256 of its bytes, which is what others publish, and may have a *tree digest*: SHA-256 over the
SHA-256 digests (32 raw bytes each) of its consecutive chunks of `chunk_bytes`, the last one shorter; of an empty file,
SHA-256 of nothing. Chunks can be hashed side by side, one stream cannot.
"""

import json
import re
from collections.abc import Mapping, Sequence
from hashlib import sha256
from pathlib import PurePosixPath
from typing import Any, Final

import msgspec

CHUNK_BYTES: Final = 8 << 20
MOST_FILES: Final = 10_000
_SMALLEST_CHUNK: Final = 64 << 10
_LARGEST_CHUNK: Final = 1 << 30
_LONGEST_PATH: Final = 1024
_LARGEST_FILE: Final = 2**62
_HEX: Final = re.compile(r"[0-9a-f]{64}")


class BadManifest(ValueError):
    """This is no manifest; the message is a sentence."""


class ManifestFile(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One file, by its path within the artefact's folder."""

    path: str
    bytes: int
    sha256: str
    tree: str | None = None


class Manifest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """All files of an artefact, by path."""

    files: tuple[ManifestFile, ...]
    chunk_bytes: int = CHUNK_BYTES
    version: int = 1

    @property
    def total_bytes(self) -> int:
        return sum(file.bytes for file in self.files)


def read_manifest(stated: Mapping[str, Any]) -> Manifest:
    """A manifest from its JSON. Raises BadManifest."""
    try:
        manifest = msgspec.convert(stated, Manifest)
    except (msgspec.ValidationError, RecursionError) as error:
        raise BadManifest(f"This is not a manifest: {error}.") from error
    if manifest.version != 1:
        raise BadManifest(f"The manifest's version is {manifest.version}; 1 is read.")
    if not _SMALLEST_CHUNK <= manifest.chunk_bytes <= _LARGEST_CHUNK:
        raise BadManifest(f"Chunks have {_SMALLEST_CHUNK} to {_LARGEST_CHUNK} bytes.")
    if not 0 < len(manifest.files) <= MOST_FILES:
        raise BadManifest(f"A manifest names 1 to {MOST_FILES} files.")
    for file in manifest.files:
        _check_file(file)
    if len({file.path for file in manifest.files}) != len(manifest.files):
        raise BadManifest("The manifest names a file twice.")
    return Manifest(files=tuple(sorted(manifest.files, key=lambda file: file.path)), chunk_bytes=manifest.chunk_bytes)


def stated(manifest: Manifest) -> dict[str, Any]:
    """A manifest as JSON has it."""
    files = [
        {"path": file.path, "bytes": file.bytes, "sha256": file.sha256} | ({"tree": file.tree} if file.tree else {})
        for file in manifest.files
    ]
    return {"version": manifest.version, "chunk_bytes": manifest.chunk_bytes, "files": files}


def canonical(manifest: Manifest) -> bytes:
    """The bytes that are signed: JSON with sorted members, an indent of two, files by path, a newline at the end."""
    ordered = Manifest(
        files=tuple(sorted(manifest.files, key=lambda file: file.path)), chunk_bytes=manifest.chunk_bytes
    )
    return (json.dumps(stated(ordered), indent=2, sort_keys=True) + "\n").encode()


def digest(manifest: Manifest) -> str:
    """SHA-256 of the canonical bytes: names the artefact as a whole."""
    return sha256(canonical(manifest)).hexdigest()


def without_trees(manifest: Manifest) -> Manifest:
    """The same with plain digests alone: for one whose tree digests nobody vouches for."""
    files = tuple(msgspec.structs.replace(file, tree=None) for file in manifest.files)
    return Manifest(files=files, chunk_bytes=manifest.chunk_bytes)


class Difference(msgspec.Struct, frozen=True):
    """How a file differs from what the manifest says; the reason is a sentence."""

    path: str
    reason: str


def compare_names(expected: Manifest, found: Mapping[str, int]) -> list[Difference]:
    """Files that are missing, too many or of another size; `found` is bytes by path. Costs no reading of data.

    An artefact of one file may be called otherwise here: what it is called is not its content.
    """
    if len(expected.files) == 1 and len(found) == 1:
        found = {expected.files[0].path: next(iter(found.values()))}
    differences = [
        Difference(path, f"{path} is not in the manifest.") for path in sorted(found.keys() - _paths(expected))
    ]
    for file in expected.files:
        size = found.get(file.path)
        if size is None:
            differences.append(Difference(file.path, f"{file.path} is missing."))
        elif size != file.bytes:
            differences.append(Difference(file.path, f"{file.path} has {size} bytes; the manifest says {file.bytes}."))
    return differences


def compare(expected: Manifest, found: Manifest) -> list[Difference]:
    """All that differs. Digests that only one side has are not held against the other's."""
    differences = compare_names(expected, {file.path: file.bytes for file in found.files})
    wrong = {difference.path for difference in differences}
    by_path = {file.path: file for file in found.files}
    if len(expected.files) == 1 and len(found.files) == 1:
        by_path = {expected.files[0].path: found.files[0]}
    same_chunks = expected.chunk_bytes == found.chunk_bytes
    for file in expected.files:
        other = by_path.get(file.path)
        if other is None or file.path in wrong:
            continue
        trees_differ = bool(same_chunks and file.tree and other.tree and file.tree != other.tree)
        if file.sha256 != other.sha256 or trees_differ:
            differences.append(differs(file.path))
    return differences


def differs(path: str) -> Difference:
    """The difference of a file whose content is not what the manifest says."""
    return Difference(path, f"{path} is not the file that the manifest names: its SHA-256 differs.")


def tree_digest(chunks: Sequence[bytes]) -> str:
    """The tree digest from the chunks' raw digests, in order."""
    return sha256(b"".join(chunks)).hexdigest()


def _paths(manifest: Manifest) -> set[str]:
    return {file.path for file in manifest.files}


def _check_file(file: ManifestFile) -> None:
    path = PurePosixPath(file.path)
    shown = file.path[:200]
    if (
        not 0 < len(file.path) <= _LONGEST_PATH
        or not path.parts
        or path.is_absolute()
        or ".." in path.parts
        or str(path) != file.path
        or not file.path.isprintable()
        or "\\" in file.path
    ):
        raise BadManifest(f"{shown!r} is not a path within the artefact's folder.")
    if not 0 <= file.bytes <= _LARGEST_FILE:
        raise BadManifest(f"The manifest gives {shown} a size that no file has.")
    if not _HEX.fullmatch(file.sha256):
        raise BadManifest(f"The manifest's SHA-256 of {shown} is not 64 hexadecimal digits in lower case.")
    if file.tree is not None and not _HEX.fullmatch(file.tree):
        raise BadManifest(f"The manifest's tree digest of {shown} is not 64 hexadecimal digits in lower case.")
