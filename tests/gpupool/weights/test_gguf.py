"""GGUF headers: what is in them, and what is not believed of them."""

import contextlib
import struct
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpupool.weights.gguf import read_gguf
from tests.gpupool.gguf_headers import F32, LLAMA_3_8B, Q8_0, tensors, write_header, write_model

TINY = Path(__file__).parents[2] / "data" / "tiny512.gguf"


def test_a_real_model(tmp_path: Path) -> None:
    model = read_gguf(TINY)
    assert model.metadata["general.architecture"] == "llama"
    assert model.file_bytes == TINY.stat().st_size
    assert 0.5 < sum(tensor.size_bytes for tensor in model.tensors) / model.file_bytes <= 1


def test_no_more_than_the_header_is_read(tmp_path: Path) -> None:
    """The file claims 8.5 GB and holds a few kilobytes: its data is a hole."""
    path = write_model(tmp_path / "model.gguf", LLAMA_3_8B, Q8_0)
    model = read_gguf(path)
    assert path.stat().st_blocks * 512 < 1 << 20
    assert model.file_bytes > 8_000_000_000
    assert len(model.tensors) == 3 + 9 * 32
    assert next(one for one in model.tensors if one.name == "blk.3.attn_q.weight").size_bytes == 4096 * 4096 * 34 // 32


def test_long_arrays_are_counted_and_passed_over(tmp_path: Path) -> None:
    metadata = {**LLAMA_3_8B.metadata(), "llama.attention.head_count_kv": [8] * 32, "some.flag": True}
    path = write_header(tmp_path / "model.gguf", metadata, [("a.weight", (4,), F32)], words=5000)
    model = read_gguf(path)
    assert model.lengths == {"tokenizer.ggml.tokens": 5000, "llama.attention.head_count_kv": 32}
    assert model.metadata["llama.attention.head_count_kv"] == (8,) * 32
    assert model.metadata["some.flag"] is True
    assert "tokenizer.ggml.tokens" not in model.metadata


def test_a_type_that_is_not_known_takes_the_distance_to_the_next(tmp_path: Path) -> None:
    path = write_header(tmp_path / "model.gguf", {"a": 1}, [("x", (32,), F32), ("y", (64,), F32)])
    data = path.read_bytes()
    path.write_bytes(data.replace(struct.pack("<IQIQ", 1, 32, F32, 0), struct.pack("<IQIQ", 1, 32, 777, 0)))
    assert [(one.name, one.size_bytes) for one in read_gguf(path).tensors] == [("x", 128), ("y", 256)]


def test_a_model_in_several_files_is_read_as_one(tmp_path: Path) -> None:
    parts = [tensors(LLAMA_3_8B, Q8_0)[:100], tensors(LLAMA_3_8B, Q8_0)[100:]]
    write_header(tmp_path / "m-00001-of-00002.gguf", LLAMA_3_8B.metadata(), parts[0])
    with pytest.raises(OSError, match="m-00002-of-00002"):
        read_gguf(tmp_path / "m-00001-of-00002.gguf")
    write_header(tmp_path / "m-00002-of-00002.gguf", {"split.no": 1}, parts[1])
    assert len(read_gguf(tmp_path / "m-00001-of-00002.gguf").tensors) == 3 + 9 * 32
    with pytest.raises(ValueError, match="not the first of its files"):
        read_gguf(tmp_path / "m-00002-of-00002.gguf")


@pytest.mark.parametrize(
    ("head", "reason"),
    [
        (b"", "empty"),
        (b"PK\x03\x04" + bytes(20), "begins with"),
        (b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + struct.pack("<Q", 1 << 60), "damaged"),
        (b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + struct.pack("<Q3sI", 3, b"key", 99), "unknown type 99"),
        (b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + struct.pack("<Q3sIIQ", 3, b"key", 9, 5, 1 << 62), "damaged"),
        (b"GGUF" + struct.pack("<IQQ", 3, 1, 0) + struct.pack("<Q1sI", 1, b"t", 200), "200 dimensions"),
        (b"GGUF" + struct.pack("<IQQ", 3, 999, 0), "damaged"),
    ],
)
def test_a_damaged_header_says_so(tmp_path: Path, head: bytes, reason: str) -> None:
    path = tmp_path / "model.gguf"
    path.write_bytes(head)
    with pytest.raises(ValueError, match=reason):
        read_gguf(path)


@given(data=st.data())
def test_no_bytes_make_it_do_anything_else(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    whole = TINY.read_bytes()[:4000]
    cut = data.draw(st.integers(24, len(whole)))
    at = data.draw(st.integers(0, cut - 1))
    path = tmp_path_factory.getbasetemp() / "damaged.gguf"
    path.write_bytes(whole[:at] + data.draw(st.binary(min_size=1, max_size=8)) + whole[at + 1 : cut])
    with contextlib.suppress(ValueError):
        read_gguf(path)
