"""A script that plays nvidia-smi."""

import os
from pathlib import Path

from core.clock import ManualClock
from gpupool.agent.processes import clean_environment
from gpupool.discovery.nvidia_smi import NvidiaSmiSource


def gpu_xml(bus: str, uuid: str, *, used: str = "100 MiB", more: str = "") -> str:
    return (
        f'<gpu id="00000000:{bus}:00.0"><product_name>NVIDIA A100-PCIE-40GB</product_name><uuid>{uuid}</uuid>{more}'
        f"<fb_memory_usage><total>40960 MiB</total><reserved>600 MiB</reserved><used>{used}</used></fb_memory_usage>"
        "<ecc_errors><volatile><dram_uncorrectable>0</dram_uncorrectable></volatile></ecc_errors></gpu>"
    )


def report(*gpus: str) -> str:
    return f"<nvidia_smi_log><driver_version>570.1</driver_version>{''.join(gpus)}</nvidia_smi_log>"


class Tool:
    """A folder of answers, by the words of the call."""

    def __init__(self, folder: Path) -> None:
        self._answers = folder / "answers"
        self._answers.mkdir()
        self.command = folder / "nvidia-smi"
        self.command.write_text(
            f'#!/bin/sh\necho "$*" >> {folder}/calls\nname=$(echo "$*" | tr -c "a-zA-Z0-9\\n" "_" | cut -c1-12)\n'
            f'[ -e {self._answers}/hang ] && exec sleep 600\ncat {self._answers}/"${{name:-table}}" 2>/dev/null\n'
        )
        self.command.chmod(0o755)
        self._calls = folder / "calls"
        self.clock = ManualClock()
        self.source = NvidiaSmiSource(
            env=clean_environment(os.environ),
            clock=self.clock,
            root=folder,
            command=str(self.command),
            deadline_seconds=30.0,
        )

    def says(self, name: str, text: str) -> None:
        (self._answers / name).write_text(text)

    def hang(self) -> None:
        (self._answers / "hang").touch()
        self.source._deadline = 1.0

    def calls(self) -> list[str]:
        return self._calls.read_text().splitlines()
