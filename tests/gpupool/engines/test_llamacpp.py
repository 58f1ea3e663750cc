"""The llama.cpp room: launch plans, refused arguments, GGUF heads, and the real server in its own process."""

import contextlib
import socket
import struct
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpupool.engines.base import ArtefactRefused, EngineArgs, EngineArgumentsRefused, GivenDevice, LaunchRequest
from gpupool.engines.llamacpp.gguf import HEAD_BYTES, read_head
from gpupool.engines.llamacpp.launch import EXIT_ADDRESS_IN_USE, LlamaCppLaunch, parse_args
from gpupool.engines.llamacpp.wire import LlamaCppWire
from tests.gpupool.agent.conftest import ROOT, TINY

CPU = GivenDevice("cpu-1", "cpu", "host")
GPU_A = GivenDevice("GPU-aaaa", "gpu", "nvidia")
GPU_B = GivenDevice("GPU-bbbb", "gpu", "nvidia")


def request(devices: tuple[GivenDevice, ...] = (CPU,), engine_args: EngineArgs | None = None) -> LaunchRequest:
    return LaunchRequest(
        python="/usr/bin/python3",
        model_path=Path("/models/with space.gguf"),
        served_name="tiny",
        port=21_001,
        devices=devices,
        memory_bytes=1 << 30,
        engine_args=engine_args or {},
    )


def option(argv: tuple[str, ...], name: str) -> str | None:
    return argv[argv.index(name) + 1] if name in argv else None


def test_a_plan_says_how_to_start_it() -> None:
    plan = LlamaCppLaunch().plan(request(engine_args={"n_ctx": 2048, "n_parallel": 4, "n_threads": 2}))
    assert plan.argv[:3] == ("/usr/bin/python3", "-m", "gpupool.engines.llamacpp.serve")
    assert option(plan.argv, "--model") == "/models/with space.gguf"
    assert option(plan.argv, "--host") == "127.0.0.1"
    assert option(plan.argv, "--port") == "21001"
    assert option(plan.argv, "--ctx-size") == "2048"
    assert option(plan.argv, "--threads") == "2"
    assert (plan.port, plan.slots) == (21_001, 4)


@pytest.mark.shows("R81")
def test_without_arguments_it_has_a_batch_of_512_and_a_context_of_2048() -> None:
    argv = LlamaCppLaunch().plan(request()).argv
    assert (option(argv, "--batch-size"), option(argv, "--ctx-size")) == ("512", "2048")
    for left in ("--flash-attn", "--cache-type-k", "--cache-type-v", "--tensor-split"):
        assert option(argv, left) is None  # as llama.cpp has it


def test_a_quantised_cache_and_flash_attention_are_asked_for() -> None:
    args = {"flash_attention": "on", "cache_type_k": "q8_0", "cache_type_v": "q4_0"}
    argv = LlamaCppLaunch().plan(request(engine_args=args)).argv
    assert [option(argv, name) for name in ("--flash-attn", "--cache-type-k", "--cache-type-v")] == [
        "on",
        "q8_0",
        "q4_0",
    ]
    with pytest.raises(EngineArgumentsRefused, match="only with flash attention"):
        parse_args({"cache_type_v": "q8_0"})


def test_several_devices_share_evenly_what_was_claimed_evenly() -> None:
    assert option(LlamaCppLaunch().plan(request((GPU_A, GPU_B))).argv, "--tensor-split") == "1,1"


def test_a_plan_for_embeddings_ranks_and_adapters() -> None:
    plain = LlamaCppLaunch().plan(request()).argv
    assert "--embeddings" not in plain
    assert option(plain, "--pooling") is None
    embeds = LlamaCppLaunch().plan(request(engine_args={"embeddings": True, "pooling": "cls"})).argv
    assert "--embeddings" in embeds
    assert option(embeds, "--pooling") == "cls"
    ranks = LlamaCppLaunch().plan(request(engine_args={"reranking": True})).argv
    assert "--embeddings" in ranks
    assert option(ranks, "--pooling") == "rank"
    adapts = LlamaCppLaunch().plan(request(engine_args={"lora_adapters": "/a b.gguf, /c.gguf"})).argv
    assert [adapts[i + 1] for i, word in enumerate(adapts) if word == "--lora"] == ["/a b.gguf", "/c.gguf"]


@pytest.mark.shows("P10")
def test_gpus_are_named_by_uuid_in_pci_order() -> None:
    env = LlamaCppLaunch().plan(request((GPU_B, GPU_A))).env
    assert env["CUDA_VISIBLE_DEVICES"] == "GPU-bbbb,GPU-aaaa"
    assert env["CUDA_DEVICE_ORDER"] == "PCI_BUS_ID"


@pytest.mark.shows("R76")
def test_the_server_is_told_how_many_layers_go_to_the_gpu() -> None:
    for asked, told in ((35, "35"), (33, "33"), (-1, "-1")):
        assert option(LlamaCppLaunch().plan(request((GPU_A,), {"n_gpu_layers": asked})).argv, "--gpu-layers") == told


def test_an_engine_on_the_cpu_sees_no_gpu() -> None:
    plan = LlamaCppLaunch().plan(request((CPU,), {"n_gpu_layers": 99}))
    assert plan.env["CUDA_VISIBLE_DEVICES"] == ""
    assert option(plan.argv, "--gpu-layers") == "0"
    assert option(LlamaCppLaunch().plan(request((GPU_A,), {"n_gpu_layers": 99})).argv, "--gpu-layers") == "99"


