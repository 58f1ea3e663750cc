"""Messages of kernels, as gpud and others kept them. The expected values were read in the files."""

from collections import Counter
from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpupool.discovery.base import Noticed
from gpupool.discovery.kernel_lines import parse_line
from gpupool.discovery.kernel_log import KernelLog
from tests.gpupool.discovery.samples import assert_covered, needs_samples, read

NOW = datetime(2025, 3, 1, tzinfo=UTC).timestamp()
BOOT = 1_700_000_000.0


def noticed(text: str, boot_time: float | None = BOOT) -> list[Noticed]:
    return list(KernelLog(boot_time=boot_time).feed_all(text.splitlines(), now=NOW))


def at(*moment: int, micro: int = 0) -> float:
    return datetime(*moment, micro, tzinfo=UTC).timestamp()  # type: ignore[arg-type, misc]  # year to second


def one(line: str) -> Noticed:
    (found,) = noticed(line)
    return found


def test_every_file_is_in_a_test() -> None:
    assert_covered(
        "kernel-log",
        {
            "gpud__kmsg.1.log", "gpud__kmsg.2.peermem.log", "gpud__nccl_dmesg.decode.iso.log",
            "gpud__oom_dmesg.decode.iso.log", "gpud__pstore_dmesg-erst.txt",
            "leptonai__gpud__dmesg-with-xid-119.log", "xid_lines_collected.tsv",
        },
    )  # fmt: skip


def test_records_of_the_kernels_ring() -> None:
    text = read("kernel-log", "gpud__kmsg.1.log")
    lines = [parse_line(line, now=NOW) for line in text.splitlines() if line]
    assert [line.sequence for line in lines] == list(range(3964, 4011))
    assert {line.level for line in lines} == {6}
    assert lines[0].monotonic_seconds == 206.764307
    assert lines[-1].text == "IPv6: ADDRCONF(NETDEV_CHANGE): calic24dd7712a6: link becomes ready"
    assert noticed(text) == []  # switches that are opened and networks that come up are nothing to notice


def test_peer_memory_that_was_freed_under_a_network_card() -> None:
    found = noticed(read("kernel-log", "gpud__kmsg.2.peermem.log"))
    assert len(found) == 7  # the eighth line says "test"
    assert {(event.kind, event.pci_address) for event in found} == {("driver", "")}
    assert found[0].at == BOOT + 227.996636
    assert found[0].text == "nvidia-peermem: detected invalid context, skipping further processing"


def test_a_crash_in_a_library_of_gpus() -> None:
    found = noticed(read("kernel-log", "gpud__nccl_dmesg.decode.iso.log"))
    assert [(event.kind, event.at, dict(event.data)) for event in found] == [
        ("crash", at(2025, 1, 21, 4, minute, 44, micro=285060), {
            "process": "pt_main_thread", "pid": "2536443", "library": "libnccl.so.2",
        })
        for minute in (41, 42)
    ]  # fmt: skip


def test_errors_and_kills_for_want_of_memory_in_one_log() -> None:
    found = noticed(read("kernel-log", "gpud__oom_dmesg.decode.iso.log"))
    assert Counter((event.kind, event.code) for event in found) == {
        ("xid", 13): 16,
        ("xid", 43): 1,
        ("memory", None): 7,
    }
    assert {event.pci_address for event in found if event.kind == "xid"} == {"0000:38:00.0"}
    first = found[0]
    assert first.at == at(2025, 1, 21, 4, 41, 44, micro=283302)
    assert first.text == "Graphics SM Global Exception on (GPC 8, TPC 5, SM 1): Multiple Warp Errors"
    assert first.data == {}  # pid='<unknown>', name=<unknown>
    assert (found[16].text, found[16].data) == ("Ch 00000008", {"pid": "2924364", "process": "pt_main_thread"})
    steps = [(event.data["step"], event.data.get("pid"), event.data.get("process")) for event in found[17:]]
    assert steps == [
        ("reaped", "345646", "vector"), ("chosen", None, None), ("killed", "123", "httpd"),
        ("killed", "456", "python"), ("killed", "123", "httpd"), ("chosen", "863987", "node"), ("chosen", None, None),
    ]  # fmt: skip
    chosen = found[22].data
    assert chosen["constraint"] == "CONSTRAINT_MEMCG"
    assert chosen["control_group"].startswith("/lxc.payload.ny2g2r5hh3-lxc/kubepods.slice/")
    assert found[23].data["constraint"] == "OTHER_CONSTRAINT"


def test_a_crash_dump_of_a_machine_without_gpus_has_nothing_to_notice() -> None:
    text = read("kernel-log", "gpud__pstore_dmesg-erst.txt")
    assert noticed(text) == []
    first = parse_line(text.splitlines()[0], now=NOW)
    assert (first.level, first.monotonic_seconds, first.text) == (6, 201.650687, "sysrq: SysRq : Trigger a crash")


