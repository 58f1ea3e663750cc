"""What engines tell of their memory, in metrics and logs. Values of samples were read in the files."""

import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest

from gpupool.engines.base import EngineMemory
from gpupool.engines.llamacpp.memory import Buffers, Slots, parse_buffers, parse_props
from gpupool.engines.ollama.memory import LoadedModel, parse_loaded
from gpupool.engines.registry import get_engine
from tests.gpupool.discovery.samples import assert_covered, read
from tests.gpupool.processes import free_port
from tests.waiting import wait_until

ROOT = Path(__file__).resolve().parents[3]
TINY = ROOT / "tests/data/tiny512.gguf"
MIB, GIB = 1 << 20, 1 << 30


def measured(engine: str, metrics: str = "", log: str = "") -> EngineMemory:
    read_memory = get_engine(engine).measured
    assert read_memory is not None
    return read_memory(metrics, log)


def test_every_file_is_in_a_test() -> None:
    assert_covered(
        "vllm-metrics",
        {"aibrix__runtime_doc_vllm_metrics.txt", "chimeraforge__vllm_metrics.txt", "llmprobe__vllm_metrics_live.txt"},
    )
    assert_covered("sglang-metrics", {"chimeraforge__sglang_metrics.txt", "sglang__production_metrics_doc.txt"})
    assert_covered("ollama", {"llmprobe__ollama_ps.json", "ollama__api_ps.json"})
    assert_covered("llamacpp", {"llmprobe__llamacpp_props.json"})


@pytest.mark.parametrize(
    ("file", "tokens", "block", "share"),
    [
        ("aibrix__runtime_doc_vllm_metrics.txt", 81767 * 16, 16, 0.9),
        ("llmprobe__vllm_metrics_live.txt", 6400 * 16, 16, 0.92),
        ("chimeraforge__vllm_metrics.txt", None, None, None),
    ],
)
def test_vllms_cache_in_its_metrics(file: str, tokens: int | None, block: int | None, share: float | None) -> None:
    told = measured("vllm", read("vllm-metrics", file))
    assert told == EngineMemory(kv_tokens=tokens, kv_block_tokens=block, device_share=share)


@pytest.mark.parametrize(
    ("file", "prompt", "output", "hits"),
    [
        ("aibrix__runtime_doc_vllm_metrics.txt", 148, 955, None),
        ("llmprobe__vllm_metrics_live.txt", 9302, 18461, None),
        ("chimeraforge__vllm_metrics.txt", None, None, None),  # histograms of requests alone
    ],
)
def test_vllms_counters(file: str, prompt: int | None, output: int | None, hits: int | None) -> None:
    counters = get_engine("vllm").counters
    assert counters is not None
    told = counters(read("vllm-metrics", file))
    assert (told.input_tokens, told.output_tokens, told.cached_tokens) == (prompt, output, hits)


@pytest.mark.parametrize(
    ("file", "prompt", "output"),
    [("sglang__production_metrics_doc.txt", 8128902, 7557572), ("chimeraforge__sglang_metrics.txt", None, None)],
)
def test_sglangs_counters_and_that_it_tells_of_no_capacity(file: str, prompt: int | None, output: int | None) -> None:
    counters = get_engine("sglang").counters
    assert counters is not None
    told = counters(read("sglang-metrics", file))
    assert (told.input_tokens, told.output_tokens) == (prompt, output)
    assert measured("sglang", read("sglang-metrics", file)) == EngineMemory()


def test_replicas_of_vllm_add_up() -> None:
    line = 'vllm:cache_config_info{block_size="32",num_gpu_blocks="%d",engine="%d",note="a \\"b\\" {c}"} 1.0\n'
    assert measured("vllm", line % (100, 0) + line % (50, 1)).kv_tokens == 150 * 32
    nothing = 'vllm:cache_config_info{block_size="None",num_gpu_blocks="None"} 1.0\n'
    assert measured("vllm", nothing).kv_tokens is None


VLLM_LOG = """
INFO 11-20 10:00:01 [gpu_model_runner.py:1892] Model loading took 14.2717 GiB and 5.268 seconds
INFO 11-20 10:00:20 [gpu_worker.py:227] Available KV cache memory: 4.00 GiB
INFO 11-20 10:00:20 [kv_cache_utils.py:715] GPU KV cache size: 116,496 tokens
INFO 11-20 10:00:45 [gpu_model_runner.py:2289] Graph capturing finished in 20 secs, took 0.50 GiB
"""
VLLM_V0_LOG = (
    "model weights take 0.24GiB; non_torch_memory takes 0.06GiB; PyTorch activation peak memory takes 0.47GiB; "
    "the rest of the memory reserved for KV Cache is 4.00GiB.\n"
)
SGLANG_LOG = """
[2025-11-20] Load weight end. type=LlamaForCausalLM, dtype=torch.bfloat16, avail mem=7.81 GB, mem usage=14.98 GB.
[2025-11-20] KV Cache is allocated. #tokens: 20480, K size: 1.25 GB, V size: 1.25 GB
[2025-11-20] Capture cuda graph end. Time elapsed: 4.12 s. mem usage=0.50 GB. avail mem=1.2 GB.
[2025-11-20] max_total_num_tokens=20480, chunked_prefill_size=2048
"""


