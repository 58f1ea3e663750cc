"""The second channel of a probe: temperature, use and memory of the devices under an engine that answers."""

from typing import Any

import pytest

from gpupool.policies.device_probe import DeviceReading, described, trouble
from gpupool.policies.probe import SLOW_SECONDS


@pytest.mark.shows("R63")
@pytest.mark.parametrize(
    ("reading", "said"),
    [
        ({}, ""),
        ({"temperature_celsius": 94.9, "utilization": 1.0}, ""),
        ({"temperature_celsius": 95.0}, "too hot"),
        ({"temperature_celsius": 88.0, "limit_celsius": 87.0}, "too hot"),
        ({"throttled_by": "power_cap, thermal"}, ""),
        ({"throttled_by": "hardware_thermal"}, "slowed down"),
        ({"throttled_by": "Hardware Thermal"}, "slowed down"),
        ({"health": "failed"}, "has failed"),
        ({"health": "unknown"}, ""),
        ({"present": False}, "is gone"),
    ],
)
def test_a_device_speaks_against_its_instance_while_the_engine_answers(reading: dict[str, Any], said: str) -> None:
    verdict = trouble(DeviceReading("gpu-0", **reading))
    assert verdict.startswith("gpu-0 " if said else "")
    assert said in verdict
    assert bool(verdict) is bool(said)
    assert SLOW_SECONDS == 3.0  # of the first channel, HTTP


def test_readings_are_told_in_words_and_unknown_ones_are_left_out() -> None:
    known = DeviceReading(
        "gpu-0", temperature_celsius=61, utilization=0.42, memory_bytes=80 << 30, memory_used_bytes=7 << 20
    )
    assert described(known) == "61 °C, 42% in use, 7.0 MiB of 80.0 GiB used"
    assert described(DeviceReading("gpu-0", memory_used_bytes=7)) == "7 B used"
    assert described(DeviceReading("gpu-0")) == "nothing known"
