"""A device is one device, whichever sources see it."""

from msgspec.structs import replace

from gpupool.agent.devices import device_at, merge
from gpupool.discovery.base import Capability, Device, Inventory, Link, LinkType

GIB = 1 << 30
AT = "0000:17:00.0"
NVML = Device(
    stable_id="GPU-1", kind="gpu", vendor="nvidia", name="A100", pci_address=AT, memory_bytes=40 * GIB,
    telemetry={"power_watts": 50.0}, facts={"driver": "550"},
)  # fmt: skip
LSPCI = Device(
    stable_id="GA100_0000:17:00.0_abc", kind="gpu", vendor="nvidia", name="GA100 [A100]", pci_address=AT, numa_node=1,
    facts={"driver": "nvidia", "subsystem": "x"}, capability=Capability(architecture="ampere"),
    links=(Link(peer="GPU-2", kind=LinkType.NVLINK),), telemetry={"power_watts": 1.0, "fan_share": 0.5},
)  # fmt: skip


def merged(*devices: Device) -> list[Device]:
    """As if each came from a source of its own."""
    return merge(Inventory((device,)) for device in devices)


def test_one_gpu_that_two_sources_see_is_one_with_what_both_know() -> None:
    (device,) = merged(NVML, LSPCI)
    assert (device.stable_id, device.name, device.memory_bytes) == ("GPU-1", "A100", 40 * GIB)
    assert (device.numa_node, device.links, device.capability.architecture) == (1, LSPCI.links, "ampere")
    assert device.telemetry == {"power_watts": 50.0, "fan_share": 0.5}
    assert device.facts == {"driver": "550", "subsystem": "x"}


def test_the_earlier_source_names_it() -> None:
    (device,) = merged(LSPCI, NVML)
    assert (device.stable_id, device.memory_bytes) == (LSPCI.stable_id, 40 * GIB)


def test_devices_without_an_address_are_apart() -> None:
    first, second = replace(NVML, pci_address=""), replace(LSPCI, pci_address="")
    assert len(merged(first, second)) == 2
    assert len(merge([Inventory((NVML, replace(NVML, stable_id="GPU-9")))])) == 2  # of one source, which knows them


def test_a_divided_gpu_is_not_listed_whole_by_who_does_not_see_its_parts() -> None:
    parts = [replace(NVML, stable_id=f"MIG-{n}", partition_of="GPU-1") for n in (1, 2)]
    devices = merge([Inventory(tuple(parts)), Inventory((LSPCI,))])
    assert [device.stable_id for device in devices] == ["MIG-1", "MIG-2"]
    whole = replace(NVML, allocatable=False)
    devices = merge([Inventory((whole, *parts)), Inventory((LSPCI,))])
    assert [(device.stable_id, device.numa_node) for device in devices] == [
        ("GPU-1", 1),
        ("MIG-1", None),
        ("MIG-2", None),
    ]


def test_unknown_is_filled_and_zero_is_not_unknown() -> None:
    (device,) = merged(replace(NVML, utilization=0.0, memory_used_bytes=None), replace(LSPCI, utilization=0.7))
    assert (device.utilization, device.memory_used_bytes) == (0.0, None)


def test_an_address_names_a_device_with_or_without_its_function() -> None:
    part = replace(NVML, stable_id="MIG-1", partition_of="GPU-7", pci_address="0000:65:00.0")
    assert device_at([NVML, part], "0000:17:00") == "GPU-1"
    assert device_at([NVML, part], AT) == "GPU-1"
    assert device_at([NVML, part], "0000:65:00.0") == "GPU-7"
    assert device_at([NVML], "0000:99:00.0") == ""
    assert device_at([NVML], "") == ""
