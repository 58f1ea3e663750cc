"""How an engine will run a version, as far as memory is concerned, out of its engine arguments."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

_CACHE_TYPES: Final[Mapping[str, str]] = {"auto": "f16", "float16": "f16", "bfloat16": "bf16", "half": "f16"}
_DEFAULT_CONTEXT: Final = 4096
_LLAMACPP_CONTEXT: Final = 2048
_LLAMACPP_BATCH: Final = 512
"""Defaults of the llama.cpp room's launch."""
_VLLM_STEP_TOKENS: Final = 8192  # vLLM's own default for a server on large cards: the larger of its two
_SGLANG_STEP_TOKENS: Final = 8192
_TGI_STEP_TOKENS: Final = 4096


@dataclass(frozen=True, slots=True)
class Run:
    """`by_layer`: cards take layers in turn (llama.cpp); else all cards share every layer (tensor parallel)."""

    engine: str
    context: int  # tokens that the cache holds, of all sequences together
    sequences: int  # decoded at the same time
    kept: int  # whose tokens `context` is: of each a window keeps its own
    step_tokens: int  # of one physical batch
    by_layer: bool
    flash_attention: bool
    key_type: str = "f16"
    value_type: str = "f16"
    cards: int = 1
    gpu_layers: int | None = None  # None: all of them and the output; fewer leave the rest to the host
    graphs: bool = False  # CUDA graphs are captured
    on_cards: bool = True  # False: everything on the host's own memory
    notes: tuple[str, ...] = ()


class CannotEstimate(ValueError):
    """The message is a sentence."""


def read_run(
    engine: str,
    engine_args: Mapping[str, Any],
    *,
    cards: int = 1,
    on_cards: bool = True,
    model_context: int | None = None,
    context: int | None = None,
    cache_type: str | None = None,
    flash_attention: bool | None = None,
    batch: int | None = None,
) -> Run:
    """The run that these arguments make; `context`, `cache_type`, `flash_attention` and `batch` go before them.

    `batch` is how many sequences of `context` tokens are kept at once, where the engine keeps a paged cache.
    Raises CannotEstimate for an engine that the pool does not start, or a cache type that is not known.
    """
    match engine:
        case "llamacpp":
            run = _llamacpp(engine_args, context=context, flash_attention=flash_attention, model_context=model_context)
        case "vllm" | "sglang" | "tgi":
            run = _paged(engine, engine_args, context=context, model_context=model_context, batch=batch)
        case _:
            raise CannotEstimate(f"The pool does not start {engine} itself, so its memory is not estimated.")
    key, value = run["key_type"], run["value_type"]
    if cache_type:
        key = value = cache_type
    notes: list[str] = run.pop("notes")
    if value in _NEEDS_FLASH and not run["flash_attention"] and engine == "llamacpp":
        notes.append("Values of the cache are counted as f16: llama.cpp keeps them so without flash attention.")
        value = "f16"
    values = {**run, "key_type": _CACHE_TYPES.get(key, key), "value_type": _CACHE_TYPES.get(value, value)}
    return Run(engine=engine, cards=max(1, cards), on_cards=on_cards, notes=tuple(notes), **values)


_NEEDS_FLASH: Final = frozenset({"q8_0", "q5_1", "q5_0", "q4_1", "q4_0", "iq4_nl"})


def _llamacpp(
    args: Mapping[str, Any], *, context: int | None, flash_attention: bool | None, model_context: int | None
) -> dict[str, Any]:
    tokens = context or _number(args, "n_ctx") or _LLAMACPP_CONTEXT
    asked = args.get("flash_attention")
    notes = []
    if flash_attention is None:
        flash_attention = asked == "on"
        if asked not in ("on", "off"):
            notes.append("Flash attention is left to llama.cpp, so it is counted as off, which takes more.")
    if model_context and tokens > model_context:
        notes.append(f"The model was made for {model_context} tokens; the cache is counted for {tokens}.")
    layers = _number(args, "n_gpu_layers", least=-1)
    batch = _number(args, "n_batch") or _LLAMACPP_BATCH
    slots = _number(args, "n_parallel") or 2
    return {
        "context": tokens,
        "sequences": slots,
        "kept": slots,
        "step_tokens": min(tokens, _number(args, "n_ubatch") or 512, batch),
        "by_layer": True,
        "flash_attention": flash_attention,
        "key_type": str(args.get("cache_type_k") or "f16"),
        "value_type": str(args.get("cache_type_v") or "f16"),
        "gpu_layers": None if layers is None or layers < 0 else layers,
        "notes": notes,
    }


def _paged(
    engine: str, args: Mapping[str, Any], *, context: int | None, model_context: int | None, batch: int | None
) -> dict[str, Any]:
    """vLLM, SGLang and TGI: the cache takes what is left of the lease; what is counted is the least that serves."""
    length_of = {"vllm": "max_model_len", "sglang": "context_length", "tgi": "max_total_tokens"}[engine]
    slots_of = {"vllm": "max_num_seqs", "sglang": "max_running_requests", "tgi": "max_concurrent_requests"}[engine]
    step_of = {"vllm": "max_num_batched_tokens", "sglang": "", "tgi": "max_batch_prefill_tokens"}[engine]
    defaults = {"vllm": _VLLM_STEP_TOKENS, "sglang": _SGLANG_STEP_TOKENS, "tgi": _TGI_STEP_TOKENS}
    length = context or _number(args, length_of) or model_context or _DEFAULT_CONTEXT
    slots = _number(args, slots_of) or 64
    kept = max(1, min(batch or 1, slots))
    notes = []
    if batch is None:
        notes.append(
            "The KV cache is counted for one sequence of full length, the least that serves; more serves more."
        )
    eager = {"vllm": args.get("enforce_eager") is True, "sglang": args.get("cuda_graph") is False}
    return {
        "context": length * kept,
        "sequences": slots,
        "kept": kept,
        "step_tokens": _number(args, step_of) or defaults[engine],
        "by_layer": False,
        "flash_attention": True,
        "key_type": str(args.get("kv_cache_dtype") or "f16"),
        "value_type": str(args.get("kv_cache_dtype") or "f16"),
        "graphs": not eager.get(engine, args.get("cuda_graphs") is False),
        "notes": notes,
    }


def _number(args: Mapping[str, Any], name: str, least: int = 1) -> int | None:
    value = args.get(name)
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= least else None
