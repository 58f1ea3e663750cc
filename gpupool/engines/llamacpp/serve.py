"""One llama.cpp server in a process of its own: `python -m gpupool.engines.llamacpp.serve --model F --port N`.

Imports nothing of ours, so that an engine costs only what llama.cpp costs. Exits with EADDRINUSE (98)
when the port was taken, so that the agent can try the next one, and 1 when the model did not load.
"""

import argparse
import ctypes
import errno
import socket
import sys
import threading

import xllamacpp

_FLASH_ATTENTION = {
    "auto": xllamacpp.llama_flash_attn_type.LLAMA_FLASH_ATTN_TYPE_AUTO,
    "on": xllamacpp.llama_flash_attn_type.LLAMA_FLASH_ATTN_TYPE_ENABLED,
    "off": xllamacpp.llama_flash_attn_type.LLAMA_FLASH_ATTN_TYPE_DISABLED,
}
_CACHE_TYPES = {
    name: getattr(xllamacpp.ggml_type, f"GGML_TYPE_{name.upper()}")
    for name in ("f32", "f16", "bf16", "q8_0", "q5_1", "q5_0", "q4_1", "q4_0", "iq4_nl")
}
_POOLING = {
    "none": xllamacpp.llama_pooling_type.LLAMA_POOLING_TYPE_NONE,
    "mean": xllamacpp.llama_pooling_type.LLAMA_POOLING_TYPE_MEAN,
    "cls": xllamacpp.llama_pooling_type.LLAMA_POOLING_TYPE_CLS,
    "last": xllamacpp.llama_pooling_type.LLAMA_POOLING_TYPE_LAST,
    "rank": xllamacpp.llama_pooling_type.LLAMA_POOLING_TYPE_RANK,
}


_LOADING = 4  # tells the sizes of its buffers
_SERVING = 2  # warnings and errors: lines per request would fill the disk


def main() -> None:
    """Serve until a signal ends the process."""
    options = _parse()
    params = xllamacpp.CommonParams()
    params.model.path = options.model
    params.hostnames = [options.host]
    params.port = options.port
    params.model_alias = {options.alias}
    params.n_ctx = options.ctx_size
    params.n_parallel = options.parallel
    params.n_gpu_layers = options.gpu_layers
    if options.threads is not None:
        params.cpuparams.n_threads = options.threads
    if options.batch_size is not None:
        params.n_batch = options.batch_size
    if options.ubatch_size is not None:
        params.n_ubatch = options.ubatch_size
    params.flash_attn_type = _FLASH_ATTENTION[options.flash_attn]
    params.cache_type_k = _CACHE_TYPES[options.cache_type_k]
    params.cache_type_v = _CACHE_TYPES[options.cache_type_v]
    if options.tensor_split:
        split = params.tensor_split
        params.tensor_split = [*options.tensor_split, *split[len(options.tensor_split) :]]
    params.embedding = options.embeddings
    if options.pooling is not None:
        params.pooling_type = _POOLING[options.pooling]
    if options.lora:
        # Loaded with no weight: a request that names none gets the model itself.
        params.lora_adapters = [xllamacpp.CommonAdapterLoraInfo(path, 0.0) for path in options.lora]
        # A request without `lora` goes on from a prompt that a request with one has left in its slot, and its text
        # is then neither the model's nor the adapter's. So no prompt is kept, unless a request asks for it.
        params.cache_prompt = False
    params.endpoint_metrics = True
    params.endpoint_slots = True
    params.cache_ram_mib = options.cache_ram  # llama.cpp's own default, 8 GiB, is in no lease
    params.fit_params = False  # what the lease says is used; nothing is shrunk in silence
    params.verbosity = _LOADING if _set_verbosity(_LOADING) else _SERVING
    params.ui = False  # people look at the console; the engine is for the relay alone
    params.cors_origins = ""  # and no page in a browser may read its answers
    try:
        server = xllamacpp.Server(params)
    except RuntimeError:
        # The server only says that it failed. Whether it was the port is asked after the fact, not before:
        # asking first and binding later is the race this exit code exists for.
        if _taken(options.host, options.port):
            sys.stderr.write(f"serve: port {options.port} is in use\n")
            sys.exit(errno.EADDRINUSE)
        sys.exit(1)  # llama.cpp writes the cause itself; the exception knows no more than that it failed
    _set_verbosity(_SERVING)
    sys.stderr.write(f"serve: listening on {server.listening_address}\n")
    sys.stderr.flush()
    threading.Event().wait()


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="gpupool.engines.llamacpp.serve")
    parser.add_argument("--model", required=True)
    parser.add_argument("--alias", required=True)
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--ctx-size", type=int, default=2048)
    parser.add_argument("--parallel", type=int, default=1)
    parser.add_argument("--gpu-layers", type=int, default=-1)
    parser.add_argument("--cache-ram", type=int, default=0)
    parser.add_argument("--threads", type=int)
    parser.add_argument("--batch-size", type=int)
    parser.add_argument("--ubatch-size", type=int)
    parser.add_argument("--flash-attn", choices=list(_FLASH_ATTENTION), default="auto")
    parser.add_argument("--cache-type-k", choices=list(_CACHE_TYPES), default="f16")
    parser.add_argument("--cache-type-v", choices=list(_CACHE_TYPES), default="f16")
    parser.add_argument("--tensor-split", type=lambda text: [float(part) for part in text.split(",")], default=[])
    parser.add_argument("--embeddings", action="store_true")
    parser.add_argument("--pooling", choices=list(_POOLING))
    parser.add_argument("--lora", action="append", default=[])
    return parser.parse_args()


def _set_verbosity(level: int) -> bool:
    """Whether it could be set: only a build that shows this function can be made quiet again once it has loaded."""
    try:
        ctypes.CDLL(xllamacpp.xllamacpp.__file__)._Z30common_log_set_verbosity_tholdi(ctypes.c_int(level))
    except (AttributeError, OSError):
        return False
    return True


def _taken(host: str, port: int) -> bool:
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            return error.errno == errno.EADDRINUSE
    return False


if __name__ == "__main__":
    main()
