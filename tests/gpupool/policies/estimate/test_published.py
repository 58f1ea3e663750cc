"""Estimates against figures that others have published, within 5 %.

Headers are written here from the published configurations. Of DeepSeek's dynamic quantisations nobody publishes what
type each tensor has, so there the weights of a layer are worked out from the figures: all layers of a kind take the
same, and the cache of one (128 heads of 192 and 128 numbers, 8,192 tokens, f16) is 671,088,640 bytes.
"""

import json
from pathlib import Path
from typing import Any, Final

import pytest

from gpupool.policies.estimate import Estimate, Weights, estimate, from_gguf, from_tensors, read_run
from gpupool.policies.estimate.architecture import Architecture, from_config
from gpupool.policies.estimate.buffers import CARD_CONTEXT_BYTES
from gpupool.policies.estimate.kv_cache import CachePlan, all_layers_bytes
from gpupool.policies.estimate.run import Run
from gpupool.weights.gguf import read_gguf
from tests.gpupool.gguf_headers import LLAMA_3_8B, LLAMA_3_70B, Q4_0, Q4_K, Q8_0, QWEN_2_5_7B, Shape, write_model

GIB: Final = 1 << 30
SAMPLES: Final = Path(__file__).parents[4].parent / "shared/data/gpu-samples/gguf-estimate"
DEEPSEEK: Final = Architecture(
    name="deepseek2", layers=61, embedding=7168, heads=128, kv_heads=(128,) * 61, key_length=192, value_length=128,
    vocabulary=129280, feed_forward=18432, context_length=163840, experts=256, experts_used=8,
)  # fmt: skip
DEEPSEEK_CACHE: Final = 671_088_640  # bytes of one layer: 8192 x 128 x (192 + 128) x 2


def sample(name: str) -> list[dict[str, Any]]:
    path = SAMPLES / f"gpustack__{name}.json"
    if not path.is_file():
        pytest.skip(f"the sample {path.name} is not here")
    items: list[dict[str, Any]] = json.loads(path.read_text())["estimate"]["items"]
    return items


def of(tmp_path: Path, shape: Shape, kind: int, **run: Any) -> Estimate:
    model = read_gguf(write_model(tmp_path / "model.gguf", shape, kind))
    architecture = from_gguf(model.metadata, model.lengths, shape.vocabulary)
    weights = from_tensors(((tensor.name, tensor.size_bytes) for tensor in model.tensors), architecture.layers)
    return estimate(architecture, weights, read_run("llamacpp", {"n_parallel": 1}, **run))


@pytest.mark.parametrize(
    ("shape", "kind", "context", "flash", "file_gib", "card_gib"),
    [
        (QWEN_2_5_7B, Q8_0, 131_072, False, 7.54, 21.82),  # published
        # By hand: weights on the card 6.997, cache 7, compute 0.54 (mask 0.25 and again 0.125 in f16, inputs 0.007,
        # queries 0.02; the logits' 0.3 are the larger step), context 0.244.
        (QWEN_2_5_7B, Q8_0, 131_072, True, 7.54, 14.80),
        (LLAMA_3_70B, Q4_K, 2_048, False, 39.59, 40.49),  # published
    ],
)
def test_a_model_on_one_card(
    tmp_path: Path, shape: Shape, kind: int, context: int, flash: bool, file_gib: float, card_gib: float
) -> None:
    made = of(tmp_path, shape, kind, context=context, flash_attention=flash)
    assert made.file_bytes / GIB == pytest.approx(file_gib, rel=0.005)
    assert made.device_bytes / GIB == pytest.approx(card_gib, rel=0.05)


@pytest.mark.shows("R76")
@pytest.mark.parametrize(("name", "shape"), [("llama3_8b_partial_offload", LLAMA_3_8B)])
def test_each_number_of_offloaded_layers(tmp_path: Path, name: str, shape: Shape) -> None:
    model = read_gguf(write_model(tmp_path / "model.gguf", shape, Q4_0))
    architecture = from_gguf(model.metadata, model.lengths, shape.vocabulary)
    weights = from_tensors(((tensor.name, tensor.size_bytes) for tensor in model.tensors), architecture.layers)
    items = sample(name)
    assert [item["offloadLayers"] for item in items] == list(range(34))
    for item in items[1:]:
        run = read_run("llamacpp", {"n_gpu_layers": item["offloadLayers"], "n_parallel": 1}, context=8192)
        made = estimate(architecture, weights, run)
        (card,) = item["vrams"]
        assert made.cards[0].layers == card["handleLayers"]
        assert made.device_bytes == pytest.approx(card["nonuma"], rel=0.05), item["offloadLayers"]
        assert made.offloaded is not item["fullOffloaded"]
        assert made.host.layers == item["ram"]["handleLayers"]


