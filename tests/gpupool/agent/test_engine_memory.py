"""What an engine logged of its memory, of the present process alone."""

from dataclasses import replace
from pathlib import Path

from gpupool.agent.engine_memory import logged_memory
from gpupool.engines.base import EngineMemory
from gpupool.engines.registry import get_engine

LINE = "llama_kv_cache:      CUDA0 KV buffer size =  1024.00 MiB\n"


def test_an_earlier_process_of_the_same_log_does_not_count(tmp_path: Path) -> None:
    log = tmp_path / "engine.log"
    log.write_text(LINE * 3 + "it crashed\n" + LINE)
    begins = len(LINE) * 3 + len("it crashed\n")
    assert logged_memory(get_engine("llamacpp"), str(log), begins).kv_bytes == 1 << 30


def test_where_nothing_can_be_read_nothing_is_known(tmp_path: Path) -> None:
    for engine, path in (("ollama", str(tmp_path / "x")), ("vllm", str(tmp_path / "x")), ("vllm", None)):
        assert logged_memory(get_engine(engine), path, 0) == EngineMemory()


def test_a_room_that_fails_does_not_fail_the_engine(tmp_path: Path) -> None:
    def fails(metrics: str, log: str) -> EngineMemory:
        raise RuntimeError

    (tmp_path / "log").write_text("x")
    assert logged_memory(replace(get_engine("vllm"), measured=fails), str(tmp_path / "log"), 0) == EngineMemory()
