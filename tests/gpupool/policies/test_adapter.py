"""Adapters as they are read: by their heads alone, and every part held against the others."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpupool.policies.adapter import BadAdapter, head_length, read_adapter

DATA = Path(__file__).resolve().parents[2] / "data" / "tiny32-lora1"
CONFIG = {"peft_type": "LORA", "r": 2, "lora_alpha": 4, "target_modules": ["v_proj", "q_proj"]}
TENSOR = {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 24]}
HEAD = {"__metadata__": {"format": "pt"}, "q_proj.lora_A.weight": TENSOR}


def read(config: Any = CONFIG, head: Any = HEAD, data_bytes: int = 24) -> Any:
    raw = head if isinstance(head, bytes) else json.dumps(head).encode()
    stated = config if isinstance(config, bytes) else json.dumps(config).encode()
    return read_adapter(stated, raw, weights_bytes=8 + len(raw) + data_bytes)


def test_a_real_adapter_is_read() -> None:
    weights = (DATA / "adapter_model.safetensors").read_bytes()
    length = head_length(weights[:8], len(weights))
    facts = read_adapter(
        (DATA / "adapter_config.json").read_bytes(), weights[8 : 8 + length], weights_bytes=len(weights)
    )
    assert (facts.rank, facts.alpha, facts.target_modules) == (4, 8, ["q_proj", "v_proj"])
    assert facts.tensors > 0


def test_what_it_says_is_told() -> None:
    assert (read().rank, read().target_modules, read().tensors) == (2, ["q_proj", "v_proj"], 1)


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({"config": b"{"}, "not an adapter's configuration"),
        ({"config": {"r": 2}}, "peft_type"),
        ({"config": {**CONFIG, "peft_type": "IA3"}}, "only LORA"),
        ({"config": {**CONFIG, "r": 0}}, "rank 0"),
        ({"config": {**CONFIG, "r": 10**9}}, "rank"),
        ({"config": {**CONFIG, "r": 3}}, "rank 3, the tensors have 2"),
        ({"head": b"[]"}, "cannot be read"),
        ({"head": b"[" * 100_000}, "cannot be read"),
        ({"head": {"__metadata__": {"a": 1}}}, "cannot be read"),
        ({"head": {}}, "no tensors of a LoRA"),
        ({"head": {"a": TENSOR}}, "no tensors of a LoRA"),
        ({"head": {"x.lora_A": {**TENSOR, "dtype": "PICKLE"}}}, "type 'PICKLE'"),
        ({"head": {"x.lora_A": {**TENSOR, "shape": [-2, -3]}}}, "negative"),
        ({"head": {"x.lora_A": {**TENSOR, "shape": [2, 4]}}}, "does not lie"),
        ({"head": {"x.lora_A": {**TENSOR, "data_offsets": [8, 32]}}}, "does not lie"),
        ({"head": {"x.lora_A": TENSOR, "y.lora_A": TENSOR}}, "does not lie"),
        ({"data_bytes": 23}, "shorter than its tensors"),
        ({"data_bytes": 25}, "longer than its tensors"),
    ],
)
def test_what_does_not_fit_is_named(wrong: dict[str, Any], says: str) -> None:
    if wrong.get("head") == {}:
        wrong = {**wrong, "data_bytes": 0}
    with pytest.raises(BadAdapter, match=says):
        read(**wrong)


@pytest.mark.parametrize("first", [b"", b"\0" * 7, b"\xff" * 8, (101).to_bytes(8, "little")])
def test_a_head_that_is_not_there_is_none(first: bytes) -> None:
    with pytest.raises(BadAdapter):
        head_length(first, 100)


@given(st.binary(max_size=300), st.binary(max_size=300))
def test_whatever_was_left_is_read_or_refused(config: bytes, head: bytes) -> None:
    for stated in (config, json.dumps(CONFIG).encode()):
        with pytest.raises(BadAdapter):
            read_adapter(stated, head, weights_bytes=8 + len(head))
