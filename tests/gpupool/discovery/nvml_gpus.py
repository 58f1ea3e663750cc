"""GPUs that a stand-in for NVIDIA's library plays."""

import importlib.util
import os
import shutil
import subprocess
from pathlib import Path

import pytest

from core.clock import ManualClock
from gpupool.agent.processes import clean_environment
from gpupool.discovery.base import DeviceSource
from gpupool.discovery.nvml import NvmlSource

SOURCE = Path(__file__).with_name("nvml_standin.c")


def nvml_header_folder() -> Path | None:
    """Where the nvidia-nvml-dev wheel put nvml.h, if it is installed."""
    spec = importlib.util.find_spec("nvidia")
    for location in (spec.submodule_search_locations or ()) if spec else ():
        for header in Path(location).glob("*/include/nvml.h"):
            return header.parent
    return None


def build(folder: Path, *options: str) -> Path:
    """A folder with a libnvidia-ml.so.1 that plays."""
    if shutil.which("gcc") is None:
        pytest.skip("gcc is not installed, so the stand-in for NVML cannot be built")
    header = nvml_header_folder()
    with_header = [] if header is None else ["-DHAVE_NVML_H", f"-I{header}"]
    subprocess.run(
        ["gcc", "-shared", "-fPIC", "-Wall", "-DNVML_NO_UNVERSIONED_FUNC_DEFS", "-Wl,-soname,libnvidia-ml.so.1",
         *with_header, *options, "-o", str(folder / "libnvidia-ml.so.1"), str(SOURCE)],
        check=True,
    )  # fmt: skip
    return folder


class Gpus:
    """A source on the stand-in, and the scenario that it plays."""

    def __init__(self, folder: Path, tmp_path: Path, *, fallback: DeviceSource | None = None) -> None:
        self.clock = ManualClock()
        self._scenario = tmp_path / "scenario"
        self._lines = ["ok"]
        self._write()
        # An empty root: the host's own PCI bus and identity must not show in the results.
        environment = clean_environment(os.environ)
        environment |= {"LD_LIBRARY_PATH": str(folder), "NVML_STANDIN": str(self._scenario)}
        self.source = NvmlSource(
            env=environment,
            clock=self.clock,
            root=tmp_path,
            deadline_seconds=30.0,
            first_deadline_seconds=30.0,
            fallback=fallback,
            wall=lambda: 1000.0,
        )

    def play(self, scenario: str) -> None:
        """Only one that hangs is not waited for long: the probe may stand still on a busy machine."""
        self._lines[0] = scenario
        self.source._child._deadline = 0.5 if scenario == "hang" else 30.0
        self._write()

    def happen(self, gpu: int, code: int) -> None:
        """An XID of a GPU, counted from 1; code 0 is a double bit error."""
        self._lines.append(f"xid {gpu} {code}")
        self._write()

    def _write(self) -> None:
        self._scenario.write_text("\n".join(self._lines) + "\n")
