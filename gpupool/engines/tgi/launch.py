"""How the pool starts Text Generation Inference: its launcher, which must be on the agent's path."""

from typing import Annotated, Literal

import msgspec

from gpupool.engines.arguments import options, parse_struct
from gpupool.engines.base import EngineArgs, EngineArgumentsRefused, LaunchPlan, LaunchRequest, device_environment
from gpupool.engines.model_folder import HEAD_BYTES, check_config, gpus, memory_fraction, model_folder

Tokens = Annotated[int, msgspec.Meta(ge=64, le=16_777_216)]
Requests = Annotated[int, msgspec.Meta(ge=1, le=4096)]


class TgiArgs(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`engine_args` of a version that TGI runs."""

    max_concurrent_requests: Requests = 128  # slots: more are refused with 429
    max_input_tokens: Tokens | None = None
    max_total_tokens: Tokens | None = None  # of prompt and answer
    max_batch_prefill_tokens: Tokens | None = None
    dtype: Literal["float16", "bfloat16"] | None = None
    quantize: Literal["awq", "compressed-tensors", "eetq", "exl2", "fp8", "gptq", "marlin"] | None = None
    cuda_graphs: bool = True


class TgiLaunch:
    """Launch plans for TGI. Its share of each GPU is the lease's; all GPUs of the lease share one copy."""

    address_in_use_exit_code: int | None = None
    artefact_head_bytes: int = HEAD_BYTES

    def check_args(self, engine_args: EngineArgs) -> None:
        parse_args(engine_args)

    def check_artefact(self, head: bytes, size_bytes: int) -> None:
        check_config(head, size_bytes, "TGI")

    def plan(self, request: LaunchRequest) -> LaunchPlan:
        args = parse_args(request.engine_args)
        members: dict[str, object] = {
            "--model-id": str(model_folder(request.model_path, "TGI")),
            "--hostname": request.host,
            "--port": request.port,
            # The shards' sockets and their port are named after the server's, so that two on a node do not meet.
            "--shard-uds-path": f"/tmp/tgi-{request.port}",  # noqa: S108  # a socket's name, short enough
            "--master-port": request.port + 1,
            "--num-shard": max(1, len(gpus(request))),
            "--max-concurrent-requests": args.max_concurrent_requests,
            "--max-input-tokens": args.max_input_tokens,
            "--max-total-tokens": args.max_total_tokens,
            "--max-batch-prefill-tokens": args.max_batch_prefill_tokens,
            "--dtype": args.dtype,
            "--quantize": args.quantize,
            "--cuda-memory-fraction": memory_fraction(request, "TGI"),
            "--cuda-graphs": None if args.cuda_graphs else 0,
            "--usage-stats": "off",
            "--disable-custom-kernels": not gpus(request),
        }
        return LaunchPlan(
            argv=("text-generation-launcher", *options(members)),
            port=request.port,
            slots=args.max_concurrent_requests,
            env=device_environment(request.devices) | {"HF_HUB_OFFLINE": "1"},
        )


def parse_args(engine_args: EngineArgs) -> TgiArgs:
    """Raises EngineArgumentsRefused."""
    args = parse_struct(engine_args, TgiArgs, "TGI")
    if args.max_total_tokens is not None and (args.max_input_tokens or 0) >= args.max_total_tokens:
        raise EngineArgumentsRefused(
            f"TGI leaves no token for the answer: max_input_tokens {args.max_input_tokens} "
            f"of max_total_tokens {args.max_total_tokens}."
        )
    return args


def context_tokens(engine_args: EngineArgs) -> int | None:
    """Prompt and answer of one request; None: as the model has it."""
    return parse_args(engine_args).max_total_tokens
