"""Reports of `nvidia-smi -q -x` from drivers 384 to 595. The expected values were read in the files."""

from dataclasses import dataclass

import pytest

from gpupool.discovery import nvidia_catalogue as catalogue
from gpupool.discovery.nvidia_reading import GpuReading
from gpupool.discovery.nvidia_smi_report import ReportError, parse_text, parse_xml
from tests.gpupool.discovery.samples import assert_covered, read

MIB = 1 << 20


@dataclass(frozen=True)
class Expected:
    """The first GPU of a file; None is what the file does not say."""

    gpus: int
    driver: str | None
    cuda: str | None
    name: str
    uuid: str
    total_mib: int | None
    used_mib: int | None
    util: int | None  # percent
    temp: int | None
    watts: float | None
    limit: float | None
    sm_mhz: int | None
    tag: str
    pids: tuple[int, ...] = ()


MASKED = "GPU-00000000-0000-0000-0000-000000000000"
H100, A100_40, GB200 = "NVIDIA H100 80GB HBM3", "NVIDIA A100-SXM4-40GB", "NVIDIA GB200"
B200_ID, RTX3080_ID = "GPU-b200b200-0000-0000-0000-000000000000", "GPU-19d6d965-2acc-f646-00f8-4c76979aabb4"

FILES = {
    "aicr__gpu.xml": Expected(
        8, "570.86.15", "12.8", H100, "GPU-ab6ab95d-8259-5551-5962-e4a7a710fbae",
        81559, 1, 0, 33, 70.93, 700, 345, "H100-80GB"),
    "k8s-test-infra__mock-qx-a100-healthy.xml": Expected(
        2, "550.163.01", "12.4", A100_40, "GPU-12345678-1234-1234-1234-123456780000",
        40960, 0, 50, 63, 226.54, 400, 210, "A100-40GB"),
    "k8s-test-infra__mock-qx-gb200-ecc-injected.xml": Expected(
        2, "580.65.06", "13.0", GB200, B200_ID, 196608, 0, 50, 63, 618.35, 1000, 345, "GB200-186GB"),
    "k8s-test-infra__mock-qx-gb200-fabric-degraded.xml": Expected(
        2, "580.65.06", "13.0", GB200, B200_ID, 196608, 0, 44, 36, 145.0, 1000, 345, "GB200-186GB"),
    "k8s-test-infra__mock-qx-gb200-lost.xml": Expected(
        2, "580.65.06", "13.0", GB200, B200_ID, 196608, 0, 50, 63, 618.35, 1000, 345, "GB200-186GB"),
    "k8s-test-infra__qx-a100.xml": Expected(
        1, "570.148.08", "12.8", A100_40, MASKED, 40960, 0, 0, 33, 49.68, 400, 210, "A100-40GB"),
    "k8s-test-infra__qx-gb200.xml": Expected(
        4, "580.173.02", "13.0", GB200, MASKED, 189471, 0, 0, 27, 165.93, 1200, 120, "GB200-186GB"),
    "k8s-test-infra__qx-h100.xml": Expected(
        8, "580.105.08", "13.0", H100, MASKED, 81559, 0, 0, 29, 68.57, 700, 345, "H100-80GB"),
    "k8s-test-infra__qx-l40s.xml": Expected(
        1, "595.91.07", "13.2", "NVIDIA L40S", MASKED, 46068, 0, 0, 29, 65.64, 350, 2040, "L40S-48GB"),
    "k8s-test-infra__qx-t4.xml": Expected(
        1, "595.91.07", "13.2", "Tesla T4", MASKED, 15360, 0, 0, 33, 33.51, 70, 1590, "T4-16GB"),
    "netdata__a100-sxm4-mig.xml": Expected(
        1, "510.47.03", "11.6", A100_40, "GPU-27b94a00-ed54-5c24-b1fd-1054085de32a",
        40960, 38, None, 36, 66.92, 400, 1410, "A100-40GB"),
    "netdata__rtx-3060.xml": Expected(
        1, "515.65.01", "11.7", "NVIDIA GeForce RTX 3060 Laptop GPU", "GPU-473d8d0f-d462-185c-6b36-6fc23e23e571",
        6144, 5, 0, 45, 8.7, None, 210, "RTX-3060-Laptop-GPU-6GB", (28543,)),
    "netdata__rtx-4090-driver-535.xml": Expected(
        1, "535.86.05", "12.2", "NVIDIA GeForce RTX 4090", "GPU-71d1acc2-662d-2166-bf9f-65272d2fc437",
        24564, 2, 0, 40, 26.84, 450, 210, "RTX-4090-24GB"),
    "netdata__rtx-pro-6000-driver-580.xml": Expected(
        1, None, None, "NVIDIA RTX PRO 6000 Blackwell", "GPU-11111111-2222-3333-4444-555555555555",
        None, None, None, 37, 66.84, None, None, "RTX-PRO-6000"),
    "netdata__tesla-p100.xml": Expected(
        1, "510.47.03", "11.6", "Tesla P100-PCIE-16GB", "GPU-d3da8716-eaab-75db-efc1-60e88e1cd55e",
        16384, 0, 0, 38, 26.16, 250, 405, "P100-16GB"),
    "pai__nvidia_smi_out_of_order.xml": Expected(
        4, "430.26", None, "Tesla K80", "GPU-c3b26f7a-8dcb-619c-fa1b-8029265a4db0",
        11441, 587, 99, 64, 135.72, 149, 810, "K80-12GB", (58813,)),
    "pai__nvidia_smi_outdated_gpu.xml": Expected(
        1, "384.111", None, "GeForce GT 730", "GPU-09cb2925-9d01-5ca4-810b-6cdebe86b71a",
        None, None, None, None, None, None, None, "GT-730"),
    "pai__nvidia_smi_sample.xml": Expected(
        2, "384.66", None, "GeForce GTX 1070", "GPU-e511a7b2-f9d5-ba47-9b98-853732ca6c1b",
        8112, 2028, 100, 60, 119.47, 180, 1923, "GTX-1070-8GB", (1357, 2384, 3093)),
    "pai__nvidia_smi_sample_ecc_unsupported.xml": Expected(
        2, "410.73", "10.0", "GeForce RTX 2080 Ti", "GPU-57567e11-0be2-381b-5132-2ad95c262e58",
        10989, 0, 0, 24, 2.12, 250, 300, "RTX-2080-Ti-11GB"),
    "telegraf__a100-sxm4-v12.xml": Expected(
        1, "535.54.03", "12.2", "NVIDIA A100-SXM4-80GB", "GPU-513536b6-7d19-9063-b049-1e69664bb298",
        81920, 50, None, 27, 67.03, 500, 1275, "A100-80GB"),
    "telegraf__a10g.xml": Expected(
        1, "515.105.01", "11.7", "NVIDIA A10G", "GPU-9a9a6c50-2a47-2f51-a902-b82c3b127e94",
        23028, 22, 0, 17, 25.58, 300, 210, "A10G-24GB", (725,)),
    "telegraf__gtx-1070-ti.xml": Expected(
        1, None, None, "GeForce GTX 1070 Ti", "GPU-f9ba66fc-a7f5-94c5-da19-019ef2f9c665",
        4096, 42, 0, 39, None, None, 135, "GTX-1070-Ti-4GB"),
    "telegraf__gtx-1660-ti.xml": Expected(
        1, "418.43", "10.1", "Graphics Device", "GPU-304a277d-3545-63b8-3a36-dfde3c992989",
        5912, 0, 0, 40, 8.93, 130, 300, "Graphics-Device-6GB"),
    "telegraf__quadro-p2000-v12.xml": Expected(
        1, "525.125.06", "12.0", "Quadro P2000", "GPU-396caaed-39ca-3199-2e68-717cdb786ec6",
        5120, 1, 0, 34, 4.61, 75, 139, "P2000-5GB"),
    "telegraf__quadro-p400.xml": Expected(
        1, "418.43", "10.1", "Quadro P400", "GPU-8f750be4-dfbc-23b9-b33f-da729a536494",
        1998, 0, 0, 33, None, None, 139, "P400-2GB"),
    "telegraf__rtx-3060-v12.xml": Expected(
        1, "570.124.04", "12.8", "NVIDIA GeForce RTX 3060", "GPU-d6889ff6-2523-9142-ca3c-1ca3f396a625",
        12288, 116, 0, 42, 11.6, 170, 210, "RTX-3060-12GB"),
    "telegraf__rtx-3080-v12.xml": Expected(
        1, "536.40", "12.2", "NVIDIA GeForce RTX 3080", RTX3080_ID,
        10240, 1128, 0, 31, 22.78, 336, 210, "RTX-3080-10GB", (835, 1481, 2214, 4044, 42416)),
    "telegraf__rtx-3080-v13.xml": Expected(
        1, "595.58.03", "13.2", "NVIDIA GeForce RTX 3080", RTX3080_ID,
        10240, 9184, 65, 27, 139.62, 320, 1950, "RTX-3080-10GB"),
    "telegraf__rtx-3090-v12.xml": Expected(
        1, "525.147.05", "12.0", "NVIDIA GeForce RTX 3090", "GPU-12345678-aaaa-bbbb-cccc-0123456789ab",
        24576, 1, 0, 37, 27.23, 200, 0, "RTX-3090-24GB"),
    "telegraf__rtx-4000-sff-ada-v13.xml": Expected(
        1, "595.84", "13.2", "NVIDIA RTX 4000 SFF Ada Generation", "GPU-37037c3f-65c8-ec4d-24a9-420204ad8026",
        20475, 3534, 0, 38, 8.81, 70, 210, "RTX-4000-SFF-Ada-Generation-20GB", (1842, 3190, 4937, 34626)),
    "telegraf__tesla-t4.xml": Expected(
        1, "515.105.01", "11.7", "Tesla T4", "GPU-d37e67a5-91dd-3774-a5cb-99096249601a",
        15360, 1032, 0, 40, 26.78, 70, 585, "T4-16GB", (675, 5762)),
}  # fmt: skip


