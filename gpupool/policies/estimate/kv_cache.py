"""The KV cache: what is kept of every token, by the architecture's kind of attention."""

from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Final

from gpupool.policies.estimate.architecture import Architecture

CACHE_TYPES: Final[Mapping[str, Fraction]] = {
    "f32": Fraction(4),
    "f16": Fraction(2),
    "bf16": Fraction(2),
    "auto": Fraction(2),
    "fp8": Fraction(1),
    "fp8_e4m3": Fraction(1),
    "fp8_e5m2": Fraction(1),
    "q8_0": Fraction(34, 32),
    "q5_1": Fraction(24, 32),
    "q5_0": Fraction(22, 32),
    "q4_1": Fraction(20, 32),
    "q4_0": Fraction(18, 32),
    "iq4_nl": Fraction(18, 32),
}
"""Bytes of one number, scales included."""

QUANTISED: Final = frozenset({"q8_0", "q5_1", "q5_0", "q4_1", "q4_0", "iq4_nl"})
QUANTISED_BLOCK: Final = 32  # numbers; heads that it does not divide are not quantised
_PADDING: Final = 256  # tokens: llama.cpp's caches are multiples of it


@dataclass(frozen=True, slots=True)
class CachePlan:
    """How an engine keeps its cache."""

    tokens: int  # of all sequences together
    sequences: int = 1
    key_type: str = "f16"
    value_type: str = "f16"
    batch: int = 512  # tokens of one step, which a window's cache holds besides the window
    values_apart: bool = True  # False: of a latent, values are the same numbers as keys
    cards: int = 1  # that share the heads (tensor parallel); a head is never cut, so some may be held twice


def layer_tokens(architecture: Architecture, layer: int, plan: CachePlan) -> int:
    """Tokens that a layer's cache holds: those of its window and of one step, where it has one."""
    window = architecture.window(layer)
    if window is None:
        return plan.tokens
    return min(plan.tokens, padded(window * plan.sequences + plan.batch))


def token_bytes(architecture: Architecture, layer: int, plan: CachePlan) -> Fraction:
    """Bytes of one token in one layer, on each card. Raises ValueError for a cache type that is not known."""
    key, value = _type(plan.key_type), _type(plan.value_type)
    if architecture.latent:  # shared by all heads: every card has all of it
        values = architecture.latent_value * value if plan.values_apart else Fraction(0)
        return architecture.latent * key + values
    heads = -(-architecture.kv_heads[layer] // plan.cards)
    return heads * (architecture.key_length * key + architecture.value_length * value)


def layer_bytes(architecture: Architecture, layer: int, plan: CachePlan) -> int:
    """Bytes of one layer's cache on each card."""
    if not architecture.causal:
        return 0
    return -int(-(token_bytes(architecture, layer, plan) * layer_tokens(architecture, layer, plan)) // 1)


def all_layers_bytes(architecture: Architecture, plan: CachePlan) -> int:
    """Bytes of the whole cache on each card that has all layers."""
    return sum(layer_bytes(architecture, layer, plan) for layer in range(architecture.layers))


def padded(tokens: int) -> int:
    """As llama.cpp rounds a cache up."""
    return -(-tokens // _PADDING) * _PADDING


def _type(name: str) -> Fraction:
    try:
        return CACHE_TYPES[name]
    except KeyError:
        raise ValueError(f"a KV cache of type {name!r} is not known; known are {', '.join(CACHE_TYPES)}") from None
