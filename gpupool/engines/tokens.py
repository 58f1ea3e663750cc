"""The answer to `/tokenize`, as vLLM gives it and clients of the gateway know it."""

from collections.abc import Sequence

import msgspec


def tokenized(tokens: Sequence[int], *, served_name: str) -> bytes:
    """Token ids and how many. The longest context is left unsaid: engines that need this do not tell it here."""
    answer = {"count": len(tokens), "max_model_len": None, "tokens": tokens, "model": served_name}
    return msgspec.json.encode(answer)
