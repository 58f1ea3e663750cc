"""Run as a process of its own: an agent with NVIDIA's GPUs of the stand-in, until it is told to end."""

import asyncio
import os
import signal
import sys
from pathlib import Path

from core.clock import SystemClock
from gpupool.agent.node import NodeAgent, NodeSettings
from gpupool.agent.processes import clean_environment
from gpupool.discovery.amd import amd_source
from gpupool.discovery.host import HostSource
from gpupool.discovery.intel import intel_source
from gpupool.discovery.nvidia import nvidia_source
from gpupool.discovery.pci_source import PciSource


async def main(web_url: str, token: str, var_dir: Path, library: str, scenario: str) -> None:
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    env, clock = clean_environment(os.environ), SystemClock()
    gpus = env | {"LD_LIBRARY_PATH": library, "NVML_STANDIN": scenario}
    sources = [
        HostSource(memory_share=0.5),
        nvidia_source(env=gpus, clock=clock),
        amd_source(env=env, clock=clock),
        intel_source(env=env, clock=clock),
        PciSource(env=env, clock=clock),
    ]
    settings = NodeSettings("test", token, web_url, var_dir, 26_000, 10, kernel_log=Path("/dev/kmsg"))
    await NodeAgent(settings, sources).run(stop)


asyncio.run(main(sys.argv[1], sys.argv[2], Path(sys.argv[3]), sys.argv[4], sys.argv[5]))
