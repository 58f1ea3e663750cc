"""What the API tells of a device's memories and of what computes there."""

import msgspec
import pytest
from rest_framework.test import APIClient

from gpupool.discovery.base import Capability
from gpupool.discovery.memory_classes import gpu_regions
from gpupool.models import Device
from tests.factories import make_user
from tests.gpupool.pool import a_device, an_online_node

pytestmark = pytest.mark.django_db
GIB = 1 << 30


@pytest.mark.shows("R13", "R14")
def test_a_devices_memories_are_numbered_and_masked_and_one_that_says_nonsense_has_none() -> None:
    node = an_online_node(a_device("gpu-0"), a_device("gpu-1"), a_device("gpu-2"))
    able = Capability(
        precisions=frozenset({"fp16", "bf16"}), tensor_cores=True, compute_units=304, peak_tflops=1307.4,
        memory_bandwidth=5.3e12, link_bandwidth=896e9,
    )  # fmt: skip
    regions = gpu_regions("AMD Instinct MI300X", 192 * GIB, 64 * GIB)
    Device.objects.filter(stable_id="gpu-0").update(
        vendor="amd",
        regions=[msgspec.to_builtins(region, order="deterministic") for region in regions],
        capability=msgspec.to_builtins(able, order="deterministic"),
    )
    Device.objects.filter(stable_id="gpu-1").update(regions=[{"kind": "bubble"}])
    client = APIClient()
    client.force_authenticate(make_user(platform_role="operator"))
    listed = client.get(f"/api/nodes/{node.pk}/devices/").json()["results"]
    views = {device["stable_id"]: device["resource_view"] for device in listed}
    view = views["gpu-0"]
    assert (view["interface"], view["tensor_cores"], view["precisions"], view["compute_units"]) == (
        "hip", True, ["bf16", "fp16"], 304,
    )  # fmt: skip
    assert (view["peak_tflops"], view["memory_bandwidth"], view["link_bandwidth"]) == (1307.4, 5.3e12, 896e9)
    assert [
        (region["mem_type"], region["mem_type_name"], region["base"], region["size"], region["access"])
        for region in view["regions"]
    ] == [(0, "vram", 0, 192 * GIB, 15), (1, "pinned", 192 * GIB, 64 * GIB, 3)]
    assert views["gpu-1"] is None
    assert views["gpu-2"]["regions"] == []
