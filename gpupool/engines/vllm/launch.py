"""How the pool starts vLLM's OpenAI server, which must be installed in the agent's own environment."""

from typing import Annotated, Literal

import msgspec

from gpupool.engines.arguments import options, parse_struct
from gpupool.engines.base import EngineArgs, EngineArgumentsRefused, LaunchPlan, LaunchRequest, device_environment
from gpupool.engines.model_folder import HEAD_BYTES, check_config, gpus, memory_fraction, model_folder

Tokens = Annotated[int, msgspec.Meta(ge=64, le=16_777_216)]
Sequences = Annotated[int, msgspec.Meta(ge=1, le=4096)]
Rank = Annotated[int, msgspec.Meta(ge=1, le=512)]
Adapters = Annotated[int, msgspec.Meta(ge=1, le=256)]
Name = Annotated[str, msgspec.Meta(pattern=r"^[A-Za-z0-9_.-]{1,64}$")]


class VllmArgs(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`engine_args` of a version that vLLM runs."""

    max_model_len: Tokens | None = None  # tokens of prompt and answer; the model's own when absent
    max_num_seqs: Sequences = 64  # slots: requests decoded at the same time
    max_num_batched_tokens: Tokens | None = None
    dtype: Literal["auto", "half", "float16", "bfloat16", "float", "float32"] = "auto"
    quantization: Name | None = None
    kv_cache_dtype: Name | None = None
    enforce_eager: bool = False
    enable_prefix_caching: bool = True
    runner: Literal["auto", "generate", "pooling"] = "auto"
    sleep_mode: bool = False  # lets the pool take its memory back without ending it
    lora: bool = False  # adapters are loaded and unloaded while it runs
    max_loras: Adapters = 4  # in one batch
    max_lora_rank: Rank = 64
    tool_call_parser: Name | None = None
    reasoning_parser: Name | None = None


class VllmLaunch:
    """Launch plans for vLLM. Its share of each GPU is the lease's; all GPUs of the lease share one copy."""

    address_in_use_exit_code: int | None = None
    artefact_head_bytes: int = HEAD_BYTES

    def check_args(self, engine_args: EngineArgs) -> None:
        parse_args(engine_args)

    def check_artefact(self, head: bytes, size_bytes: int) -> None:
        check_config(head, size_bytes, "vLLM")

    def plan(self, request: LaunchRequest) -> LaunchPlan:
        args = parse_args(request.engine_args)
        cards = gpus(request)
        if args.sleep_mode and not cards:
            raise EngineArgumentsRefused("vLLM sleeps on GPUs only, and does not start with sleep_mode without one.")
        members: dict[str, object] = {
            "--model": str(model_folder(request.model_path, "vLLM")),
            "--served-model-name": request.served_name,
            "--host": request.host,
            "--port": request.port,
            "--max-num-seqs": args.max_num_seqs,
            "--max-model-len": args.max_model_len,
            "--max-num-batched-tokens": args.max_num_batched_tokens,
            "--dtype": args.dtype,
            "--quantization": args.quantization,
            "--kv-cache-dtype": args.kv_cache_dtype,
            "--runner": None if args.runner == "auto" else args.runner,
            "--gpu-memory-utilization": memory_fraction(request, "vLLM"),
            "--tensor-parallel-size": len(cards) if len(cards) > 1 else None,
            "--enforce-eager": args.enforce_eager,
            "--enable-prefix-caching": args.enable_prefix_caching,
            "--no-enable-prefix-caching": not args.enable_prefix_caching,
            "--enable-prompt-tokens-details": True,  # else it never says how many tokens its cache held
            "--enable-sleep-mode": args.sleep_mode,
            "--enable-lora": args.lora,
            "--max-loras": args.max_loras if args.lora else None,
            "--max-lora-rank": args.max_lora_rank if args.lora else None,
            "--enable-auto-tool-choice": args.tool_call_parser is not None,
            "--tool-call-parser": args.tool_call_parser,
            "--reasoning-parser": args.reasoning_parser,
        }
        env = device_environment(request.devices) | {"VLLM_NO_USAGE_STATS": "1"}
        env["VLLM_PORT"] = str(request.port + 1)  # where it begins to look for those it opens inside
        if args.sleep_mode:
            env["VLLM_SERVER_DEV_MODE"] = "1"  # /sleep and /wake_up are there only then
        if args.lora:
            env["VLLM_ALLOW_RUNTIME_LORA_UPDATING"] = "True"
        if not cards:
            # On a CPU the KV cache is a fixed size. Half of the claim is left to the weights.
            env["VLLM_CPU_KVCACHE_SPACE"] = str(max(1, request.memory_bytes // (2 << 30)))
        return LaunchPlan(
            argv=(request.python, "-m", "vllm.entrypoints.openai.api_server", *options(members)),
            port=request.port,
            slots=args.max_num_seqs,
            env=env,
        )


def parse_args(engine_args: EngineArgs) -> VllmArgs:
    """Raises EngineArgumentsRefused."""
    args = parse_struct(engine_args, VllmArgs, "vLLM")
    if args.max_num_batched_tokens is not None and args.max_num_batched_tokens < args.max_num_seqs:
        raise EngineArgumentsRefused(
            f"vLLM needs a batch of at least a token for each of its {args.max_num_seqs} sequences: "
            f"max_num_batched_tokens {args.max_num_batched_tokens} is less."
        )
    return args


def context_tokens(engine_args: EngineArgs) -> int | None:
    """Prompt and answer of one request; None: as the model has it."""
    return parse_args(engine_args).max_model_len


def adapter_rank(engine_args: EngineArgs) -> int:
    """The largest rank of an adapter; 0 where it is not started for any."""
    args = parse_args(engine_args)
    return args.max_lora_rank if args.lora else 0


def sleeps(engine_args: EngineArgs) -> bool:
    """Whether it is started such that it can sleep."""
    return parse_args(engine_args).sleep_mode
