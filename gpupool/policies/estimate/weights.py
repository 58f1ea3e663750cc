"""Weights by where an engine puts them: what it reads first, its layers, and what it says at the end."""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

_LAYER: Final = re.compile(r"(?:^|\.)(?:blk|layers|h|block|blocks)\.(\d+)\.")
_INPUT: Final = (
    "token_embd", "token_types", "position_embd", "per_layer_token_embd", "embed_tokens", "embed_positions", "wte",
    "wpe", "word_embeddings", "embed_in",
)  # fmt: skip
_OUTPUT: Final = re.compile(r"(?:^|\.)(?:output|lm_head|embed_out)\.")


@dataclass(frozen=True, slots=True)
class Weights:
    """Bytes. Where the output shares the input's table, an engine that puts both in one place needs it once."""

    input_bytes: int
    layers: tuple[int, ...]
    output_bytes: int
    tied: bool = False  # output_bytes then has no table of its own

    @property
    def total_bytes(self) -> int:
        """What the files hold of them."""
        return self.input_bytes + sum(self.layers) + self.output_bytes

    @property
    def output_on_card_bytes(self) -> int:
        """With the input on the host and the output on a card, the table that they share is in both places."""
        return self.output_bytes + (self.input_bytes if self.tied else 0)


def from_tensors(tensors: Iterable[tuple[str, int]], layers: int) -> Weights:
    """From names as GGUF or Hugging Face write them, with sizes in bytes. Raises ValueError where there are none."""
    first = rest = 0
    by_layer = [0] * layers
    own_output = False
    for name, size in tensors:
        match = _LAYER.search(name)
        if match is not None and int(match[1]) < layers:
            by_layer[int(match[1])] += size
        elif any(part in name for part in _INPUT):
            first += size
        else:
            rest += size
            own_output = own_output or _OUTPUT.search(name) is not None
    if not first and not rest and not any(by_layer):
        raise ValueError("it holds no tensors")
    return Weights(first, tuple(by_layer), rest, tied=not own_output)
