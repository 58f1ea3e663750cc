"""Samples with damage that nobody foresaw: whatever becomes of them, nothing is raised and a report can be sent."""

import random
import re
from collections.abc import Callable, Iterable

import msgspec
import pytest

from gpupool.agent.devices import merge
from gpupool.agent.facts import device_facts
from gpupool.discovery import amd, amd_exporter, dcgm, fabric_manager, intel, lspci, nccl_topology, topology
from gpupool.discovery import nvidia_smi_text as smi
from gpupool.discovery.base import Device, Inventory
from gpupool.discovery.kernel_log import KernelLog
from gpupool.discovery.nccl_topology import TopologyRefused
from gpupool.discovery.nvidia_reading import NvmlReading
from gpupool.discovery.nvidia_smi_links import parse_nvlink_capabilities, parse_nvlink_status
from gpupool.discovery.nvidia_smi_report import ReportError, parse_text, parse_xml
from gpupool.discovery.nvidia_view import devices
from gpupool.discovery.tool_source import Told
from gpupool.stream.intake import decode
from gpupool.stream.messages import Observed
from tests.gpupool.discovery.samples import SAMPLES, needs_samples

NODE = "abc123de-1111-2222-3333-444444444444"
JUNK = ["9" * 30, "-1", "1e400", "0x" + "f" * 300, "NaN", "null", "\x00", "\u00b2", "{", "[", "<", '"', "N/A",
        "\x1b[1m", "18446744073709551615", "4294967295", "GPU 0", "\ufffd" * 300, "\n\n"]  # fmt: skip
ROUNDS = 40


def told(found: Iterable[Device]) -> None:
    """As an agent sends it and the web process reads it. Raises BadMessage."""
    facts = device_facts(merge([Inventory(tuple(found))]))
    decode(msgspec.json.encode(Observed(sequence=1, devices=facts, instances=[])))


def nvidia(*readings: NvmlReading) -> None:
    for reading in readings:
        told(devices(reading, node_id=NODE))


def by_amd(text: str, *commands: str) -> None:
    told(amd.devices(Told(outputs=dict.fromkeys(commands, text)), NODE))


def by_intel(text: str) -> None:
    told(intel.devices(Told(outputs=dict.fromkeys(("discovery", "detail 0", "stats 0", "top", "matrix"), text)), NODE))


def links(text: str) -> None:
    parse_nvlink_status(text)
    parse_nvlink_capabilities(text)
    list(fabric_manager.errors(text))


def spreadsheets(text: str) -> None:
    nvidia(smi.parse_query_gpu(text))
    smi.parse_compute_apps(text)


READERS: dict[str, Callable[[str], object]] = {
    "nvidia-smi-xml": lambda text: nvidia(parse_xml(text)),
    "nvidia-smi-text": lambda text: nvidia(smi.parse_table(text), parse_text(text)),
    "nvidia-smi-csv": spreadsheets,
    "nvidia-smi-L": smi.parse_list,
    "nvidia-smi-dmon": smi.parse_monitor,
    "nvidia-smi-topo": topology.matrix,
    "nvlink": links,
    "nccl-topo-xml": nccl_topology.parse,
    "rocm-smi-json": lambda text: by_amd(text, "rocm"),
    "rocm-smi-text": lambda text: by_amd(text, "rocm", "rocminfo"),
    "amd-smi-json": lambda text: by_amd(text, "list", "static", "metric", "process", "topology", "partition"),
    "amd-metrics": amd_exporter.readings,
    "intel": by_intel,
    "lspci": lspci.listed,
    "dcgm-metrics": dcgm.parse,
    "kernel-log": lambda text: KernelLog().feed_all(text.splitlines()[:100], now=1e9),
}


def damaged(text: str, chance: random.Random) -> str:
    for _ in range(chance.randint(1, 12)):
        at = chance.randrange(len(text) + 1)
        numbers = list(re.finditer(r"\d+", text[at : at + 400]))
        match chance.randint(0, 2):
            case 0 if numbers:
                number = chance.choice(numbers)
                text = text[: at + number.start()] + chance.choice(JUNK) + text[at + number.end() :]
            case 1:
                text = text[:at] + chance.choice(JUNK) + text[at:]
            case _:
                text = text[:at] + text[at + chance.randint(1, 200) :]
    return text


@needs_samples
@pytest.mark.shows("P21")
@pytest.mark.parametrize("folder", READERS)
def test_damage_costs_readings_and_nothing_else(folder: str) -> None:
    chance = random.Random(folder)
    files = sorted((SAMPLES / folder).iterdir())
    for _ in range(ROUNDS):
        text = damaged(chance.choice(files).read_text(errors="replace"), chance)
        try:
            READERS[folder](text)
        except (ReportError, TopologyRefused):
            continue  # the whole is refused in a sentence
