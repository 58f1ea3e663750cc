"""How the pool starts SGLang's server, which must be installed in the agent's own environment."""

from typing import Annotated, Final, Literal

import msgspec

from gpupool.engines.arguments import options, parse_struct
from gpupool.engines.base import EngineArgs, LaunchPlan, LaunchRequest, device_environment
from gpupool.engines.model_folder import HEAD_BYTES, check_config, gpus, memory_fraction, model_folder

Tokens = Annotated[int, msgspec.Meta(ge=64, le=16_777_216)]
Requests = Annotated[int, msgspec.Meta(ge=1, le=4096)]
Rank = Annotated[int, msgspec.Meta(ge=1, le=512)]
Name = Annotated[str, msgspec.Meta(pattern=r"^[A-Za-z0-9_.-]{1,64}$")]

_STATIC: Final = 0.88  # of its share, for weights and KV cache; the rest is activations and graphs (its own default)


class SglangArgs(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`engine_args` of a version that SGLang runs."""

    context_length: Tokens | None = None  # tokens of prompt and answer; the model's own when absent
    max_running_requests: Requests = 64  # slots: requests decoded at the same time
    dtype: Literal["auto", "half", "float16", "bfloat16", "float", "float32"] = "auto"
    quantization: Name | None = None
    kv_cache_dtype: Name | None = None
    attention_backend: Name | None = None
    radix_cache: bool = True
    cuda_graph: bool = True
    embeddings: bool = False  # for embeddings and ranks instead of completions
    memory_saver: bool = False  # lets the pool take its memory back without ending it
    lora: bool = False  # adapters are loaded and unloaded while it runs
    max_lora_rank: Rank = 64
    tool_call_parser: Name | None = None
    reasoning_parser: Name | None = None


class SglangLaunch:
    """Launch plans for SGLang. Its share of each GPU is the lease's; all GPUs of the lease share one copy."""

    address_in_use_exit_code: int | None = None
    artefact_head_bytes: int = HEAD_BYTES

    def check_args(self, engine_args: EngineArgs) -> None:
        parse_struct(engine_args, SglangArgs, "SGLang")

    def check_artefact(self, head: bytes, size_bytes: int) -> None:
        check_config(head, size_bytes, "SGLang")

    def plan(self, request: LaunchRequest) -> LaunchPlan:
        args = parse_struct(request.engine_args, SglangArgs, "SGLang")
        cards = gpus(request)
        fraction = memory_fraction(request, "SGLang")
        members: dict[str, object] = {
            "--model-path": str(model_folder(request.model_path, "SGLang")),
            "--served-model-name": request.served_name,
            "--host": request.host,
            "--port": request.port,
            "--nccl-port": request.port + 1,  # else it draws one by chance, which may be another instance's
            "--device": None if cards else "cpu",
            "--max-running-requests": args.max_running_requests,
            "--context-length": args.context_length,
            "--dtype": args.dtype,
            "--quantization": args.quantization,
            "--kv-cache-dtype": args.kv_cache_dtype,
            "--attention-backend": args.attention_backend,
            "--mem-fraction-static": None if fraction is None else int(fraction * _STATIC * 1000) / 1000,
            "--tp-size": len(cards) if len(cards) > 1 else None,
            "--disable-radix-cache": not args.radix_cache,
            "--disable-cuda-graph": not args.cuda_graph,
            "--is-embedding": args.embeddings,
            "--enable-metrics": True,
            "--enable-memory-saver": args.memory_saver,
            "--enable-weights-cpu-backup": args.memory_saver,
            "--enable-lora": args.lora,
            "--max-lora-rank": args.max_lora_rank if args.lora else None,
            "--lora-target-modules": "all" if args.lora else None,
            "--tool-call-parser": args.tool_call_parser,
            "--reasoning-parser": args.reasoning_parser,
        }
        return LaunchPlan(
            argv=(request.python, "-m", "sglang.launch_server", *options(members)),
            port=request.port,
            slots=args.max_running_requests,
            env=device_environment(request.devices),
        )


def context_tokens(engine_args: EngineArgs) -> int | None:
    """Prompt and answer of one request; None: as the model has it."""
    return parse_struct(engine_args, SglangArgs, "SGLang").context_length


def adapter_rank(engine_args: EngineArgs) -> int:
    """The largest rank of an adapter; 0 where it is not started for any."""
    args = parse_struct(engine_args, SglangArgs, "SGLang")
    return args.max_lora_rank if args.lora else 0


def sleeps(engine_args: EngineArgs) -> bool:
    """Whether it is started such that it can sleep."""
    return parse_struct(engine_args, SglangArgs, "SGLang").memory_saver