@pytest.mark.shows("P24")
def test_the_same_error_again_is_another_event_and_carries_the_gpus_uuid() -> None:
    """The driver names the GPU at an address in the line before."""
    found = noticed(read("kernel-log", "leptonai__gpud__dmesg-with-xid-119.log"))
    assert [(event.code, event.data["pid"], event.data["process"]) for event in found] == [
        (119, "2024380", "nvidia-smi"), (119, "2024380", "nvidia-smi"), (119, "2024380", "nvidia-smi"),
        (119, "1263500", "cache_mgr_main"), (119, "1240590", "gpud"),
    ]  # fmt: skip
    assert {event.stable_id for event in found} == {"GPU-509665ad-b600-ac93-3616-d754b23d636d"}
    assert {event.pci_address for event in found} == {"0000:9b:00.0"}
    assert [event.at for event in found[:3]] == [at(2025, 2, 23, 16, 24, second) for second in (18, 24, 30)]
    assert found[0].text.startswith("Timeout after 6s of waiting for RPC response from GPU4 GSP!")


@needs_samples
def test_lines_that_were_collected_from_other_projects() -> None:
    rows = [row.split("\t", 5)[5] for row in read("kernel-log", "xid_lines_collected.tsv").splitlines()[1:]]
    assert len(rows) == 111
    silent = [line for line in rows if not noticed(line)]
    assert len(silent) == 2
    assert all("%d" in line for line in silent)  # patterns of a format, not messages
    codes = Counter(event.code for line in rows for event in noticed(line))
    assert (codes[79], codes[119], codes[154], codes[149], codes[99999]) == (6, 3, 4, 28, 1)  # counted with grep
    assert {event.kind for line in rows for event in noticed(line)} == {"xid"}


@pytest.mark.parametrize(
    ("line", "address", "code", "text", "data"),
    [
        (
            "NVRM: Xid (0000:03:00): 14, Channel 00000001", "0000:03:00.0", 14, "Channel 00000001", {},
        ),
        ("NVRM: Xid (PCI:0000:04:00): 69", "0000:04:00.0", 69, "Xid 69", {}),
        ("NVRM: Xid (PCI:0000:01:00): 31, pid=XXX", "0000:01:00.0", 31, "Xid 31", {}),
        (
            "mynode-066 | ERROR: nhc: detected: [ 3606.832215] NVRM: Xid (PCI:0002:00:00): 119, pid=67769, "
            "name=nvidia-smi, Timeout waiting for RPC from GSP1!",
            "0002:00:00.0", 119, "Timeout waiting for RPC from GSP1!", {"pid": "67769", "process": "nvidia-smi"},
        ),
        (
            "[171167.897562] NVRM: Xid (PCI:0019:01:00): 154, GPU recovery action changed from 0x4 (Drain and Reset) "
            "to 0x1 (GPU Reset Required)",
            "0019:01:00.0", 154,
            "GPU recovery action changed from 0x4 (Drain and Reset) to 0x1 (GPU Reset Required)",
            {"recovery_from": "drain_reset", "recovery_action": "reset"},
        ),
        (
            "NVRM: Xid (PCI:0009:01:00): 154, GPU recovery action changed from 0x0 (None) "
            "to 0x2 (Node Reboot Required)",
            "0009:01:00.0", 154, "GPU recovery action changed from 0x0 (None) to 0x2 (Node Reboot Required)",
            {"recovery_from": "none", "recovery_action": "reboot"},
        ),
        (
            "NVRM: Xid (PCI:0018:01:00): 145, pid=876767, name=ray::WorkerDict, "
            "RLW_RXPIPE Nonfatal XC0 i0 Link 13 (0x04)",
            "0018:01:00.0", 145, "RLW_RXPIPE Nonfatal XC0 i0 Link 13 (0x04)",
            {"pid": "876767", "process": "ray::WorkerDict", "unit": "RLW_RXPIPE", "severity": "nonfatal",
             "nvlink": "13"},
        ),
    ],
)  # fmt: skip
def test_nvidias_errors(line: str, address: str, code: int, text: str, data: dict[str, str]) -> None:
    event = one(line)
    assert (event.kind, event.source) == ("xid", "kernel_log")
    assert (event.pci_address, event.code, event.text) == (address, code, text)
    assert dict(event.data) == data


