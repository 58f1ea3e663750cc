"""How vLLM, SGLang and TGI would be started: their options from arguments and lease. None of them runs here."""

from pathlib import Path

import pytest

from gpupool.engines.base import (
    ArtefactRefused,
    EngineArgs,
    EngineArgumentsRefused,
    GivenDevice,
    LaunchPlan,
    LaunchRequest,
    device_environment,
)
from gpupool.engines.registry import get_engine

GIB = 1 << 30
CPU = GivenDevice("cpu-1", "cpu", "host", 64 * GIB)
GPU_A = GivenDevice("GPU-aaaa", "gpu", "nvidia", 80 * GIB)
GPU_B = GivenDevice("GPU-bbbb", "gpu", "nvidia", 40 * GIB)
UNKNOWN = GivenDevice("GPU-cccc", "gpu", "nvidia")
ENGINES = ("vllm", "sglang", "tgi")


def request(
    *devices: GivenDevice, args: EngineArgs | None = None, memory_bytes: int = 20 * GIB, model: str = "config.json"
) -> LaunchRequest:
    return LaunchRequest(
        python="/usr/bin/python3",
        model_path=Path("/models/with space") / model,
        served_name="tiny",
        port=21_001,
        devices=devices,
        memory_bytes=memory_bytes,
        engine_args=args or {},
    )


def plan(
    engine: str, *devices: GivenDevice, args: EngineArgs | None = None, memory_bytes: int = 20 * GIB
) -> LaunchPlan:
    launch = get_engine(engine).launch
    assert launch is not None
    return launch.plan(request(*devices, args=args, memory_bytes=memory_bytes))


def options(argv: tuple[str, ...]) -> dict[str, str | None]:
    """Options with their values, None for those that are alone."""
    found: dict[str, str | None] = {}
    for word, following in zip(argv, [*argv[1:], "--"], strict=True):
        if word.startswith("--"):
            found[word] = None if following.startswith("--") else following
    return found


@pytest.mark.parametrize(
    ("engine", "begins", "devices", "args", "expected"),
    [
        ("vllm", ("/usr/bin/python3", "-m", "vllm.entrypoints.openai.api_server"), (GPU_A,), {},
         {"--model": "/models/with space", "--served-model-name": "tiny", "--host": "127.0.0.1", "--port": "21001",
          "--max-num-seqs": "64", "--dtype": "auto", "--gpu-memory-utilization": "0.25",
          "--enable-prefix-caching": None, "--enable-prompt-tokens-details": None}),
        ("vllm", ("/usr/bin/python3",), (GPU_A, GPU_B),
         {"max_model_len": 8192, "max_num_seqs": 16, "sleep_mode": True, "lora": True, "max_lora_rank": 16,
          "enable_prefix_caching": False, "tool_call_parser": "hermes", "quantization": "fp8", "runner": "generate"},
         {"--model": "/models/with space", "--served-model-name": "tiny", "--host": "127.0.0.1", "--port": "21001",
          "--max-num-seqs": "16", "--max-model-len": "8192", "--dtype": "auto", "--gpu-memory-utilization": "0.25",
          "--tensor-parallel-size": "2", "--no-enable-prefix-caching": None, "--enable-sleep-mode": None,
          "--enable-prompt-tokens-details": None,
          "--enable-lora": None, "--max-loras": "4", "--max-lora-rank": "16", "--enable-auto-tool-choice": None,
          "--tool-call-parser": "hermes", "--quantization": "fp8", "--runner": "generate"}),
        ("sglang", ("/usr/bin/python3", "-m", "sglang.launch_server"), (GPU_A,), {},
         {"--model-path": "/models/with space", "--served-model-name": "tiny", "--host": "127.0.0.1",
          "--port": "21001", "--nccl-port": "21002", "--max-running-requests": "64", "--dtype": "auto",
          "--mem-fraction-static": "0.22",
          "--enable-metrics": None}),
        ("sglang", ("/usr/bin/python3",), (CPU,), {"memory_saver": True, "lora": True, "context_length": 4096},
         {"--model-path": "/models/with space", "--served-model-name": "tiny", "--host": "127.0.0.1",
          "--port": "21001", "--nccl-port": "21002", "--device": "cpu", "--max-running-requests": "64",
          "--context-length": "4096", "--dtype": "auto", "--enable-metrics": None, "--enable-memory-saver": None,
          "--enable-weights-cpu-backup": None, "--enable-lora": None, "--max-lora-rank": "64",
          "--lora-target-modules": "all"}),
        ("tgi", ("text-generation-launcher",), (GPU_A, GPU_A), {"max_total_tokens": 4096, "cuda_graphs": False},
         {"--model-id": "/models/with space", "--hostname": "127.0.0.1", "--port": "21001",
          "--shard-uds-path": "/tmp/tgi-21001", "--master-port": "21002", "--num-shard": "2",
          "--max-concurrent-requests": "128", "--max-total-tokens": "4096", "--cuda-memory-fraction": "0.25",
          "--cuda-graphs": "0", "--usage-stats": "off"}),
    ],
)  # fmt: skip
def test_a_plan_says_how_to_start_it(
    engine: str, begins: tuple[str, ...], devices: tuple[GivenDevice, ...], args: EngineArgs, expected: dict[str, str]
) -> None:
    made = plan(engine, *devices, args=args)
    assert made.argv[: len(begins)] == begins
    assert options(made.argv) == expected
    assert made.port == 21_001


