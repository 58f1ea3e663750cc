"""Two looks at the same devices, compared."""

import pytest
from msgspec.structs import replace

from gpupool.discovery.base import Device, Noticed
from gpupool.discovery.snapshot import diff

GPU = Device(
    stable_id="GPU-a", kind="gpu", vendor="nvidia", name="A100", memory_bytes=40 << 30, recovery_action="none",
    pci_address="0000:17:00.0", facts={"driver": "570.1"},
    telemetry={"ecc_uncorrected": 1, "remap_pending": 0, "remapped_rows_correctable": 2, "power_watts": 60.0},
)  # fmt: skip
OTHER = replace(GPU, stable_id="GPU-b")


def told(*after: Device, before: tuple[Device, ...] = (GPU,)) -> list[tuple[str, str]]:
    return [(event.kind, event.stable_id) for event in diff(before, after, at=5.0)]


def test_what_only_moves_is_no_event() -> None:
    moved = replace(GPU, memory_used_bytes=5, utilization=0.5, telemetry={**GPU.telemetry, "power_watts": 300.0})
    assert told(moved) == []


@pytest.mark.parametrize(
    ("key", "value", "kind"),
    [("ecc_uncorrected", 2, "ecc"), ("remap_pending", 1, "remap"), ("remapped_rows_correctable", 3, "remap")],
)
def test_errors_that_grow_are_events(key: str, value: float, kind: str) -> None:
    assert told(replace(GPU, telemetry={**GPU.telemetry, key: value})) == [(kind, "GPU-a")]


def test_what_is_unknown_or_counted_anew_is_no_event() -> None:
    assert told(replace(GPU, telemetry={})) == []
    assert told(replace(GPU, recovery_action="")) == []
    assert told(replace(GPU, telemetry={**GPU.telemetry, "ecc_uncorrected": 0})) == []  # the driver was loaded again
    assert told(GPU, before=(replace(GPU, telemetry={}, memory_bytes=None),)) == []


def test_a_device_that_fails_or_goes_is_lost_and_a_part_that_goes_is_a_change() -> None:
    assert told(replace(GPU, health="failed", facts={"trouble": "GPU_IS_LOST"})) == [("lost", "GPU-a")]
    assert told(OTHER, before=(GPU, OTHER)) == [("lost", "GPU-a")]
    part = replace(GPU, stable_id="MIG-1", partition_of="GPU-b")
    assert told(OTHER, before=(part, OTHER)) == [("change", "MIG-1")]
    assert told(before=(GPU, OTHER)) == []  # nothing at all: the source failed, not the devices
    assert told(replace(GPU, health="unknown")) == []


def test_changes_of_the_device_itself() -> None:
    assert told(replace(GPU, facts={"driver": "580.2"})) == [("change", "GPU-a")]
    assert told(replace(GPU, allocatable=False)) == [("change", "GPU-a")]
    assert told(replace(GPU, memory_bytes=(40 << 30) - 4096)) == []  # MiB here, bytes there
    assert told(replace(GPU, recovery_action="reset")) == [("recovery_action", "GPU-a")]


@pytest.mark.shows("R30")
def test_a_change_has_an_id_of_its_own_that_telling_it_again_does_not_change() -> None:
    def event(count: int, at: float) -> Noticed:
        (found,) = diff([GPU], [replace(GPU, telemetry={**GPU.telemetry, "ecc_uncorrected": count})], at=at)
        return found

    assert event(2, 5.0).data["id"] == event(2, 9.0).data["id"]
    assert event(2, 5.0).data["id"] != event(3, 5.0).data["id"]
    assert event(2, 5.0).at == 5.0