def gpus_of(name: str) -> list[GpuReading]:
    return parse_xml(read("nvidia-smi-xml", name)).gpus


@pytest.mark.parametrize("name", FILES)
def test_a_report_says_what_is_written_in_it(name: str) -> None:
    expected = FILES[name]
    reading = parse_xml(read("nvidia-smi-xml", name))
    wholes = [gpu for gpu in reading.gpus if gpu.parent_uuid is None]
    first = wholes[0]
    assert len(wholes) == expected.gpus
    assert (reading.driver_version, reading.cuda_version) == (expected.driver, expected.cuda)
    assert (first.name, first.uuid) == (expected.name, expected.uuid)
    assert mib(first.memory_bytes) == expected.total_mib
    assert mib(first.memory_used_bytes) == expected.used_mib
    assert first.utilization == (None if expected.util is None else expected.util / 100)
    assert first.temperature_celsius == expected.temp
    numbers = (first.telemetry.get(key) for key in ("power_watts", "power_limit_watts", "sm_clock_mhz"))
    assert tuple(numbers) == (expected.watts, expected.limit, expected.sm_mhz)
    assert catalogue.tags(first.name or "", first.memory_bytes)[0] == expected.tag
    assert tuple(process.pid for process in first.processes or ()) == expected.pids


def test_no_report_is_left_out() -> None:
    assert_covered("nvidia-smi-xml", set(FILES))


