"""What Prometheus is told of devices: memory by model and device, readings by DCGM's names, nothing for the unknown."""

from typing import Any

import msgspec
import pytest
from django.db import OperationalError
from django.test import Client
from prometheus_client.parser import text_string_to_metric_families

from gpupool import services
from gpupool.models import Instance, Node
from gpupool.reads import device_metrics
from gpupool.stream.messages import Observed
from tests.gpupool.pool import a_device, a_version, an_online_node, place_one

pytestmark = pytest.mark.django_db


@pytest.fixture(autouse=True)
def _fresh(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device_metrics, "_newest", (float("-inf"), b""))


def scraped(text: str) -> dict[tuple[str, ...], float]:
    return {
        (sample.name, *(sample.labels[name] for name in sorted(sample.labels))): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def report(instance: Instance, **readings: Any) -> None:
    node = instance.node
    assert node is not None
    assert node.session_id is not None
    device = msgspec.structs.replace(a_device("gpu-0"), **readings)
    services.apply_observed(node.pk, node.session_id, Observed(sequence=1, devices=[device], instances=[]))


@pytest.mark.shows("R59")
def test_memory_is_told_by_model_and_device() -> None:
    node = an_online_node(a_device("gpu-0"))
    one, two = place_one(a_version("llama"), node), place_one(a_version("qwen"), node)
    ours = [
        {"pid": 1, "memory_bytes": 1_000_000_000, "instance_id": str(one.pk)},
        {"pid": 2, "memory_bytes": 245_679_616, "instance_id": str(one.pk)},
        {"pid": 3, "memory_bytes": None, "instance_id": str(two.pk)},
        {"pid": 4, "memory_bytes": 7},
    ]
    report(one, processes=ours)
    answer = Client().get("/metrics")
    told = scraped(answer.content.decode())
    assert told["model_gpu_memory_bytes", "gpu-0", "llama", ""] == 1_245_679_616
    assert ("model_gpu_memory_bytes", "gpu-0", "qwen", "") not in told  # unknown is not zero


@pytest.mark.shows("R94")
def test_readings_have_dcgms_names_and_units_and_unknown_ones_are_left_out() -> None:
    node = an_online_node(a_device("gpu-0"))
    instance = place_one(a_version("llama"), node)
    report(instance, temperature_celsius=61.0, utilization=0.42, memory_used_bytes=3 << 20, health="failed",
           telemetry={"power_watts": 300.0, "sm_active": 0.421})  # fmt: skip
    told = scraped(device_metrics.render_device_metrics().decode())
    where = ("gpu-0", "Test device", "node-1", "")
    assert told["DCGM_FI_DEV_GPU_TEMP", *where] == 61
    assert told["DCGM_FI_DEV_GPU_UTIL", *where] == 42
    assert told["DCGM_FI_DEV_FB_USED", *where] == 3
    assert told["DCGM_FI_DEV_POWER_USAGE", *where] == 300
    assert told["DCGM_FI_PROF_SM_ACTIVE", *where] == 0.421
    assert told["gatehouse_device_health", "gpu-0", "failed", "Test device", "node-1", ""] == 1
    assert told["gatehouse_device_isolated", *where] == 0
    assert not any(name.startswith("DCGM_FI_DEV_SM_CLOCK") for name, *_ in told)


def test_what_is_made_up_says_so_in_every_sample_of_it() -> None:
    node = an_online_node(a_device("gpu-0"))
    instance = place_one(a_version("llama"), node)
    Node.objects.update(simulated=True)
    report(instance, temperature_celsius=61.0,
           processes=[{"pid": 1, "memory_bytes": 5, "instance_id": str(instance.pk)}])  # fmt: skip
    text = device_metrics.render_device_metrics().decode()
    samples = [line for line in text.splitlines() if line.startswith(("DCGM_", "gatehouse_device", "model_gpu"))]
    assert len(samples) >= 5
    assert all('simulated="true"' in line for line in samples)


def test_a_database_that_is_away_takes_no_other_metric_with_it(monkeypatch: pytest.MonkeyPatch) -> None:
    def away(self: object) -> None:
        raise OperationalError("away")

    monkeypatch.setattr(device_metrics.DeviceCollector, "collect", away)
    answer = Client().get("/metrics")
    assert answer.status_code == 200
    assert b"gatehouse_" in answer.content
