"""Manifests are made of what is on a disk, and hold what is there against what was admitted."""

import hashlib
import json
import os
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpupool.policies.manifest import (
    BadManifest,
    Manifest,
    canonical,
    compare,
    digest,
    read_manifest,
    stated,
    without_trees,
)
from gpupool.weights.files import files_of, mounts_of
from gpupool.weights.hashing import hasher, make_manifest
from gpupool.weights.headers import HeaderRefused, check_headers
from gpupool.weights.verify import Mismatch, Unfinished, Verified, verify

CHUNK = 64 << 10


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    model = tmp_path / "model"
    (model / "sub").mkdir(parents=True)
    (model / "config.json").write_text("{}")
    (model / "model.safetensors").write_bytes(os.urandom(3 * CHUNK + 17))
    (model / "sub" / "empty").write_bytes(b"")
    (model / ".cache").mkdir()
    (model / ".cache" / "left").write_text("by a downloader")
    return model


def tree_by_hand(content: bytes) -> str:
    chunks = [hashlib.sha256(content[at : at + CHUNK]).digest() for at in range(0, len(content), CHUNK)]
    return hashlib.sha256(b"".join(chunks)).hexdigest()


@pytest.mark.shows("R162")
@pytest.mark.parametrize("threads", [1, 2, 7])
def test_both_digests_are_what_they_are_said_to_be(folder: Path, threads: int) -> None:
    manifest = make_manifest(folder, chunk_bytes=CHUNK, threads=threads)
    assert [file.path for file in manifest.files] == ["config.json", "model.safetensors", "sub/empty"]
    for file in manifest.files:
        content = (folder / file.path).read_bytes()
        assert (file.bytes, file.sha256) == (len(content), hashlib.sha256(content).hexdigest())
        assert file.tree == tree_by_hand(content)


def test_a_folder_is_named_by_its_configuration_too(folder: Path) -> None:
    assert files_of(folder) == files_of(folder / "config.json")


def test_a_link_to_a_folder_hides_nothing_from_the_manifest(folder: Path, tmp_path: Path) -> None:
    manifest = make_manifest(folder)
    (tmp_path / "elsewhere").mkdir()
    (folder / "sub" / "more").symlink_to(tmp_path / "elsewhere")
    found = verify(folder, manifest)
    assert isinstance(found, Mismatch)
    assert "is a link to a folder" in found.reason
    with pytest.raises(HeaderRefused, match="is a link to a folder"):
        check_headers(folder)


@pytest.mark.shows("R144")
def test_what_is_mounted_is_the_artefact_and_nothing_beside_it(folder: Path) -> None:
    (folder.parent / "anothers").mkdir()
    (folder / "link").symlink_to(folder.parent / "anothers")
    assert mounts_of(folder / "config.json") == mounts_of(folder) == (folder.resolve(),)
    parts = [folder / f"m-0000{number}-of-00002.gguf" for number in (1, 2)]
    for part in parts:
        part.write_bytes(b"GGUF")
    assert mounts_of(parts[0]) == tuple(parts)
    assert mounts_of(folder / "model.safetensors") == (folder / "model.safetensors",)


def test_a_gguf_in_parts_is_all_parts_and_nothing_beside_them(tmp_path: Path) -> None:
    for name in ("m-00001-of-00002.gguf", "m-00002-of-00002.gguf", "other-00001-of-00002.gguf"):
        (tmp_path / name).write_bytes(name.encode())
    first = tmp_path / "m-00001-of-00002.gguf"
    assert list(files_of(first)) == ["m-00001-of-00002.gguf", "m-00002-of-00002.gguf"]
    manifest = make_manifest(first)
    (tmp_path / "m-00002-of-00002.gguf").unlink()
    assert verify(first, manifest) == Mismatch("m-00002-of-00002.gguf", "m-00002-of-00002.gguf is missing.")


def test_what_was_admitted_is_verified_wherever_it_lies(folder: Path, tmp_path: Path) -> None:
    manifest = stated(make_manifest(folder, chunk_bytes=CHUNK))
    moved = folder.rename(tmp_path / "elsewhere")
    assert isinstance(verify(moved / "config.json", json.loads(json.dumps(manifest))), Verified)
    one = tmp_path / "one.gguf"
    one.write_bytes(b"GGUF")
    alone = make_manifest(one)
    assert isinstance(verify(one.rename(tmp_path / "two.gguf"), alone), Verified)


