"""OpenAI's request members as Ollama's: `options`, `format`, `think`, and what goes beside them."""

from typing import Any, Final

from gpupool.engines.asked import Asked
from gpupool.engines.base import CallNotSupported

_OPTIONS: Final = (
    "temperature", "top_p", "top_k", "min_p", "typical_p", "seed", "presence_penalty", "frequency_penalty",
    "repeat_penalty", "repeat_last_n", "num_ctx", "num_keep", "num_batch", "num_gpu", "num_thread", "main_gpu",
    "use_mmap", "tfs_z", "mirostat", "mirostat_tau", "mirostat_eta", "penalize_newline",
)  # fmt: skip
"""Members that are called the same among Ollama's options."""


def common_members(asked: Asked) -> dict[str, Any]:
    """What chat and completions share. Raises CallNotSupported."""
    options: dict[str, Any] = dict(asked.take("options", dict) or {})
    options |= {name: asked.left.pop(name) for name in _OPTIONS if name in asked.left}
    if (max_tokens := asked.max_tokens()) is not None:
        options["num_predict"] = max_tokens
    if stops := asked.stop():
        options["stop"] = stops
    members: dict[str, Any] = {}
    if options:
        members["options"] = options
    if (form := _format(asked)) is not None:
        members["format"] = form
    if (think := _think(asked)) is not None:
        members["think"] = think
    asked.only("n", 1)
    asked.only("best_of", 1)
    asked.only("logprobs", False)
    asked.only("top_logprobs", 0)
    asked.only("logit_bias", {})
    return members


def rest_of(asked: Asked) -> dict[str, Any]:
    """What nobody knows goes along at the top, `keep_alive` among it: Ollama passes over what it does not know."""
    rest, asked.left = asked.left, {}
    return rest


def _format(asked: Asked) -> object:
    wanted = asked.take("response_format", dict)
    if wanted is None:
        return asked.left.pop("format", None)
    match wanted:
        case {"type": "text"}:
            return None
        case {"type": "json_object"}:
            return "json"
        case {"type": "json_schema", "json_schema": {"schema": dict(schema)}}:
            return schema
    raise CallNotSupported("Ollama does not take response_format in this form.")


def _think(asked: Asked) -> object:
    effort = asked.text("reasoning_effort")
    if effort is None:
        reasoning = asked.take("reasoning", dict) or {}
        effort = reasoning.get("effort")
    think: object = asked.left.pop("think", None)
    if think is not None or effort is None:
        return think
    return False if effort == "none" else effort
