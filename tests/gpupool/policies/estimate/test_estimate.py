"""Kinds of attention, kinds of cache, and where layers go."""

from dataclasses import replace
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpupool.engines.registry import get_engine
from gpupool.policies.estimate import CannotEstimate, Measured, Weights, correct, estimate, from_config, read_run
from gpupool.policies.estimate.architecture import Architecture, from_gguf
from gpupool.policies.estimate.kv_cache import CachePlan, all_layers_bytes, layer_tokens, token_bytes
from gpupool.policies.estimate.spread import deal_layers
from gpupool.policies.estimate.weights import from_tensors

GIB = 1 << 30


def evenly(total_bytes: int, layers: int) -> Weights:
    """Layers of one size and nothing else."""
    return Weights(0, (total_bytes // layers,) * layers, 0)


LLAMA_8B = {
    "model_type": "llama", "hidden_size": 4096, "num_hidden_layers": 32, "num_attention_heads": 32,
    "num_key_value_heads": 8, "intermediate_size": 14336, "vocab_size": 128256, "max_position_embeddings": 131072,
}  # fmt: skip
GEMMA_3_27B = {
    "general.architecture": "gemma3", "gemma3.block_count": 62, "gemma3.embedding_length": 5376,
    "gemma3.feed_forward_length": 21504, "gemma3.attention.head_count": 32, "gemma3.attention.head_count_kv": 16,
    "gemma3.attention.key_length": 128, "gemma3.attention.value_length": 128,
    "gemma3.attention.sliding_window": 1024, "gemma3.context_length": 131072,
}  # fmt: skip
DEEPSEEK_V3 = {
    "model_type": "deepseek_v3", "hidden_size": 7168, "num_hidden_layers": 61, "num_attention_heads": 128,
    "num_key_value_heads": 128, "kv_lora_rank": 512, "qk_rope_head_dim": 64, "qk_nope_head_dim": 128,
    "v_head_dim": 128, "intermediate_size": 18432, "vocab_size": 129280, "n_routed_experts": 256,
    "num_experts_per_tok": 8, "max_position_embeddings": 163840,
}  # fmt: skip


def test_grouped_heads_share_keys_and_values() -> None:
    plan = CachePlan(tokens=8192)
    assert all_layers_bytes(from_config(LLAMA_8B), plan) == GIB
    without = from_config({**LLAMA_8B, "num_key_value_heads": 32})
    assert all_layers_bytes(without, plan) == 4 * GIB


def test_a_latent_cache_keeps_576_numbers_of_a_token() -> None:
    """DeepSeek-V3: 512 + 64 at 16 bits in each of 61 layers, 70,272 bytes a token, on every card the whole of it."""
    architecture = from_config(DEEPSEEK_V3)
    plan = CachePlan(tokens=1000, values_apart=False)
    assert all_layers_bytes(architecture, plan) == 70_272 * 1000
    assert all_layers_bytes(architecture, replace(plan, cards=8)) == 70_272 * 1000


@pytest.mark.shows("P3")
def test_sliding_windows_hold_their_window_and_no_more() -> None:
    """Gemma 3 27B: of six layers five look back 1,024 tokens."""
    architecture = from_gguf(GEMMA_3_27B, {}, 262_144)
    plan = CachePlan(tokens=131_072, batch=512)
    assert [layer_tokens(architecture, layer, plan) for layer in range(7)] == [1536] * 5 + [131_072, 1536]
    full = sum(architecture.window(layer) is None for layer in range(62))
    assert full == 10
    per_token = 16 * (128 + 128) * 2
    assert all_layers_bytes(architecture, plan) == per_token * (10 * 131_072 + 52 * 1536)
    assert all_layers_bytes(replace(architecture, windows=()), plan) > 5 * all_layers_bytes(architecture, plan)


@pytest.mark.shows("P3")
@pytest.mark.parametrize(
    ("name", "a_number"),
    [("f16", Fraction(2)), ("q8_0", Fraction(34, 32)), ("q4_0", Fraction(18, 32)), ("fp8", Fraction(1))],
)
def test_a_quantised_cache_takes_what_its_blocks_take(name: str, a_number: Fraction) -> None:
    architecture = from_config(LLAMA_8B)
    plan = CachePlan(tokens=1, key_type=name, value_type=name)
    assert token_bytes(architecture, 0, plan) == 8 * 256 * a_number


def test_an_unknown_cache_type_is_refused_by_name() -> None:
    run = read_run("llamacpp", {}, cache_type="q3_9", flash_attention=True)
    with pytest.raises(CannotEstimate, match="'q3_9' is not known"):
        estimate(from_config(LLAMA_8B), evenly(8 * GIB, 32), run)


def test_a_cache_whose_blocks_do_not_divide_the_heads_is_refused_as_the_engine_does() -> None:
    small = from_config({**LLAMA_8B, "head_dim": 16})
    run = read_run("llamacpp", {}, cache_type="q8_0", flash_attention=True)
    with pytest.raises(CannotEstimate, match="heads of 16: the engine would not start"):
        estimate(small, evenly(8 * GIB, 32), run)


def test_values_stay_whole_without_flash_attention() -> None:
    off = read_run("llamacpp", {"flash_attention": "off"}, cache_type="q4_0")
    assert (off.key_type, off.value_type) == ("q4_0", "f16")
    assert "without flash attention" in off.notes[0]
    on = read_run("llamacpp", {"flash_attention": "on"}, cache_type="q4_0")
    assert (on.key_type, on.value_type) == ("q4_0", "q4_0")


def test_windows_of_configurations_as_they_are_written() -> None:
    types = ["sliding_attention", "full_attention"] * 2
    listed = {**LLAMA_8B, "num_hidden_layers": 4, "sliding_window": 100, "layer_types": types}
    assert from_config(listed).windows == (100, None, 100, None)
    mistral = {**LLAMA_8B, "model_type": "mistral", "num_hidden_layers": 2, "sliding_window": 4096}
    assert from_config(mistral).windows == (4096, 4096)
    assert from_config({**mistral, "model_type": "qwen2", "use_sliding_window": False}).windows == ()
    assert from_config({**mistral, "model_type": "something_new"}).windows == (None, None)  # rather too much


@pytest.mark.shows("R76")
def test_an_8b_has_33_layers_to_offload() -> None:
    assert deal_layers(32, cards=1, gpu_layers=32).output_on is None
    assert deal_layers(32, cards=1, gpu_layers=33).output_on == 0
    whole = deal_layers(32, cards=1, gpu_layers=None)
    assert (whole.cards, len(whole.host), whole.output_on) == ((range(32),), 0, 0)
    partly = deal_layers(32, cards=1, gpu_layers=20)
    assert (partly.cards, partly.host) == ((range(12, 32),), range(12))


@given(st.integers(1, 130), st.integers(1, 16), st.one_of(st.none(), st.integers(0, 140)))
def test_every_layer_is_dealt_once(layers: int, cards: int, gpu_layers: int | None) -> None:
    deal = deal_layers(layers, cards=cards, gpu_layers=gpu_layers)
    dealt = [layer for own in (deal.host, *deal.cards) for layer in own]
    assert dealt == list(range(layers))
    sizes = [len(own) + (deal.output_on == number) for number, own in enumerate(deal.cards)]
    assert max(sizes) - min(sizes) <= 1
    assert (deal.output_on is None) == (gpu_layers is not None and gpu_layers <= layers)


@pytest.mark.shows("P2")
@given(
    st.integers(64, 4096),
    st.lists(st.integers(0, 1 << 30), min_size=32, max_size=32),
    st.integers(0, 8 << 30),
    st.integers(1, 8),
    st.sampled_from(["llamacpp", "vllm"]),
)
def test_devices_never_hold_less_than_the_file(
    context: int, layers: list[int], table: int, cards: int, engine: str
) -> None:
    weights = Weights(table, tuple(layers), table)
    cards = 1 << (cards.bit_length() - 1)
    made = estimate(from_config(LLAMA_8B), weights, read_run(engine, {}, cards=cards, context=context))
    assert sum(card.total for card in made.cards) >= weights.total_bytes
    assert not made.offloaded


@pytest.mark.shows("P2")
def test_less_than_the_file_is_said_to_be_offloading() -> None:
    weights = evenly(40 * GIB, 32)
    made = estimate(from_config(LLAMA_8B), weights, read_run("llamacpp", {"n_gpu_layers": 4}))
    assert made.device_bytes < weights.total_bytes
    assert made.offloaded
    assert "4 of 33 layers are on devices (n_gpu_layers 4)" in made.notes[-1]
    assert made.host.weights + made.cards[0].weights == weights.total_bytes


def test_tensor_parallel_cards_share_heads_and_repeat_what_cannot_be_cut() -> None:
    architecture, weights = from_config(LLAMA_8B), evenly(16 * GIB, 32)
    one, eight, sixteen = (
        estimate(architecture, weights, read_run("vllm", {}, cards=cards, context=8192)) for cards in (1, 8, 16)
    )
    assert one.cards[0].kv_cache == 8 * eight.cards[0].kv_cache
    assert eight.cards[0].kv_cache == sixteen.cards[0].kv_cache  # a head is not cut
    assert eight.cards[0].weights == 2 * GIB
    with pytest.raises(CannotEstimate, match="32 attention heads cannot be shared by 3"):
        estimate(architecture, weights, read_run("vllm", {}, cards=3))


def test_graphs_are_left_out_where_none_are_captured() -> None:
    architecture, weights = from_config(LLAMA_8B), evenly(16 * GIB, 32)
    with_graphs = estimate(architecture, weights, read_run("vllm", {}))
    eager = estimate(architecture, weights, read_run("vllm", {"enforce_eager": True}))
    assert with_graphs.device_bytes - eager.device_bytes == with_graphs.cards[0].graphs == 512 << 20


def test_a_batch_keeps_so_many_sequences() -> None:
    assert read_run("vllm", {"max_model_len": 2048}, batch=16).context == 16 * 2048
    assert read_run("vllm", {"max_model_len": 2048, "max_num_seqs": 4}, batch=16).context == 4 * 2048
    assert "one sequence" in read_run("vllm", {"max_model_len": 2048}).notes[0]


MISTRAL_7B = {
    "model_type": "mistral", "hidden_size": 4096, "num_hidden_layers": 32, "num_attention_heads": 32,
    "num_key_value_heads": 8, "intermediate_size": 14336, "vocab_size": 32000, "sliding_window": 4096,
    "max_position_embeddings": 32768,
}  # fmt: skip
MIXTRAL = {**MISTRAL_7B, "model_type": "mixtral", "sliding_window": None, "num_local_experts": 8}
GEMMA_2_9B = {
    "model_type": "gemma2", "hidden_size": 3584, "num_hidden_layers": 42, "num_attention_heads": 16,
    "num_key_value_heads": 8, "head_dim": 256, "intermediate_size": 14336, "vocab_size": 256000,
    "sliding_window": 4096, "max_position_embeddings": 8192,
}  # fmt: skip
QWEN_2_5_7B = {
    "model_type": "qwen2", "hidden_size": 3584, "num_hidden_layers": 28, "num_attention_heads": 28,
    "num_key_value_heads": 4, "intermediate_size": 18944, "vocab_size": 152064, "sliding_window": 131072,
    "use_sliding_window": False, "max_position_embeddings": 32768,
}  # fmt: skip


@pytest.mark.shows("P3")
@pytest.mark.parametrize(
    ("config", "args", "batch", "cache"),
    [
        (MISTRAL_7B, {}, 1, 32 * 8 * 256 * 2 * (4096 + 8192)),  # a window, and what one step writes beyond it
        (MISTRAL_7B, {"max_num_batched_tokens": 2048}, 4, 32 * 8 * 256 * 2 * (4 * 4096 + 2048)),
        (MIXTRAL, {}, 1, 4 * GIB),
        (GEMMA_2_9B, {"max_num_batched_tokens": 512}, 1, 21 * 8 * 512 * 2 * (8192 + 4096 + 512)),
        (QWEN_2_5_7B, {}, 1, 57_344 * 32_768),
        (QWEN_2_5_7B, {"kv_cache_dtype": "fp8"}, 1, 57_344 * 32_768 // 2),
        (DEEPSEEK_V3, {}, 1, 61 * 576 * 2 * 163_840),
    ],
)
def test_caches_of_published_models_by_hand(
    config: dict[str, object], args: dict[str, object], batch: int, cache: int
) -> None:
    """A paged cache for `batch` sequences of full length; slots that are not counted keep no window either."""
    architecture = from_config(config)
    run = read_run("vllm", args, model_context=architecture.context_length, batch=batch)
    assert estimate(architecture, evenly(16 * GIB, architecture.layers), run).cards[0].kv_cache == cache


def test_an_engine_that_is_only_attached_is_not_estimated() -> None:
    with pytest.raises(CannotEstimate, match="does not start ollama"):
        read_run("ollama", {})


def test_weights_by_the_names_of_both_worlds() -> None:
    gguf = [("token_embd.weight", 10), ("blk.0.attn_q.weight", 5), ("blk.1.ffn_up.weight", 6), ("output.weight", 9)]
    assert from_tensors(gguf, 2) == Weights(10, (5, 6), 9)
    face = [("model.embed_tokens.weight", 10), ("model.layers.1.mlp.up_proj.weight", 6), ("model.norm.weight", 1)]
    tied = from_tensors(face, 2)
    assert tied == Weights(10, (0, 6), 1, tied=True)
    assert (tied.total_bytes, tied.output_on_card_bytes) == (17, 11)
    with pytest.raises(ValueError, match="no tensors"):
        from_tensors([], 2)


# Measured


def test_a_cache_told_in_blocks_is_counted_in_bytes() -> None:
    """vLLM's `cache_config_info`, read by its room: 81,767 blocks of 16 tokens, 128 KiB each token."""
    measured = get_engine("vllm").measured
    assert measured is not None
    told = measured('vllm:cache_config_info{block_size="16",num_gpu_blocks="81767"} 1.0\n', "")
    assert told.kv_tokens == 81767 * 16
    assert all_layers_bytes(from_config(LLAMA_8B), CachePlan(tokens=told.kv_tokens)) == 81767 * 16 * 131_072


def test_what_was_measured_goes_before_what_was_reckoned() -> None:
    made = estimate(from_config(LLAMA_8B), evenly(5 * GIB, 32), read_run("llamacpp", {}, context=8192))
    told = correct(made, Measured(weights=4 * GIB, compute=GIB))
    assert told.measured
    assert (told.cards[0].weights, told.cards[0].compute) == (4 * GIB, GIB)
    assert told.cards[0].kv_cache == made.cards[0].kv_cache
    assert correct(made, Measured()) is made


def test_a_cache_that_fills_the_lease_is_not_what_is_needed() -> None:
    made = estimate(from_config(LLAMA_8B), evenly(16 * GIB, 32), read_run("vllm", {}, context=8192))
    assert correct(made, Measured(kv_cache=50 * GIB)).cards[0].kv_cache == GIB
    assert correct(made, Measured(kv_cache=GIB // 2)).cards[0].kv_cache == GIB // 2


def test_a_told_cache_keeps_its_proportions_over_devices() -> None:
    made = estimate(from_config(LLAMA_8B), evenly(5 * GIB, 32), read_run("llamacpp", {}, cards=3, context=8192))
    half = sum(card.kv_cache for card in made.cards) // 2
    told = correct(made, Measured(kv_cache=half))
    assert [card.kv_cache for card in told.cards] == pytest.approx([card.kv_cache / 2 for card in made.cards])


def test_a_peak_above_the_sum_is_kept_in_mind() -> None:
    made = estimate(from_config(LLAMA_8B), evenly(16 * GIB, 32), read_run("vllm", {}, context=8192))
    peak = made.device_bytes + 2 * GIB
    assert correct(made, Measured(peak=peak)).device_bytes == peak
    filled = Measured(kv_cache=50 * GIB, peak=made.device_bytes + 49 * GIB)
    assert correct(made, filled).device_bytes == made.device_bytes  # the cache explains it


def test_a_configuration_without_layers_says_which_member_is_missing() -> None:
    with pytest.raises(ValueError, match="num_hidden_layers"):
        from_config({"hidden_size": 1})
    with pytest.raises(ValueError, match="names no architecture"):
        from_gguf({}, {})


def test_layers_may_differ_in_their_heads() -> None:
    metadata = {
        "general.architecture": "deci", "deci.block_count": 3, "deci.embedding_length": 64,
        "deci.attention.head_count": (4, 4, 0), "deci.attention.head_count_kv": (2, 1, 0),
    }  # fmt: skip
    architecture: Architecture = from_gguf(metadata, {"tokenizer.ggml.tokens": 100})
    assert architecture.kv_heads == (2, 1, 0)
    assert architecture.vocabulary == 100
    assert all_layers_bytes(architecture, CachePlan(tokens=1)) == 3 * 2 * 16 * 2
