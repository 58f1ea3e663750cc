"""What a model's shape says about its memory, from a GGUF header or a Hugging Face configuration."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

_SLIDING_PATTERNS: Final[Mapping[str, int]] = {
    "gemma2": 2,
    "gemma3": 6,
    "gemma3_text": 6,
    "gemma3n": 5,
    "gemma3n_text": 5,
    "cohere2": 4,
    "gpt-oss": 2,
    "gpt_oss": 2,
    "exaone4": 4,
    "olmo3": 4,
}
"""Architectures whose layers alternate: all but the last of each group of so many look at a window only."""

_WINDOW_EVERYWHERE: Final = frozenset({"mistral", "mixtral", "starcoder2"})
"""Hugging Face's types where a window, if there is one, is of every layer."""

_MOST_LAYERS: Final = 4096


@dataclass(frozen=True, slots=True)
class Architecture:
    """Counts and lengths in numbers, not bytes. `windows` has one entry a layer: tokens it looks back at, None: all."""

    name: str
    layers: int
    embedding: int
    heads: int
    kv_heads: tuple[int, ...]  # one a layer; 0: no attention there
    key_length: int  # of one head
    value_length: int
    vocabulary: int
    feed_forward: int
    context_length: int | None = None  # what it was trained on
    windows: tuple[int | None, ...] = ()
    latent: int = 0  # MLA: numbers of a token in a layer's cache, all heads together; 0: not MLA
    latent_value: int = 0  # of them, what an engine that keeps a cache for values apart stores again
    experts: int = 0
    experts_used: int = 0
    causal: bool = True

    def window(self, layer: int) -> int | None:
        return self.windows[layer] if layer < len(self.windows) else None