AMD = (
    GivenDevice("GPU-1a2b", "gpu", "amd", 64 * GIB, index=3),
    GivenDevice("MI210_0000:43:00.0", "gpu", "amd", 64 * GIB, uuid="GPU-3c4d"),
)
INTEL = (
    GivenDevice("ARC_0000:03:00.0", "gpu", "intel", 16 * GIB, index=0),
    GivenDevice("ARC_0000:83:00.0", "gpu", "intel", 16 * GIB, index=2),
)
_HIDDEN = {
    "CUDA_VISIBLE_DEVICES": "", "ROCR_VISIBLE_DEVICES": "", "HIP_VISIBLE_DEVICES": "-1",
    "ONEAPI_DEVICE_SELECTOR": "*:cpu",
}  # fmt: skip


@pytest.mark.shows("P10", "R72", "R151")
@pytest.mark.parametrize(
    ("devices", "expected"),
    [
        pytest.param((CPU,), {}, id="a host without a GPU in the lease: all are hidden"),
        pytest.param((GPU_B, GPU_A), {"CUDA_VISIBLE_DEVICES": "GPU-bbbb,GPU-aaaa"}, id="CUDA: by UUID, in its order"),
        pytest.param(
            (GivenDevice("MIG-1", "gpu", "nvidia", GIB),), {"CUDA_VISIBLE_DEVICES": "MIG-1"}, id="CUDA: a part of one"
        ),
        pytest.param(
            AMD,
            {"ROCR_VISIBLE_DEVICES": "GPU-1a2b,GPU-3c4d", "HIP_VISIBLE_DEVICES": "0,1"},
            id="ROCm: by UUID below HIP, which counts what is left",
        ),
        pytest.param(
            INTEL,
            {"ZE_AFFINITY_MASK": "0,2", "ZE_ENABLE_PCI_ID_DEVICE_ORDER": "1", "ZE_FLAT_DEVICE_HIERARCHY": "FLAT",
             "ONEAPI_DEVICE_SELECTOR": "level_zero:gpu"},
            id="oneAPI: by index, in the order of the PCI bus",
        ),
    ],
)  # fmt: skip
def test_each_vendors_runtime_is_shown_its_devices_and_no_other(
    devices: tuple[GivenDevice, ...], expected: dict[str, str]
) -> None:
    assert device_environment(devices) == {"CUDA_DEVICE_ORDER": "PCI_BUS_ID"} | _HIDDEN | expected


@pytest.mark.parametrize(
    ("device", "says"),
    [
        (GivenDevice("MI210_0000:43:00.0", "gpu", "amd"), "ROCm takes GPUs by no other lasting name"),
        (GivenDevice("ARC_0000:03:00.0", "gpu", "intel"), "by which oneAPI takes GPUs"),
    ],
)
def test_a_gpu_without_a_name_for_its_runtime_is_refused(device: GivenDevice, says: str) -> None:
    with pytest.raises(EngineArgumentsRefused, match=says):
        device_environment((device,))


@pytest.mark.parametrize("engine", ENGINES)
def test_the_engine_sees_exactly_the_leases_gpus(engine: str) -> None:
    env = plan(engine, GPU_B, GPU_A).env
    assert (env["CUDA_VISIBLE_DEVICES"], env["CUDA_DEVICE_ORDER"]) == ("GPU-bbbb,GPU-aaaa", "PCI_BUS_ID")
    assert plan(engine, CPU).env["CUDA_VISIBLE_DEVICES"] == ""


