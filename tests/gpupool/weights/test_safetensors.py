"""Headers of safetensors files: read without the data, and refused where they cannot be true."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpupool.weights.safetensors import BadSafetensors, Tensor, read_header, read_index

ADAPTER = Path(__file__).resolve().parents[2] / "data" / "tiny32-lora1" / "adapter_model.safetensors"
TENSOR = {"dtype": "BF16", "shape": [2, 3], "data_offsets": [0, 12]}


def written(head: Any, data_bytes: int) -> bytes:
    raw = head if isinstance(head, bytes) else json.dumps(head).encode()
    return len(raw).to_bytes(8, "little") + raw + bytes(data_bytes)


@pytest.mark.shows("R85")
def test_a_real_file_is_read_alike_from_disk_and_from_its_first_bytes() -> None:
    header = read_header(ADAPTER)
    content = ADAPTER.read_bytes()
    assert read_header(content[: header.head_bytes], file_bytes=len(content)) == header
    assert read_header(content[: header.head_bytes]) == header
    assert header.head_bytes + header.data_bytes == len(content)
    assert sum(tensor.bytes for tensor in header.tensors) == header.data_bytes


def test_tensors_are_told_with_their_sizes() -> None:
    head = {
        "b": {"dtype": "F4", "shape": [3, 2], "data_offsets": [12, 15]},
        "a": TENSOR,
        "scalar": {"dtype": "F32", "shape": [], "data_offsets": [15, 19]},
        "__metadata__": {"format": "pt"},
    }
    content = written(head, 19)
    header = read_header(content, file_bytes=len(content))
    assert header.tensors == (
        Tensor(name="a", dtype="BF16", shape=(2, 3), bytes=12, offset=0),
        Tensor(name="b", dtype="F4", shape=(3, 2), bytes=3, offset=12),
        Tensor(name="scalar", dtype="F32", shape=(), bytes=4, offset=15),
    )
    assert header.metadata == {"format": "pt"}


@pytest.mark.shows("R85")
@pytest.mark.parametrize(
    ("head", "data_bytes", "says"),
    [
        (b"[]", 0, "cannot be read"),
        ({"a": TENSOR, "b": TENSOR}, 24, "does not lie"),
        ({"a": TENSOR | {"data_offsets": [1, 13]}}, 13, "does not lie"),
        ({"a": TENSOR | {"data_offsets": [0, 13]}}, 13, "does not lie"),
        ({"a": TENSOR | {"shape": [-2, -3]}}, 12, "negative"),
        ({"a": TENSOR | {"dtype": "PICKLE"}}, 12, "type 'PICKLE'"),
        ({"a": TENSOR | {"dtype": "F4", "shape": [3], "data_offsets": [0, 1]}}, 1, "whole byte"),
        ({"a": TENSOR | {"shape": [1] * 65}}, 12, "dimensions"),
        ({"a": TENSOR}, 11, "1 bytes shorter"),
        ({"a": TENSOR}, 13, "1 bytes longer"),
        ({"a": TENSOR, "__metadata__": {"n": 1}}, 12, "cannot be read"),
    ],
)
def test_what_cannot_be_true_is_refused(tmp_path: Path, head: Any, data_bytes: int, says: str) -> None:
    path = tmp_path / "model.safetensors"
    path.write_bytes(written(head, data_bytes))
    with pytest.raises(BadSafetensors, match=says):
        read_header(path)


@pytest.mark.parametrize("content", [b"", b"\0" * 7, b"\0" * 8, b"\xff" * 8, (101).to_bytes(8, "little") + b"{}"])
def test_a_file_without_a_head_is_none(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "model.safetensors"
    path.write_bytes(content)
    with pytest.raises(BadSafetensors):
        read_header(path)
    with pytest.raises(BadSafetensors):
        read_header(content)


@given(st.binary(max_size=200), st.integers(0, 300))
def test_whatever_lies_there_is_read_or_refused(head: bytes, file_bytes: int) -> None:
    with pytest.raises(BadSafetensors):
        read_header(written(head, 0), file_bytes=file_bytes + len(head) + 1)


def test_an_index_names_files_of_its_folder(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors.index.json"
    path.write_text(json.dumps({"metadata": {"total_size": 12.0}, "weight_map": {"a": "m-1.safetensors"}}))
    assert (read_index(path).weight_map, read_index(path).total_bytes) == ({"a": "m-1.safetensors"}, 12)
    assert read_index(b'{"weight_map": {}}').total_bytes is None


@pytest.mark.parametrize(
    "content",
    [b"", b"[]", b'{"weight_map": {"a": "../x"}}', b'{"weight_map": {"a": ".."}}', b'{"weight_map": {"a": ""}}'],
)
def test_an_index_that_leads_elsewhere_is_refused(content: bytes) -> None:
    with pytest.raises(BadSafetensors):
        read_index(content)