def test_sizes_in_logs() -> None:
    assert measured("vllm", log=VLLM_LOG) == EngineMemory(
        kv_tokens=116496, kv_bytes=4 * GIB, weights_bytes=round(14.2717 * GIB), compute_bytes=GIB // 2
    )
    old = measured("vllm", log=VLLM_V0_LOG)
    assert (old.kv_bytes, old.weights_bytes, old.compute_bytes) == (4 * GIB, round(0.24 * GIB), round(0.47 * GIB))
    assert measured("sglang", log=SGLANG_LOG) == EngineMemory(
        kv_tokens=20480, kv_bytes=round(2.5 * GIB), weights_bytes=round(14.98 * GIB), compute_bytes=GIB // 2
    )
    gauge = 'sglang:max_total_num_tokens{dp_rank="0"} 100\nsglang:max_total_num_tokens{dp_rank="1"} 100\n'
    assert measured("sglang", gauge).kv_tokens == 200


LLAMACPP_LOG = """
load_tensors:        CUDA0 model buffer size =  4403.49 MiB
load_tensors:   CPU_Mapped model buffer size =   281.81 MiB
llama_context:  CUDA_Host  output buffer size =     0.49 MiB
llama_kv_cache:      CUDA0 KV buffer size =  1024.00 MiB
llama_kv_cache: size = 1024.00 MiB (  8192 cells,  32 layers,  4/1 seqs), K (f16):  512.00 MiB, V (f16):  512.00 MiB
llama_kv_cache:      CUDA0 KV buffer size =   128.00 MiB
llama_kv_cache: size =  128.00 MiB (  1024 cells,  32 layers,  4/1 seqs), K (f16):   64.00 MiB, V (f16):   64.00 MiB
sched_reserve:       CUDA0 compute buffer size =   560.00 MiB
"""


def test_llamacpps_buffers_by_device() -> None:
    assert parse_buffers(LLAMACPP_LOG) == {
        "CUDA0": Buffers(weights=round(4403.49 * MIB), kv_cache=1152 * MIB, compute=560 * MIB),
        "CPU_Mapped": Buffers(weights=round(281.81 * MIB)),
        "CUDA_Host": Buffers(compute=round(0.49 * MIB)),
    }
    told = measured("llamacpp", log=LLAMACPP_LOG)
    assert (told.kv_tokens, told.kv_bytes) == (8192, 1152 * MIB)  # the sliding window's cache holds less
    assert measured("llamacpp", log="nothing of it") == EngineMemory()
    assert told.adapters_bytes is None
    adapter = "llama_adapter_lora_init_impl:      CUDA0 LoRA buffer size =    12.50 MiB\n"
    assert measured("llamacpp", log=LLAMACPP_LOG + adapter).adapters_bytes == round(12.5 * MIB)


def test_llamacpps_slots() -> None:
    assert parse_props(read("llamacpp", "llmprobe__llamacpp_props.json").encode()) == Slots(4, 8192)
    assert parse_props(b"{}") == Slots(None, None)
    with pytest.raises(ValueError, match=r"llama\.cpp"):
        parse_props(b"[]")


@pytest.mark.parametrize(
    ("file", "model", "size", "context"),
    [
        ("llmprobe__ollama_ps.json", "llama3:8b", 4811340143, 4096),
        ("ollama__api_ps.json", "mistral:latest", 5137025024, None),
    ],
)
def test_ollamas_loaded_models(file: str, model: str, size: int, context: int | None) -> None:
    (loaded,) = parse_loaded(read("ollama", file).encode())
    assert loaded == LoadedModel(model, size, size, context)
    assert loaded.host_bytes == 0


def test_a_model_that_did_not_fit_is_partly_in_the_hosts_memory() -> None:
    (loaded,) = parse_loaded(b'{"models":[{"name":"m","size":10,"size_vram":4}]}')
    assert loaded.host_bytes == 6
    (silent,) = parse_loaded(b'{"models":[{"name":"m"}]}')
    assert (silent.memory_bytes, silent.host_bytes) == (None, None)
    with pytest.raises(ValueError, match="list of loaded models"):
        parse_loaded(b"<html>")


def test_the_real_server_tells_its_buffers_and_is_quiet_afterwards(tmp_path: Path) -> None:
    log = tmp_path / "log"
    port = free_port()
    arguments = ["--model", str(TINY), "--alias", "t", "--port", str(port), "--ctx-size", "512", "--parallel", "2"]
    with log.open("wb") as out:
        server = subprocess.Popen(
            [sys.executable, "-m", "gpupool.engines.llamacpp.serve", *arguments], cwd=ROOT, stderr=out
        )
        try:
            wait_until(lambda: b"serve: listening" in log.read_bytes(), "the server did not start")
            loaded = log.read_bytes()
            address = f"http://127.0.0.1:{port}/v1/completions"
            with urllib.request.urlopen(address, b'{"prompt": "hello", "max_tokens": 2}', timeout=30) as answer:
                assert answer.status == 200
            assert log.read_bytes() == loaded  # no line for a request
        finally:
            server.kill()
            server.wait(timeout=30)
    told = measured("llamacpp", log=log.read_text(errors="replace"))
    assert told.kv_tokens == 512  # two slots of 256
    assert told.weights_bytes is not None
    assert abs(told.weights_bytes - TINY.stat().st_size) < MIB
    assert told.kv_bytes is not None
    assert told.kv_bytes > 0