def _flip(model: Path) -> None:
    path = model / "model.safetensors"
    content = bytearray(path.read_bytes())
    content[2 * CHUNK] ^= 1
    path.write_bytes(content)


@pytest.mark.parametrize(
    ("change", "file", "says"),
    [
        (_flip, "model.safetensors", "SHA-256 differs"),
        (lambda model: (model / "sub" / "empty").unlink(), "sub/empty", "is missing"),
        (lambda model: (model / "config.json").write_text("{ }"), "config.json", "has 3 bytes"),
        (lambda model: (model / "evil.py").write_text(""), "evil.py", "not in the manifest"),
    ],
)
@pytest.mark.parametrize("trees", [True, False])
def test_any_other_content_is_named(folder: Path, change: Any, file: str, says: str, trees: bool) -> None:
    manifest = make_manifest(folder, chunk_bytes=CHUNK)
    manifest = manifest if trees else without_trees(manifest)
    change(folder)
    found = verify(folder, manifest)
    assert isinstance(found, Mismatch)
    assert found.file == file
    assert says in found.reason
    assert [difference.path for difference in compare(manifest, make_manifest(folder, chunk_bytes=CHUNK))] == [file]


def test_a_passed_deadline_says_nothing_of_the_file(folder: Path) -> None:
    manifest = make_manifest(folder, chunk_bytes=CHUNK)
    ticks: Iterator[int] = count()
    found = verify(folder, manifest, 1, threads=1, clock=lambda: float(next(ticks)))
    assert found == Unfinished("The artefact's SHA-256 was not there after 1 seconds.")


def test_files_that_are_not_there_are_no_other_content(folder: Path) -> None:
    manifest = make_manifest(folder, chunk_bytes=CHUNK)
    found = verify(folder / "absent.gguf", manifest)
    assert isinstance(found, Unfinished)
    assert "cannot be read" in found.reason


def test_a_pool_ends_its_threads_when_a_check_raises(folder: Path) -> None:
    def no() -> None:
        raise TimeoutError

    with pytest.raises(TimeoutError), hasher(chunk_bytes=CHUNK, check=no) as pool:
        pool.tree(folder / "model.safetensors")


FILE = {"path": "a", "bytes": 1, "sha256": "0" * 64}


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({"files": []}, "1 to"),
        ({"files": [FILE, FILE]}, "twice"),
        ({"files": [FILE | {"path": "../a"}]}, "not a path within"),
        ({"files": [FILE | {"path": "/a"}]}, "not a path within"),
        ({"files": [FILE | {"path": "."}]}, "not a path within"),
        ({"files": [FILE | {"path": "a\0"}]}, "not a path within"),
        ({"files": [FILE | {"path": "a//b"}]}, "not a path within"),
        ({"files": [FILE | {"bytes": -1}]}, "a size that no file has"),
        ({"files": [FILE | {"sha256": "A" * 64}]}, "64 hexadecimal digits"),
        ({"files": [FILE | {"tree": "0"}]}, "64 hexadecimal digits"),
        ({"files": [FILE | {"surprise": 1}]}, "not a manifest"),
        ({"files": [FILE], "chunk_bytes": 1}, "Chunks have"),
        ({"files": [FILE], "version": 2}, "version is 2"),
        ({}, "not a manifest"),
    ],
)
def test_what_is_no_manifest_is_refused_in_words(wrong: dict[str, Any], says: str) -> None:
    with pytest.raises(BadManifest, match=says):
        read_manifest(wrong)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["files", "path", "tree"]), inner),
    max_leaves=8,
)


@given(st.dictionaries(st.sampled_from(["files", "version", "chunk_bytes", "x"]), json_values, max_size=4))
def test_whatever_json_is_given_is_read_or_refused(given_json: dict[str, Any]) -> None:
    with pytest.raises(BadManifest):
        read_manifest(given_json)


def test_the_signed_bytes_do_not_depend_on_the_order_of_files(folder: Path) -> None:
    manifest = make_manifest(folder, chunk_bytes=CHUNK)
    turned = Manifest(files=manifest.files[::-1], chunk_bytes=CHUNK)
    assert canonical(turned) == canonical(manifest)
    assert digest(read_manifest(json.loads(canonical(manifest)))) == digest(manifest)
