"""Load and validate: artefacts whose headers cannot be true are refused before an engine gets them."""

import json
from pathlib import Path
from typing import Any

import pytest

from gpupool.weights.headers import Checked, HeaderRefused, check_headers

DATA = Path(__file__).resolve().parents[2] / "data"
TINY = DATA / "tiny512.gguf"
ADAPTER = DATA / "tiny32-lora1"


def test_whole_models_are_counted() -> None:
    assert check_headers(TINY) == Checked("gguf", 21, 558_336)
    assert check_headers(ADAPTER) == Checked("safetensors", 8, 14_336)


@pytest.mark.shows("R85")
@pytest.mark.parametrize("length", [0, 3, 24, 100, 5_000, 13_535, 200_000, 571_871])
def test_a_gguf_that_was_cut_off_is_refused(tmp_path: Path, length: int) -> None:
    cut = tmp_path / "cut.gguf"
    cut.write_bytes(TINY.read_bytes()[:length])
    with pytest.raises(HeaderRefused, match=r"cut\.gguf is not a whole GGUF file"):
        check_headers(cut)


@pytest.mark.shows("R85")
def test_tensors_that_lie_over_one_another_are_refused(tmp_path: Path) -> None:
    content = TINY.read_bytes()
    # The second tensor's offset, after its name: two dimensions and its type come before it.
    at = content.index(b"blk.0.attn_q.weight") + len(b"blk.0.attn_q.weight") + 4 + 8 + 8 + 4
    path = tmp_path / "over.gguf"
    path.write_bytes(content[:at] + (0).to_bytes(8, "little") + content[at + 8 :])
    with pytest.raises(HeaderRefused, match="lies over another"):
        check_headers(path)


def written(path: Path, tensors: dict[str, Any], *, cut: int = 0) -> None:
    raw = json.dumps(tensors).encode()
    end = max(tensor["data_offsets"][1] for tensor in tensors.values())
    path.write_bytes(len(raw).to_bytes(8, "little") + raw + bytes(end - cut))


def a_tensor(first: int = 0) -> dict[str, Any]:
    return {"dtype": "F32", "shape": [2], "data_offsets": [first, first + 8]}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "config.json").write_text('{"model_type": "llama"}')
    written(tmp_path / "model-00001-of-00002.safetensors", {"a": a_tensor()})
    written(tmp_path / "model-00002-of-00002.safetensors", {"b": a_tensor(), "c": a_tensor(8)})
    names = {"a": "model-00001-of-00002.safetensors", "b": "model-00002-of-00002.safetensors"}
    index = {"metadata": {"total_size": 24}, "weight_map": names | {"c": names["b"]}}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    return tmp_path


def test_a_folder_is_checked_by_its_index(folder: Path) -> None:
    assert check_headers(folder / "config.json") == Checked("safetensors", 3, 24)


def _cut(folder: Path) -> None:
    written(folder / "model-00002-of-00002.safetensors", {"b": a_tensor(), "c": a_tensor(8)}, cut=1)


@pytest.mark.shows("R85")
@pytest.mark.parametrize(
    ("damage", "says"),
    [
        (lambda f: (f / "model-00002-of-00002.safetensors").unlink(), "the model was not copied whole"),
        (lambda f: written(f / "model-00002-of-00002.safetensors", {"b": a_tensor()}), "lacks 'c'"),
        (_cut, "1 bytes shorter than its tensors"),
        (lambda f: (f / "model.safetensors.index.json").write_text("{}"), "index cannot be read"),
        (lambda f: (f / "config.json").write_text("{}"), "model_type or architectures"),
        (lambda f: (f / "config.json").write_text("["), "is not JSON"),
    ],
)
def test_a_folder_that_is_not_whole_is_refused(folder: Path, damage: Any, says: str) -> None:
    damage(folder)
    with pytest.raises(HeaderRefused, match=says):
        check_headers(folder / "config.json")


def test_a_part_that_is_missing_is_named(tmp_path: Path) -> None:
    first = tmp_path / "m-00001-of-00002.gguf"
    first.write_bytes(TINY.read_bytes())
    assert check_headers(first) is not None  # by its own word it is whole
    first.unlink()
    with pytest.raises(HeaderRefused, match="no files of a model"):
        check_headers(first)


def test_what_is_of_another_format_is_the_engines_to_judge(tmp_path: Path) -> None:
    other = tmp_path / "model.onnx"
    other.write_bytes(b"onnx")
    assert check_headers(other) is None
