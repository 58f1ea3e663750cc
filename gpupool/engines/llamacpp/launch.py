"""How the pool starts llama.cpp: its own server, from the xllamacpp wheel, in a process of its own."""

from pathlib import PurePosixPath
from typing import Annotated, Final, Literal

import msgspec

from gpupool.engines.arguments import parse_struct
from gpupool.engines.base import (
    ArtefactRefused,
    EngineArgs,
    EngineArgumentsRefused,
    LaunchPlan,
    LaunchRequest,
    device_environment,
)
from gpupool.engines.llamacpp.gguf import HEAD_BYTES, read_head

EXIT_ADDRESS_IN_USE: Final = 98  # EADDRINUSE; what serve.py exits with

Tokens = Annotated[int, msgspec.Meta(ge=64, le=4_194_304)]
Slots = Annotated[int, msgspec.Meta(ge=1, le=256)]
Threads = Annotated[int, msgspec.Meta(ge=1, le=512)]
Batch = Annotated[int, msgspec.Meta(ge=32, le=65_536)]
CacheMib = Annotated[int, msgspec.Meta(ge=0, le=1_048_576)]
Layers = Annotated[int, msgspec.Meta(ge=-1, le=10_000)]
CacheType = Literal["f32", "f16", "bf16", "q8_0", "q5_1", "q5_0", "q4_1", "q4_0", "iq4_nl"]
Paths = Annotated[str, msgspec.Meta(max_length=8192)]


class LlamaCppArgs(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`engine_args` of a version that llama.cpp runs."""

    n_ctx: Tokens = 2048  # tokens of context over all slots; each slot has n_ctx / n_parallel
    n_parallel: Slots = 2  # slots: requests decoded at the same time
    n_threads: Threads | None = None  # all cores when absent
    n_batch: Batch = 512  # tokens of a logical prompt batch
    n_ubatch: Batch | None = None  # tokens of a physical one
    cache_ram_mib: CacheMib = 0  # host memory for prompts of idle slots; part of the claim, so off by default
    n_gpu_layers: Layers | None = None  # -1: all; with no GPU in the lease, none
    flash_attention: Literal["auto", "on", "off"] = "auto"  # auto: where the device has it
    cache_type_k: CacheType = "f16"  # of the KV cache
    cache_type_v: CacheType = "f16"  # quantised only with flash attention on
    embeddings: bool = False  # without it, /v1/embeddings is refused; with it, chat still works
    pooling: Literal["none", "mean", "cls", "last", "rank"] | None = None  # of embeddings; the model's own when absent
    reranking: bool = False  # /v1/rerank; pooling is then "rank"
    lora_adapters: Paths = ""  # GGUF files, joined by commas; requests choose by `lora: [{"id": 0, "scale": 1.0}]`


class LlamaCppLaunch:
    """Launch plans for llama.cpp."""

    address_in_use_exit_code: int | None = EXIT_ADDRESS_IN_USE
    artefact_head_bytes: int = HEAD_BYTES

    def check_args(self, engine_args: EngineArgs) -> None:
        parse_args(engine_args)

    def check_artefact(self, head: bytes, size_bytes: int) -> None:
        try:
            header = read_head(head)
        except ValueError as error:
            raise ArtefactRefused(f"This is not a GGUF model that llama.cpp can load: {error}.") from error
        if header.tensor_count == 0:
            raise ArtefactRefused("This GGUF file holds no tensors: it is not a model.")
        if size_bytes <= HEAD_BYTES:
            raise ArtefactRefused("This GGUF file ends after its header: it was not copied whole.")

    def plan(self, request: LaunchRequest) -> LaunchPlan:
        args = parse_args(request.engine_args)
        on_gpu = sum(device.kind == "gpu" for device in request.devices)
        options: dict[str, int | str | None] = {
            "--model": str(request.model_path),
            "--host": request.host,
            "--port": request.port,
            "--alias": request.served_name,
            "--ctx-size": args.n_ctx,
            "--parallel": args.n_parallel,
            "--threads": args.n_threads,
            "--batch-size": args.n_batch,
            "--ubatch-size": args.n_ubatch,
            "--cache-ram": args.cache_ram_mib,
            "--gpu-layers": args.n_gpu_layers if on_gpu else 0,
            "--flash-attn": None if args.flash_attention == "auto" else args.flash_attention,
            "--cache-type-k": None if args.cache_type_k == "f16" else args.cache_type_k,
            "--cache-type-v": None if args.cache_type_v == "f16" else args.cache_type_v,
            # Evenly, as its claims are: by itself llama.cpp gives more to the device with more free memory.
            "--tensor-split": ",".join("1" * on_gpu) if on_gpu > 1 else None,
            "--pooling": "rank" if args.reranking else args.pooling,
        }
        argv = [request.python, "-m", "gpupool.engines.llamacpp.serve"]
        for option, value in options.items():
            if value is not None:
                argv += [option, str(value)]
        if args.embeddings or args.reranking:
            argv.append("--embeddings")
        for path in adapter_paths(args):
            argv += ["--lora", path]
        return LaunchPlan(
            argv=tuple(argv),
            port=request.port,
            slots=args.n_parallel,
            env=device_environment(request.devices),
        )


def parse_args(engine_args: EngineArgs) -> LlamaCppArgs:
    """Raises EngineArgumentsRefused with a sentence that names the argument and what it may be."""
    args = parse_struct(engine_args, LlamaCppArgs, "llama.cpp")
    if args.n_ctx // args.n_parallel < 64:
        raise EngineArgumentsRefused(
            f"llama.cpp shares n_ctx {args.n_ctx} among n_parallel {args.n_parallel} slots: "
            "under 64 tokens are left for each."
        )
    if args.cache_type_v not in ("f32", "f16", "bf16") and args.flash_attention != "on":
        raise EngineArgumentsRefused(
            f"llama.cpp keeps values as {args.cache_type_v} only with flash attention: set flash_attention to 'on'."
        )
    if args.reranking and args.pooling not in (None, "rank"):
        raise EngineArgumentsRefused(f"llama.cpp ranks by pooling 'rank', not {args.pooling!r}.")
    if args.pooling is not None and not (args.embeddings or args.reranking):
        raise EngineArgumentsRefused("llama.cpp takes pooling only together with embeddings or reranking.")
    for path in adapter_paths(args):
        if not path.startswith("/") or ".." in PurePosixPath(path).parts:
            raise EngineArgumentsRefused(f"llama.cpp takes lora_adapters by absolute paths; {path!r} is none.")
    return args


def context_tokens(engine_args: EngineArgs) -> int | None:
    """Prompt and answer of one request: each slot has its share of the context."""
    args = parse_args(engine_args)
    return args.n_ctx // args.n_parallel


def adapter_paths(args: LlamaCppArgs) -> list[str]:
    """LoRA adapters in the order of their ids."""
    return [path.strip() for path in args.lora_adapters.split(",")] if args.lora_adapters else []