def from_gguf(metadata: Mapping[str, Any], lengths: Mapping[str, int], vocabulary: int = 0) -> Architecture:
    """From a header's metadata; `vocabulary` is used where it names none.

    Raises ValueError, with a reason that can follow a colon, where something needed is missing.
    """
    name = metadata.get("general.architecture")
    if not isinstance(name, str):
        raise ValueError("its metadata names no architecture")
    read = _Keys(metadata, f"{name}.")
    layers = read.layers("block_count")
    heads = read.largest("attention.head_count", 1)
    embedding = read.needed("embedding_length")
    key_length = read.number("attention.key_length", embedding // heads)
    value_length = read.number("attention.value_length", key_length)
    latent = latent_value = 0
    if read.number("attention.key_length_mla", 0):  # written for a cache of latents
        latent, latent_value = key_length, value_length
        key_length = read.number("attention.key_length_mla", key_length)
        value_length = read.number("attention.value_length_mla", value_length)
    pattern = metadata.get(f"{name}.attention.sliding_window_pattern")
    return Architecture(
        name=name,
        layers=layers,
        embedding=embedding,
        heads=heads,
        kv_heads=read.each("attention.head_count_kv", layers, heads),
        key_length=key_length,
        value_length=value_length,
        vocabulary=read.number("vocab_size", 0) or lengths.get("tokenizer.ggml.tokens", 0) or vocabulary,
        feed_forward=read.largest("feed_forward_length", 4 * embedding),
        context_length=read.number("context_length", 0) or None,
        windows=_windows(layers, read.number("attention.sliding_window", 0), name, pattern),
        latent=latent,
        latent_value=latent_value,
        experts=read.number("expert_count", 0),
        experts_used=read.number("expert_used_count", 0),
        causal=metadata.get(f"{name}.attention.causal", True) is not False,
    )


def from_config(config: Mapping[str, Any]) -> Architecture:
    """From a `config.json`; of a model with several parts, from the part that reads text. Raises ValueError."""
    text = config.get("text_config")
    if isinstance(text, Mapping):
        config = {**config, **text}
    read = _Keys(config, "")
    layers = read.layers("num_hidden_layers", "n_layer", "num_layers")
    embedding = read.needed("hidden_size", "n_embd", "d_model")
    heads = read.number("num_attention_heads", 0) or read.number("n_head", 0) or 1
    key_length = read.number("head_dim", embedding // heads)
    rank, rope = read.number("kv_lora_rank", 0), read.number("qk_rope_head_dim", 0)
    value_length = key_length
    if rank:
        key_length = read.number("qk_nope_head_dim", 0) + rope or key_length
        value_length = read.number("v_head_dim", key_length)
    kind = str(config.get("model_type", ""))
    kv_heads = 1 if config.get("multi_query") is True else read.number("num_key_value_heads", heads)
    return Architecture(
        name=kind or "unknown",
        layers=layers,
        embedding=embedding,
        heads=heads,
        kv_heads=(kv_heads,) * layers,
        key_length=key_length,
        value_length=value_length,
        vocabulary=read.needed("vocab_size"),
        feed_forward=read.number("intermediate_size", 0)
        or read.number("ffn_dim", 0)
        or read.number("n_inner", 0)
        or 4 * embedding,
        context_length=read.number("max_position_embeddings", 0) or read.number("n_positions", 0) or None,
        windows=_config_windows(config, layers, kind, read.number("sliding_window", 0)),
        latent=rank + rope if rank else 0,
        experts=read.number("num_local_experts", 0)
        or read.number("n_routed_experts", 0)
        or read.number("num_experts", 0),
        experts_used=read.number("num_experts_per_tok", 0),
    )


def _config_windows(config: Mapping[str, Any], layers: int, kind: str, window: int) -> tuple[int | None, ...]:
    if config.get("use_sliding_window") is False:
        return ()
    types = config.get("layer_types")
    if isinstance(types, Sequence) and not isinstance(types, str) and window:
        return tuple(window if one == "sliding_attention" else None for one in types)[:layers]
    if kind in _WINDOW_EVERYWHERE and window:
        return (window,) * layers
    return _windows(layers, window, kind, config.get("sliding_window_pattern"))


def _windows(layers: int, window: int, name: str, pattern: object) -> tuple[int | None, ...]:
    """Where nothing says which layers have the window, none has: an estimate is then too large, never too small."""
    if window <= 0:
        return ()
    if isinstance(pattern, Sequence) and not isinstance(pattern, str):
        return tuple(window if one else None for one in pattern)[:layers]
    group = pattern if isinstance(pattern, int) and not isinstance(pattern, bool) else _SLIDING_PATTERNS.get(name, 1)
    return tuple(window if group > 1 and layer % group < group - 1 else None for layer in range(layers))


class _Keys:
    """Numbers of a mapping, some of them lists with one for each layer."""

    def __init__(self, values: Mapping[str, Any], prefix: str) -> None:
        self._values = values
        self._prefix = prefix

    def number(self, key: str, default: int) -> int:
        value = self._values.get(self._prefix + key)
        return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else default

    def needed(self, *keys: str) -> int:
        for key in keys:
            if found := self.number(key, 0):
                return found
        raise ValueError(f"it does not say {self._prefix}{keys[0]}")

    def layers(self, *keys: str) -> int:
        count = self.needed(*keys)
        if count > _MOST_LAYERS:
            raise ValueError(f"it claims {count} layers")
        return count

    def largest(self, key: str, default: int) -> int:
        value = self._values.get(self._prefix + key)
        if isinstance(value, Sequence) and not isinstance(value, str):
            return max((_whole(key, one) for one in value), default=default) or default
        return self.number(key, default) or default

    def each(self, key: str, layers: int, default: int) -> tuple[int, ...]:
        value = self._values.get(self._prefix + key)
        if isinstance(value, Sequence) and not isinstance(value, str) and value:
            found = [_whole(key, one) for one in value[:layers]]
            return tuple(found + [found[-1]] * (layers - len(found)))
        return (self.number(key, default),) * layers


def _whole(key: str, value: object) -> int:
    """An entry of a list, from 0. Raises ValueError for what counts nothing."""
    if not isinstance(value, int):
        raise ValueError(f"{key} has an entry that is no whole number")
    return max(0, value)
