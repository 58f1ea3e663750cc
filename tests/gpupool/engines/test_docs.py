"""docs/engines.md names every engine and every argument that it is started with."""

from pathlib import Path

import msgspec
import pytest

from gpupool.engines.llamacpp.launch import LlamaCppArgs
from gpupool.engines.plugins import BUILT_IN
from gpupool.engines.sglang.launch import SglangArgs
from gpupool.engines.tgi.launch import TgiArgs
from gpupool.engines.vllm.launch import VllmArgs

PAGE = (Path(__file__).parents[3] / "docs" / "engines.md").read_text()


@pytest.mark.parametrize("name", sorted(BUILT_IN))
def test_every_engine_is_on_the_page(name: str) -> None:
    assert f"| `{name}` |" in PAGE


@pytest.mark.parametrize("arguments", [LlamaCppArgs, VllmArgs, SglangArgs, TgiArgs])
def test_every_argument_is_on_the_page(arguments: type[msgspec.Struct]) -> None:
    for field in arguments.__struct_fields__:
        assert f"`{field}`" in PAGE, field