def test_errors_of_the_memory_are_added_up() -> None:
    sick, well = gpus_of("k8s-test-infra__mock-qx-gb200-ecc-injected.xml")
    wanted = {"ecc_corrected": 0, "ecc_uncorrected": 5, "ecc_uncorrected_aggregate": 8, "remap_failed": 1,
              "remapped_rows_uncorrectable": 1, "remap_pending": 0}  # fmt: skip
    assert {key: sick.telemetry[key] for key in wanted} == wanted
    assert well.telemetry["ecc_uncorrected"] == 0
    # Drivers of Pascal's and Kepler's time count single and double bits by place.
    (p100,) = gpus_of("netdata__tesla-p100.xml")
    assert (p100.telemetry["ecc_corrected_aggregate"], p100.telemetry["ecc_uncorrected_aggregate"]) == (3, 0)
    k80 = gpus_of("pai__nvidia_smi_out_of_order.xml")[0]
    assert (k80.telemetry["ecc_uncorrected_aggregate"], k80.telemetry["retired_pages"]) == (7, 2)


def test_a_lost_gpu_is_in_trouble_and_none_of_its_numbers_is_zero() -> None:
    other, lost = gpus_of("k8s-test-infra__mock-qx-gb200-lost.xml")
    assert (other.trouble, lost.trouble) == ("", "GPU_IS_LOST")
    assert lost.uuid == "GPU-b200b200-0000-0000-0000-000000000001"
    assert (lost.memory_bytes, lost.utilization, lost.temperature_celsius) == (None, None, None)
    assert not {"power_watts", "ecc_uncorrected", "remap_pending", "sm_clock_mhz"} & set(lost.telemetry)


