"""Estimates of files that somebody made to hurt: a sentence in a short time, and never less than the file."""

import json
import os
import struct
from pathlib import Path
from typing import Any

import pytest

from gpupool.agent.artefacts import ArtefactMissing, ArtefactUriRefused, locate
from gpupool.policies.estimate import CannotEstimate, Estimate
from gpupool.reads.estimates import Asked, estimate_asked

CONFIG = {"num_hidden_layers": 32, "hidden_size": 4096, "num_attention_heads": 32, "vocab_size": 32_000}
U32, F32, TEXT, LIST, U64 = 4, 6, 8, 9, 10


def text(value: str) -> bytes:
    return struct.pack("<Q", len(value)) + value.encode()


def pair(key: str, kind: int, value: bytes) -> bytes:
    return text(key) + struct.pack("<I", kind) + value


def number(key: str, value: int) -> bytes:
    return pair(f"llama.{key}", U64, struct.pack("<Q", value))


MODEL = [
    pair("general.architecture", TEXT, text("llama")),
    number("block_count", 2),
    number("embedding_length", 64),
    number("attention.head_count", 4),
]


def of_gguf(folder: Path, *more: bytes, dimensions: tuple[int, ...] = (8, 8), data: int = 4096) -> Estimate:
    pairs = [*MODEL, *more]
    tensor = text("blk.0.a") + struct.pack(f"<I{len(dimensions)}QIQ", len(dimensions), *dimensions, 0, 0)
    path = folder / "model.gguf"
    path.write_bytes(b"GGUF" + struct.pack("<IQQ", 3, 1, len(pairs)) + b"".join(pairs) + tensor)
    os.truncate(path, path.stat().st_size + data)
    return estimate_asked(Asked("llamacpp", path.as_uri()))


def of_folder(folder: Path, config: str) -> Estimate:
    (folder / "config.json").write_text(config)
    head = json.dumps({"a": {"dtype": "F16", "shape": [2], "data_offsets": [0, 4]}}).encode()
    (folder / "model.safetensors").write_bytes(struct.pack("<Q", len(head)) + head + bytes(4))
    return estimate_asked(Asked("vllm", (folder / "config.json").as_uri()))


@pytest.mark.shows("P2")
def test_what_no_tensor_claims_is_counted_too(tmp_path: Path) -> None:
    """600 MiB of data and one tensor of 256 bytes: an engine maps all of it."""
    made = of_gguf(tmp_path, data=600 << 20)
    assert sum(card.weights for card in made.cards) + made.host.weights >= 599 << 20
    assert made.file_bytes >= 599 << 20


@pytest.mark.parametrize(
    ("more", "dimensions"),
    [
        ((), (2**63,) * 8),
        ((number("vocab_size", 2**63), number("feed_forward_length", 2**63)), (8, 8)),
        ((number("attention.key_length", 2**64 - 1),), (8, 8)),
        ((pair("llama.attention.head_count", LIST, struct.pack("<IQf", F32, 1, float("inf"))),), (8, 8)),
        ((pair("llama.feed_forward_length", LIST, struct.pack("<IQf", F32, 1, float("inf"))),), (8, 8)),
        ((pair("tokens", LIST, struct.pack("<IQ", TEXT, 3_000_000)),), (8, 8)),
    ],
)
def test_numbers_that_cannot_be_are_refused(tmp_path: Path, more: tuple[bytes, ...], dimensions: tuple[int]) -> None:
    with pytest.raises(CannotEstimate):
        of_gguf(tmp_path, *more, dimensions=dimensions, data=64 << 20)


@pytest.mark.parametrize("counts", [(1_000_000, 0), (0, 1_000_000)])
def test_a_header_of_a_million_things_is_not_read(tmp_path: Path, counts: tuple[int, int]) -> None:
    path = tmp_path / "model.gguf"
    path.write_bytes(b"GGUF" + struct.pack("<IQQ", 3, *counts))
    os.truncate(path, 1 << 32)
    with pytest.raises(CannotEstimate, match="1000000"):
        estimate_asked(Asked("llamacpp", path.as_uri()))


@pytest.mark.parametrize(
    "config",
    [
        '{"a":' + "[" * 200_000,
        json.dumps({**CONFIG, "hidden_size": 10**400}),
        json.dumps({**CONFIG, "max_position_embeddings": 2**62}),
    ],
)
def test_configurations_that_cannot_be_are_refused(tmp_path: Path, config: str) -> None:
    with pytest.raises(CannotEstimate):
        of_folder(tmp_path, config)


@pytest.mark.parametrize("uri", ["file:///etc/passwd", "file:///etc/passwd?.gguf", "file:///no/such", "file:///etc/"])
def test_of_other_files_nothing_is_told(uri: str) -> None:
    """Neither their first bytes nor whether they are there."""
    with pytest.raises(CannotEstimate, match="only GGUF files"):
        estimate_asked(Asked("llamacpp", uri))


def test_a_pipe_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "model.gguf")
    with pytest.raises(ArtefactMissing, match="a pipe or a device"):
        locate((tmp_path / "model.gguf").as_uri())


@pytest.mark.parametrize("uri", ["file://[::1/model.gguf", "package:gpupool/a\0b.gguf"])
def test_an_address_that_is_none_is_refused(uri: Any) -> None:
    with pytest.raises(ArtefactUriRefused):
        locate(uri)
