"""A dcgm-exporter's text, read and joined to devices."""

import asyncio

import pytest
from msgspec.structs import replace

from core.clock import ManualClock
from gpupool.agent.exporter import exporter_fetch
from gpupool.discovery.base import Device, Inventory
from gpupool.discovery.dcgm import TELEMETRY, DcgmSource, join, parse
from tests.gpupool.discovery.samples import assert_covered, read

GPU = Device(stable_id="GPU-aaa", kind="gpu", vendor="nvidia", name="A100", telemetry={"power_watts": 60.0})
TEXT = """# HELP DCGM_FI_PROF_SM_ACTIVE The ratio of cycles an SM has at least 1 warp assigned.
# TYPE DCGM_FI_PROF_SM_ACTIVE gauge
DCGM_FI_PROF_SM_ACTIVE{gpu="0",UUID="GPU-aaa",device="nvidia0",modelName="NVIDIA A100",Hostname="h"} 0.421
DCGM_FI_PROF_PIPE_TENSOR_ACTIVE{gpu="0",UUID="GPU-aaa"} 0.1
DCGM_FI_DEV_POWER_USAGE{gpu="0",UUID="GPU-aaa"} 51
DCGM_FI_DEV_GPU_TEMP{gpu="0",UUID="GPU-aaa"} 33
DCGM_FI_DEV_MEM_COPY_UTIL{gpu="0",UUID="GPU-aaa"} 25
DCGM_FI_PROF_DRAM_ACTIVE{gpu="0",UUID="GPU-aaa"} 140737488355330.000000
DCGM_FI_DEV_FAN_SPEED{gpu="0",UUID="GPU-aaa"} 2147483634
DCGM_FI_PROF_SM_ACTIVE{gpu="1",UUID="GPU-bbb"} 0
DCGM_FI_PROF_SM_ACTIVE{gpu="1",UUID="GPU-bbb"
broken
"""


def test_the_sample() -> None:
    gpus = parse(read("dcgm-metrics", "netdata__netdata__metrics_valid.prom"))
    assert set(gpus) == {("GPU-aaa", ""), ("GPU-aaa", "2")}
    whole, part = gpus["GPU-aaa", ""], gpus["GPU-aaa", "2"]
    assert (whole.utilization, whole.memory_used_bytes) == (0.8, 1 << 30)
    assert whole.telemetry == pytest.approx(
        {
            "xid_last": 31,
            "remap_failed": 1,
            "remapped_rows_uncorrectable": 7,
            "power_violation_seconds": 0.002,
            "thermal_violation_seconds": 0.005,
            "pcie_tx_bytes_per_second": 123456,
        }
    )  # the memory's temperature is one of DCGM's words for blank
    assert (part.utilization, part.telemetry) == (0.6, {})


def test_the_fields_that_are_read_are_dcgms() -> None:
    fields = set(read("dcgm-metrics", "netdata__netdata__all_fields_nonlabel.txt").split())
    assert len(fields) == 623
    assert set(TELEMETRY) <= fields
    assert_covered(
        "dcgm-metrics", {"netdata__netdata__metrics_valid.prom", "netdata__netdata__all_fields_nonlabel.txt"}
    )


@pytest.mark.shows("R94")
def test_how_busy_a_gpu_is_comes_from_its_profiling_counters_and_blank_is_absent() -> None:
    device = join(GPU, parse(TEXT))
    assert device.telemetry["sm_active"] == 0.421
    assert device.telemetry["tensor_active"] == 0.1
    assert device.telemetry["power_watts"] == 60.0  # its driver's own, newer
    assert device.temperature_celsius == 33
    assert device.telemetry["memory_utilization"] == 0.25
    assert not {"dram_active", "fan_share", "sm_occupancy"} & set(device.telemetry)
    assert parse(TEXT)["GPU-bbb", ""].telemetry == {"sm_active": 0.0}  # said, and zero


def test_an_instance_takes_what_is_of_it() -> None:
    gpus = parse('DCGM_FI_PROF_SM_ACTIVE{gpu="0",UUID="GPU-aaa",GPU_I_ID="2"} 0.5\n')
    part = replace(GPU, stable_id="MIG-1", partition_of="GPU-aaa", facts={"gpu_instance": "2"})
    assert join(part, gpus).telemetry["sm_active"] == 0.5
    assert "sm_active" not in join(GPU, gpus).telemetry
    failed = replace(part, health="failed")
    assert join(failed, gpus) is failed


class Fixed:
    async def probe(self) -> Inventory:
        return Inventory((GPU,))

    async def close(self) -> None:
        return None


@pytest.mark.shows("R93")
async def test_an_exporter_is_read_over_http_and_left_alone_when_it_is_away(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gpupool.agent.exporter._DEADLINE_SECONDS", 30.0)  # of one that is there
    asked: list[bytes] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        asked.append(await reader.readuntil(b"\r\n\r\n"))
        body = TEXT.encode()
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n" % len(body) + body)
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    clock = ManualClock()
    source = DcgmSource(Fixed(), exporter_fetch(f"http://127.0.0.1:{port}/metrics"), clock=clock)
    (device,) = (await source.probe()).devices
    assert device.telemetry["sm_active"] == 0.421
    assert asked[0].startswith(b"GET /metrics HTTP/1.1\r\n")
    server.close()
    await server.wait_closed()
    assert (await source.probe()).devices == (GPU,)
    assert (await source.probe()).devices == (GPU,)  # in its rest nobody is asked
    await source.close()


def test_a_wrong_address_names_its_setting() -> None:
    with pytest.raises(ValueError, match="GATEHOUSE_DCGM_URL"):
        exporter_fetch("ftp://host")


def test_values_that_are_no_measurement_are_left_out() -> None:
    odd = "".join(
        f'DCGM_FI_DEV_FB_USED{{UUID="GPU-{at}"}} {value}\n' for at, value in enumerate(("-Inf", "+Inf", "1e300"))
    )
    assert parse(odd) == {}
    (gpu,) = parse(f'{odd}DCGM_FI_DEV_FB_USED{{UUID="GPU-9"}} 7\n').values()
    assert gpu.memory_used_bytes == 7 << 20