@pytest.mark.parametrize(
    ("lines", "kind", "address", "data"),
    [
        ("nvidia-nvswitch3: SXid (PCI:0000:c1:00.0): 12028, Non-fatal, Link 32", "sxid", "0000:c1:00.0", {}),
        ("NVRM: GPU 0000:2a:00.0: GPU has fallen off the bus.", "lost", "0000:2a:00.0", {}),
        (
            "NVRM: The NVIDIA GPU 0000:3b:00.0\nNVRM: (PCI ID: 10de:1b80) installed in this system has\n"
            "NVRM: fallen off the bus and is not responding to commands.", "lost", "0000:3b:00.0", {},
        ),
        ("NVRM: GPU 0000:01:00.0: RmInitAdapter failed! (0x24:0xffff:1220)", "lost", "0000:01:00.0", {}),
        (
            "[ 99.123456] amdgpu 0000:c1:00.0: amdgpu: ring gfx_0.0.0 timeout, signaled seq=1, emitted seq=3",
            "hang", "0000:c1:00.0", {"ring": "gfx_0.0.0"},
        ),
        ("[drm:amdgpu_job_timedout [amdgpu]] *ERROR* ring sdma0 timeout, seq=7", "hang", "", {"ring": "sdma0"}),
        ("amdgpu 0000:03:00.0: amdgpu: GPU reset begin!", "reset", "0000:03:00.0", {}),
        ("amdgpu 0000:03:00.0: amdgpu: GPU reset(2) succeeded!", "reset", "0000:03:00.0", {}),
        ("amdgpu 0000:03:00.0: amdgpu: device lost from bus!", "lost", "0000:03:00.0", {}),
        (
            "amdgpu 0000:43:00.0: amdgpu: 2 uncorrectable hardware errors detected in umc block",
            "ecc", "0000:43:00.0", {"count": "2", "severity": "uncorrectable", "block": "umc"},
        ),
        (
            "amdgpu 0000:43:00.0: amdgpu: 1 correctable hardware errors detected in umc block, no action",
            "ecc", "0000:43:00.0", {"count": "1", "severity": "correctable", "block": "umc"},
        ),
        (
            "i915 0000:00:02.0: [drm] GPU HANG: ecode 12:1:85dffffb, in python3 [12345]",
            "hang", "0000:00:02.0", {"driver": "i915", "process": "python3", "pid": "12345"},
        ),
        ("i915 0000:03:00.0: [drm] Resetting chip for stopped heartbeat on rcs0", "reset", "0000:03:00.0",
         {"driver": "i915"}),
        ("xe 0000:03:00.0: [drm] GT0: Engine reset: engine_class=ccs, logical_mask: 0x1", "reset", "0000:03:00.0",
         {"driver": "xe"}),
        ("xe 0000:03:00.0: [drm] CRITICAL: Xe has declared device 0000:03:00.0 as wedged.", "lost", "0000:03:00.0",
         {"driver": "xe"}),
        (
            "Memory cgroup out of memory: Killed process 9021 (llama-server) total-vm:9kB, anon-rss:8kB",
            "memory", "", {"step": "killed", "pid": "9021", "process": "llama-server", "control_group_limit": "yes"},
        ),
    ],
)  # fmt: skip
def test_what_else_kernels_say(lines: str, kind: str, address: str, data: dict[str, str]) -> None:
    event = one(lines)
    assert (event.kind, event.pci_address, dict(event.data)) == (kind, address, data)


@pytest.mark.parametrize(
    ("line", "when"),
    [
        ("4,812,5000000,-;NVRM: Xid (PCI:0000:01:00): 79, lost", BOOT + 5.0),
        ("[    5.000000] NVRM: Xid (PCI:0000:01:00): 79, lost", BOOT + 5.0),
        ("<4>[    5.000000] NVRM: Xid (PCI:0000:01:00): 79, lost", BOOT + 5.0),
        ("kern  :warn  : [    5.000000] NVRM: Xid (PCI:0000:01:00): 79, lost", BOOT + 5.0),
        ("2025-02-03T04:05:06+0000 node kernel: NVRM: Xid (PCI:0000:01:00): 79, lost", at(2025, 2, 3, 4, 5, 6)),
        ("2025-02-03T04:05:06.250000+02:00 node kernel: NVRM: Xid (PCI:0000:01:00): 79, lost",
         at(2025, 2, 3, 2, 5, 6, micro=250000)),
        ("Feb  3 04:05:06 node kernel: NVRM: Xid (PCI:0000:01:00): 79, lost", at(2025, 2, 3, 4, 5, 6)),
        ("Nov 30 04:05:06 node kernel: [  12.345678] NVRM: Xid (PCI:0000:01:00): 79, lost", at(2024, 11, 30, 4, 5, 6)),
        ('{"MESSAGE":"NVRM: Xid (PCI:0000:01:00): 79, lost","__REALTIME_TIMESTAMP":"1738555506000000","PRIORITY":"3"}',
         1738555506.0),
        ("NVRM: Xid (PCI:0000:01:00): 79, lost", NOW),
    ],
)  # fmt: skip
def test_the_time_of_every_shape(line: str, when: float) -> None:
    event = one(line)
    assert (event.at, event.code, event.text) == (when, 79, "lost")


def test_without_a_boot_time_the_moment_of_reading_stands_in() -> None:
    (event,) = noticed("[    5.000000] NVRM: Xid (PCI:0000:01:00): 79, lost", boot_time=None)
    assert event.at == NOW


@given(st.text(max_size=300))
def test_any_text_is_read_without_an_error(text: str) -> None:
    noticed(text)


@given(st.integers(0, 10**30), st.text(st.characters(codec="utf-8"), max_size=50))
def test_any_code_and_text_fit_the_event(code: int, text: str) -> None:
    for event in noticed(f"NVRM: Xid (PCI:0000:01:00): {code}, {text}"):
        assert event.code is None or event.code < 2**31
        assert len(event.text) <= 2000