@pytest.mark.parametrize(
    ("engine", "args", "slots"),
    [("vllm", {"max_num_seqs": 3}, 3), ("sglang", {"max_running_requests": 4}, 4),
     ("tgi", {"max_concurrent_requests": 5}, 5)],
)  # fmt: skip
def test_the_plan_says_how_many_requests_it_decodes_at_once(engine: str, args: EngineArgs, slots: int) -> None:
    assert plan(engine, GPU_A, args=args).slots == slots


@pytest.mark.parametrize(
    ("engine", "option", "memory_bytes", "fraction"),
    [
        ("vllm", "--gpu-memory-utilization", 80 * GIB, "0.95"),
        ("vllm", "--gpu-memory-utilization", 80 * GIB // 3, "0.333"),
        ("sglang", "--mem-fraction-static", 80 * GIB, "0.836"),
        ("tgi", "--cuda-memory-fraction", 40 * GIB, "0.5"),
    ],
)
def test_an_engine_takes_no_more_than_its_lease(engine: str, option: str, memory_bytes: int, fraction: str) -> None:
    assert options(plan(engine, GPU_A, memory_bytes=memory_bytes).argv)[option] == fraction


@pytest.mark.parametrize("engine", ENGINES)
def test_a_gpu_of_unknown_size_is_not_taken_whole(engine: str) -> None:
    with pytest.raises(EngineArgumentsRefused, match="memory of GPU-cccc is not known"):
        plan(engine, UNKNOWN)


def test_vllm_on_a_cpu_is_given_a_fixed_cache() -> None:
    made = plan("vllm", CPU, memory_bytes=8 * GIB)
    assert made.env["VLLM_CPU_KVCACHE_SPACE"] == "4"
    assert "--gpu-memory-utilization" not in made.argv


def test_vllm_has_the_addresses_of_what_it_is_started_with() -> None:
    assert not {"VLLM_SERVER_DEV_MODE", "VLLM_ALLOW_RUNTIME_LORA_UPDATING"} & set(plan("vllm", GPU_A).env)
    env = plan("vllm", GPU_A, args={"sleep_mode": True, "lora": True}).env
    assert (env["VLLM_SERVER_DEV_MODE"], env["VLLM_ALLOW_RUNTIME_LORA_UPDATING"]) == ("1", "True")


def test_vllm_is_not_asked_to_sleep_on_a_cpu_where_it_would_not_start() -> None:
    with pytest.raises(EngineArgumentsRefused, match="sleeps on GPUs only"):
        plan("vllm", CPU, args={"sleep_mode": True})


@pytest.mark.parametrize(
    ("engine", "args", "words"),
    [
        ("vllm", {"trust_remote_code": True}, "takes no argument 'trust_remote_code'"),
        ("vllm", {"max_num_seqs": 0}, "$.max_num_seqs"),
        ("vllm", {"dtype": "int3"}, "$.dtype"),
        ("vllm", {"quantization": "fp8 --api-key x"}, "$.quantization"),
        ("vllm", {"max_num_seqs": 100, "max_num_batched_tokens": 64}, "is less"),
        ("sglang", {"context_length": "long"}, "$.context_length"),
        ("sglang", {"n_ctx": 5}, "takes no argument 'n_ctx'"),
        ("tgi", {"quantize": "none"}, "$.quantize"),
        ("tgi", {"max_input_tokens": 512, "max_total_tokens": 512}, "no token for the answer"),
    ],
)
def test_wrong_arguments_are_refused_by_name(engine: str, args: EngineArgs, words: str) -> None:
    launch = get_engine(engine).launch
    assert launch is not None
    with pytest.raises(EngineArgumentsRefused) as refusal:
        launch.check_args(args)
    assert words in str(refusal.value)
    assert str(refusal.value).endswith(".")


@pytest.mark.parametrize("engine", ENGINES)
def test_a_model_is_a_folder_named_by_its_config(engine: str) -> None:
    launch = get_engine(engine).launch
    assert launch is not None
    launch.check_artefact(b'\n{"architectures": ["X"]}', 500)
    for head in (b"", b"GGUF\x03\x00\x00\x00", b"PK\x03\x04"):
        with pytest.raises(ArtefactRefused, match=r"config\.json"):
            launch.check_artefact(head, len(head))
    with pytest.raises(EngineArgumentsRefused, match="loads folders"):
        launch.plan(request(GPU_A, model="model.gguf"))