def test_a_degraded_fabric_is_told() -> None:
    first, second = gpus_of("k8s-test-infra__mock-qx-gb200-fabric-degraded.xml")
    assert (first.facts["fabric_health"], second.facts["fabric_health"]) == ("Healthy", "Unhealthy")


def test_mig_instances_are_parts_of_their_gpu() -> None:
    parent, first, second = gpus_of("netdata__a100-sxm4-mig.xml")
    assert parent.mig_enabled is True
    assert [mib(part.memory_bytes) for part in (first, second)] == [19968, 19968]
    assert (first.gpu_instance, second.gpu_instance) == (1, 2)
    assert (first.compute_units, first.parent_uuid) == (42, parent.uuid)
    assert "ecc_corrected" not in parent.telemetry  # the volatile counters say N/A
    assert parent.telemetry["ecc_corrected_aggregate"] == 0
    assert [part.gpu_instance for part in gpus_of("telegraf__a100-sxm4-v12.xml")[1:]] == [3, 4, 5, 6]


def test_recovery_actions_and_what_is_silent() -> None:
    assert gpus_of("k8s-test-infra__qx-h100.xml")[0].recovery_action == "none"
    assert gpus_of("k8s-test-infra__mock-qx-a100-healthy.xml")[0].recovery_action == ""  # N/A
    assert gpus_of("telegraf__tesla-t4.xml")[0].recovery_action == ""  # its driver knows no such thing


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver.", "no nvidia_smi_log"),
        ('<!DOCTYPE n [<!ENTITY a "aaaa">]><nvidia_smi_log>&a;</nvidia_smi_log>', "defines entities"),
        ("<nvidia_smi_log><gpu></nvidia_smi_log>", "broken XML"),
        ("<nvidia_smi_log>" + "x" * (9 << 20) + "</nvidia_smi_log>", "larger than"),
    ],
)
def test_what_is_no_report_is_refused_in_a_sentence(text: str, words: str) -> None:
    with pytest.raises(ReportError, match=words):
        parse_xml(text)


@pytest.mark.shows("P21")
def test_warnings_and_colours_around_a_report_do_no_harm() -> None:
    text = (
        "WARNING: infoROM is corrupted at gpu 0000:17:00.0\n"
        '<?xml version="1.0" ?>\n<!DOCTYPE nvidia_smi_log SYSTEM "nvsmi_device_v12.dtd">\n'
        '<nvidia_smi_log>\n\x1b[1m<gpu id="00000000:17:00.0">\x1b[0m\n'
        "<product_name>NVIDIA A100-PCIE-40GB</product_name><uuid>GPU-1</uuid>"
        "<fb_memory_usage><total>[Not Supported]</total><used>N/A</used></fb_memory_usage>"
        "<utilization><gpu_util>[Unknown Error]</gpu_util></utilization>"
        "<gpu_power_readings><power_draw>[N/A]</power_draw></gpu_power_readings>"
        "<temperature><gpu_temp>0 C</gpu_temp></temperature></gpu>\n</nvidia_smi_log>\nWARNING: see above\n"
    )
    (gpu,) = parse_xml(text).gpus
    assert (gpu.name, gpu.uuid, gpu.pci_address) == ("NVIDIA A100-PCIE-40GB", "GPU-1", "0000:17:00.0")
    assert (gpu.memory_bytes, gpu.memory_used_bytes, gpu.utilization) == (None, None, None)
    assert gpu.telemetry == {}
    assert gpu.temperature_celsius == 0  # said, and zero


def mib(size: int | None) -> int | None:
    return None if size is None else size // MIB


def test_a_report_that_is_nested_without_end_is_refused() -> None:
    deep = f"<nvidia_smi_log>{'<gpu>' * 5000}{'</gpu>' * 5000}</nvidia_smi_log>"
    with pytest.raises(ReportError, match="nested"):
        parse_xml(deep)
    with pytest.raises(ReportError, match="nested"):
        parse_text("==NVSMI LOG==\n" + "".join(f"{' ' * depth}Name : value\n" for depth in range(2000)))
