"""What is known of NVIDIA's GPUs by name; profiles of a mock of NVML say what its makers know of them."""

from typing import Any

import pytest
import yaml

from gpupool.discovery import nvidia_catalogue as catalogue
from gpupool.discovery.nvidia_reading import short_address
from tests.gpupool.discovery.samples import assert_covered, read

MIB = 1 << 20

# profile: name, compute capability, architecture, GiB, the tag
PROFILES = {
    "a100": ("NVIDIA A100-SXM4-40GB", "8.0", "ampere", 40, "A100-40GB"),
    "b200": ("NVIDIA B200", "10.0", "blackwell", 192, "B200-192GB"),
    "gb200": ("NVIDIA GB200", "10.0", "blackwell", 192, "GB200-186GB"),
    "h100": ("NVIDIA H100 80GB HBM3", "9.0", "hopper", 80, "H100-80GB"),
    "l40s": ("NVIDIA L40S", "8.9", "ada", 48, "L40S-48GB"),
    "t4": ("NVIDIA T4", "7.5", "turing", 16, "T4-16GB"),
}


@pytest.mark.parametrize("profile", PROFILES)
def test_profiles_of_servers(profile: str) -> None:
    name, capability, architecture, gib, tag = PROFILES[profile]
    told: dict[str, Any] = yaml.safe_load(read("nvml-mock-profile", f"k8s-test-infra__{profile}.yaml"))
    defaults = told["device_defaults"]
    version = defaults["compute_capability"]
    assert (defaults["name"], f"{version['major']}.{version['minor']}") == (name, capability)
    assert defaults["memory"]["total_bytes"] == gib << 30
    assert catalogue.architecture(name, None, defaults["architecture"]) == architecture
    assert catalogue.architecture(name, capability, None) == architecture
    assert catalogue.architecture(name, None, None) == architecture
    assert catalogue.tags(name, defaults["memory"]["total_bytes"])[0] == tag


def test_no_profile_is_left_out() -> None:
    assert_covered("nvml-mock-profile", {f"k8s-test-infra__{profile}.yaml" for profile in PROFILES})


@pytest.mark.parametrize(
    ("name", "mib", "tags"),
    [
        ("NVIDIA H100 NVL", 95830, ("H100-NVL-94GB", "H100-NVL")),
        ("NVIDIA H200", 143771, ("H200-141GB", "H200")),
        ("NVIDIA A100-PCIE-40GB", 40960, ("A100-40GB", "A100")),
        ("NVIDIA A10", 23028, ("A10-24GB", "A10")),
        ("NVIDIA A10G", 23028, ("A10G-24GB", "A10G")),
        ("NVIDIA L4", 23034, ("L4-24GB", "L4")),
        ("NVIDIA GeForce RTX 4090", 24564, ("RTX-4090-24GB", "RTX-4090")),
        ("NVIDIA GeForce RTX 4090", 49140, ("RTX-4090-48GB", "RTX-4090")),
        ("NVIDIA GH200 480GB", 97871, ("GH200-96GB", "GH200")),
        ("NVIDIA B200", 183359, ("B200-180GB", "B200")),
        ("NVIDIA Thing 9", None, ("Thing-9",)),
        ("", 100, ()),
    ],
)
def test_tags(name: str, mib: int | None, tags: tuple[str, ...]) -> None:
    assert catalogue.tags(name, None if mib is None else mib * MIB) == tags


@pytest.mark.shows("R14")
def test_what_a_gpu_can_compute() -> None:
    h100 = catalogue.capability("NVIDIA H100 80GB HBM3", compute_capability="9.0", compute_units=132)
    assert (h100.tensor_cores, h100.peak_tflops, h100.compute_units) == (True, 989.0, 132)
    assert {"fp8", "bf16", "tf32"} <= h100.precisions
    assert "fp4" not in h100.precisions
    assert "fp4" in catalogue.capability("NVIDIA B200", compute_capability="10.0").precisions
    turing = catalogue.capability("NVIDIA GeForce GTX 1660 Ti", compute_capability="7.5")
    assert (turing.tensor_cores, turing.peak_tflops) == (False, None)
    unknown = catalogue.capability("NVIDIA Thing 9", compute_capability=None)
    assert (unknown.architecture, unknown.tensor_cores, unknown.precisions) == ("", None, frozenset())


@pytest.mark.shows("R26")
def test_bandwidths_of_links() -> None:
    assert catalogue.nvlink_bandwidth_bytes(6, None) == 50_000_000_000  # 18 of them: 900 GB/s of an H100
    assert catalogue.nvlink_bandwidth_bytes(None, 26562) == 53_124_000_000
    assert catalogue.nvlink_bandwidth_bytes(None, None) is None
    assert catalogue.pcie_bandwidth_bytes(4, 16) == 63_014_400_000
    assert catalogue.pcie_bandwidth_bytes(None, 16) is None


@pytest.mark.parametrize(
    ("told", "short"),
    [("00000000:17:00.0", "0000:17:00.0"), ("0000:0A:00.0", "0000:0a:00.0"), ("00001580:00:00.0", "1580:00:00.0"),
     ("10000:01:00.0", "10000:01:00.0"), ("00010000:01:00.0", "10000:01:00.0"), ("", None)],
)  # fmt: skip
def test_addresses_are_written_as_the_kernel_does(told: str, short: str | None) -> None:
    assert short_address(told) == short
