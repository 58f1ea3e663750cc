"""The stand-in for NVML, built once."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.gpupool.discovery.nvml_gpus import Gpus, build
from tests.gpupool.discovery.smi_tool import Tool


@pytest.fixture(scope="session")
def standin_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a libnvidia-ml.so.1 that plays."""
    return build(tmp_path_factory.mktemp("nvml"))


@pytest.fixture
async def gpus(standin_folder: Path, tmp_path: Path) -> AsyncIterator[Gpus]:
    played = Gpus(standin_folder, tmp_path)
    yield played
    await played.source.close()


@pytest.fixture
def tool(tmp_path: Path) -> Tool:
    return Tool(tmp_path)