def test_a_large_model_on_one_card(tmp_path: Path) -> None:
    (item,) = sample("llama3_70b_full_offload")
    made = of(tmp_path, LLAMA_3_70B, Q4_0, context=8192)
    assert made.device_bytes == pytest.approx(item["vrams"][0]["nonuma"], rel=0.05)
    assert made.cards[0].kv_cache == 80 * 8 * 128 * 8192 * 2 * 2


@pytest.mark.parametrize(
    ("name", "shape", "kv_cache"),  # layers x 8 heads x 128 numbers x 8,192 tokens x 2 bytes x keys and values
    [
        ("llama3_8b_disable_offload", LLAMA_3_8B, 32 * 8 * 128 * 8192 * 2 * 2),
        ("llama3_70b_disable_offload", LLAMA_3_70B, 80 * 8 * 128 * 8192 * 2 * 2),
    ],
)
def test_nothing_on_cards(tmp_path: Path, name: str, shape: Shape, kv_cache: int) -> None:
    """Theirs leaves out the weights, which are mapped from the file; what is besides them is compared."""
    (item,) = sample(name)
    made = of(tmp_path, shape, Q4_0, context=8192, on_cards=False)
    assert made.cards == ()
    assert made.host.weights == made.file_bytes
    assert made.host.kv_cache == kv_cache
    assert made.host.total - made.host.weights > item["ram"]["nonuma"]


def _deepseek_run(cards: int) -> Run:
    return read_run("llamacpp", {"n_parallel": 1}, cards=cards, context=8192, flash_attention=False)


def test_the_largest_model_on_one_card() -> None:
    (item,) = sample("deepseek_v3_0324_ud_iq1_s_full_offload")
    (card,) = item["vrams"]
    weights = card["uma"] - 545_792 - 61 * DEEPSEEK_CACHE  # 545,792: one token's logits and state
    output = 760_195_072  # Q6_K, and its norm
    each = (weights - output) // 61
    made = estimate(DEEPSEEK, Weights(0, (each,) * 61, output), _deepseek_run(1))
    assert made.device_bytes == pytest.approx(card["nonuma"], rel=0.01)


@pytest.mark.shows("P4")
def test_layers_over_eight_cards_each_with_its_buffers() -> None:
    """Theirs has no attention scratch here (2 GiB a card, which is in their figure for one card): ours has it."""
    (item,) = sample("deepseek_r1_ud_iq2_xxs_full_offload_split_8")
    published = [card["uma"] for card in item["vrams"]]
    moe = published[1] // 8 - DEEPSEEK_CACHE
    dense = (published[0] - 5 * (moe + DEEPSEEK_CACHE)) // 3 - DEEPSEEK_CACHE
    output = published[7] - 545_792 - 6 * (moe + DEEPSEEK_CACHE)
    made = estimate(DEEPSEEK, Weights(0, (dense,) * 3 + (moe,) * 58, output), _deepseek_run(8))
    assert [card.layers for card in made.cards] == [card["handleLayers"] for card in item["vrams"]]
    for card, theirs in zip(made.cards, item["vrams"], strict=True):
        assert card.weights + card.kv_cache == pytest.approx(theirs["uma"], rel=0.001)
        scratch = 4 * 8192 * 512 * 128
        assert card.compute > scratch
        assert card.total - scratch == pytest.approx(theirs["nonuma"], rel=0.05)
        assert card.context == CARD_CONTEXT_BYTES
    assert made.device_bytes == max(card.total for card in made.cards)


def test_blocks_of_a_paged_cache() -> None:
    """vLLM tells 7,281 blocks of 16 tokens for opt-125m in 4 GiB."""
    opt = from_config(
        {"model_type": "opt", "hidden_size": 768, "num_hidden_layers": 12, "num_attention_heads": 12, "ffn_dim": 3072,
         "vocab_size": 50272, "max_position_embeddings": 2048}
    )  # fmt: skip
    block = all_layers_bytes(opt, CachePlan(tokens=16))
    assert block == 2 * 12 * 768 * 2 * 16
    assert 4 * GIB // block == 7281


def test_the_golden_shape_of_a_cache() -> None:
    """kv[32][2][4096][128] at 16 bits: 64 MiB a head."""
    one_head = from_config(
        {"model_type": "llama", "hidden_size": 4096, "num_hidden_layers": 32, "num_attention_heads": 32,
         "num_key_value_heads": 1, "intermediate_size": 11008, "vocab_size": 32000, "max_position_embeddings": 4096}
    )  # fmt: skip
    assert all_layers_bytes(one_head, CachePlan(tokens=4096)) == 64 << 20