@pytest.mark.parametrize(
    ("engine_args", "words"),
    [
        ({"gpu_memory": 1}, "takes no argument 'gpu_memory'"),
        ({"n_ctx": "many"}, "$.n_ctx"),
        ({"n_ctx": "2048"}, "$.n_ctx"),
        ({"n_ctx": -5}, "$.n_ctx"),
        ({"n_parallel": 0}, "$.n_parallel"),
        ({"n_parallel": True}, "$.n_parallel"),
        ({"n_threads": 1.5}, "$.n_threads"),
        ({"n_ctx": 128, "n_parallel": 16}, "under 64 tokens are left"),
        ({"pooling": "mean"}, "only together with embeddings"),
        ({"reranking": True, "pooling": "mean"}, "ranks by pooling 'rank'"),
        ({"embeddings": True, "pooling": "best"}, "$.pooling"),
        ({"lora_adapters": "adapters/a.gguf"}, "'adapters/a.gguf' is none"),
        ({"lora_adapters": "/a.gguf,/b/../c.gguf"}, "'/b/../c.gguf' is none"),
        ({"lora_adapters": "/a.gguf,"}, "'' is none"),
    ],
)
def test_wrong_arguments_are_refused_by_name(engine_args: EngineArgs, words: str) -> None:
    with pytest.raises(EngineArgumentsRefused) as refusal:
        LlamaCppLaunch().check_args(engine_args)
    assert words in str(refusal.value)
    assert str(refusal.value).endswith(".")


def head(version: int = 3, tensors: int = 10, metadata: int = 5) -> bytes:
    return struct.pack("<4sIQQ", b"GGUF", version, tensors, metadata)


def test_the_tiny_model_has_a_good_head() -> None:
    data = TINY.read_bytes()
    assert read_head(data[:HEAD_BYTES]).version == 3
    LlamaCppLaunch().check_artefact(data[:HEAD_BYTES], len(data))


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"", "the file is empty"),
        (b"PK\x03\x04" + bytes(30), "not with b'GGUF'"),
        (head()[:20], "inside the header"),
        (head(version=1), "version is 1"),
        (struct.pack(">4sIQQ", b"GGUF", 3, 1, 1), "big-endian"),
        (head(tensors=1 << 40), "damaged"),
        (head(tensors=0), "no tensors"),
    ],
)
def test_files_that_are_no_models_are_refused(data: bytes, words: str) -> None:
    with pytest.raises(ArtefactRefused, match=words):
        LlamaCppLaunch().check_artefact(data[:HEAD_BYTES], max(len(data), 1000))


def test_a_file_that_is_only_a_header_is_refused() -> None:
    with pytest.raises(ArtefactRefused, match="not copied whole"):
        LlamaCppLaunch().check_artefact(head(), HEAD_BYTES)


@given(st.binary(max_size=40))
def test_any_bytes_are_a_head_or_a_refusal(data: bytes) -> None:
    with contextlib.suppress(ValueError):
        assert read_head(data).version in (2, 3)


def test_load_comes_from_the_servers_metrics() -> None:
    text = (
        "# TYPE llamacpp:requests_processing gauge\nllamacpp:requests_processing 2\nllamacpp:requests_deferred 5\n"
        "llamacpp:requests_processing_other 9\n"
    )
    load = LlamaCppWire().parse_load(text)
    assert (load.running, load.waiting, load.kv_used) == (2, 5, None)
    old = LlamaCppWire().parse_load("llamacpp:kv_cache_usage_ratio 0.25\n")
    assert (old.running, old.kv_used) == (None, 0.25)


@pytest.mark.shows("P6")
def test_a_taken_port_is_told_apart_from_a_model_that_does_not_load(tmp_path: Path) -> None:
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        holder.listen()
        port = holder.getsockname()[1]
        assert serve(TINY, port).returncode == EXIT_ADDRESS_IN_USE
    damaged = tmp_path / "damaged.gguf"
    damaged.write_bytes(TINY.read_bytes()[:200_000])
    broken = serve(damaged, port)
    assert broken.returncode == 1
    assert b"corrupted or incomplete" in broken.stderr


def serve(model: Path, port: int) -> "subprocess.CompletedProcess[bytes]":
    arguments = ["--model", str(model), "--alias", "tiny", "--port", str(port), "--ctx-size", "128", "--threads", "1"]
    return subprocess.run(
        [sys.executable, "-m", "gpupool.engines.llamacpp.serve", *arguments],
        cwd=ROOT,
        capture_output=True,
        timeout=120,
        check=False,
    )


def test_the_server_process_imports_nothing_of_ours() -> None:
    listing = subprocess.run(
        [sys.executable, "-c",
         "import sys, gpupool.engines.llamacpp.serve\n"
         "print(sorted(n for n in sys.modules if n.split('.')[0] in ('core', 'gpupool', 'django', 'config')))"],
        cwd=ROOT, capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert listing.stdout.strip() == str(
        ["gpupool", "gpupool.engines", "gpupool.engines.llamacpp", "gpupool.engines.llamacpp.serve"]
    )
