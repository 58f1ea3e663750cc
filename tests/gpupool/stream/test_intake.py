"""What an agent sends is checked before anything believes it."""

import json
from typing import Any
from uuid import UUID

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpupool.stream.intake import LARGEST_FRAME_BYTES, decode
from gpupool.stream.messages import BadMessage, Hello, InstanceFact, Observed
from tests.gpupool.pool import a_device, a_hello


def _frame(message: Hello | Observed, **changes: Any) -> str:
    """The message as JSON, with some of its top-level members replaced."""
    return json.dumps(msgspec.to_builtins(message) | changes)


def _observed(**changes: Any) -> str:
    fact = InstanceFact(instance_id=UUID(int=1), state="ready", lease_id=1, fencing_token=1)
    plain = msgspec.to_builtins(fact) | changes
    return _frame(Observed(sequence=1, devices=[], instances=[]), instances=[plain])


def test_a_whole_hello_is_read() -> None:
    hello = a_hello("node-1", a_device("gpu-0"))
    assert decode(_frame(hello)) == hello


def _device(**changes: Any) -> str:
    device = msgspec.to_builtins(a_device("gpu-0")) | changes
    return _frame(a_hello("node-1"), devices=[device])


def _events(*events: dict[str, Any], **changes: Any) -> str:
    plain: dict[str, Any] = {"sequence": 1, "source": "nvml", "kind": "xid", "at": 1.0, "code": 79}
    return _frame(
        Observed(sequence=1, devices=[], instances=[]), events=[plain | event | changes for event in events or ({},)]
    )


def test_a_whole_device_with_its_events_is_read() -> None:
    device: dict[str, Any] = msgspec.to_builtins(a_device("gpu-0")) | {
        "regions": [{"kind": "vram", "size_bytes": 1 << 30, "access": ["read", "write"]}],
        "links": [{"peer": "gpu-1", "kind": "nvlink", "lanes": 12}],
        "processes": [{"pid": 7, "name": "python", "memory_bytes": None}],
        "capability": {"architecture": "hopper", "precisions": ["fp8", "bf16"]},
        "telemetry": {"power_watts": 41.5, "offset_celsius": -3.0},
        "tags": ["H100"],
    }
    events = [{"sequence": n, "source": "nvml", "kind": "xid", "at": 1.0, "code": 79} for n in (4, 9)]
    message = decode(_frame(Observed(sequence=1, devices=[], instances=[]), devices=[device], events=events))
    assert isinstance(message, Observed)
    assert message.devices[0].links == device["links"]
    assert [event.sequence for event in message.events] == [4, 9]


def _load(**told: Any) -> str | bytes:
    empty = Observed(sequence=1, devices=[], instances=[])
    return _frame(empty, load=[{"instance_id": str(UUID(int=1)), "running": 1, "waiting": 0} | told])


@pytest.mark.parametrize(
    "frame",
    [
        "",
        "null",
        "[]",
        "{",
        '{"type": "goodbye"}',
        b"\xff\xfe",
        "x" * (LARGEST_FRAME_BYTES + 1),
        _frame(a_hello("node-1"), protocol=99),
        _frame(a_hello("node-1"), node="x" * 121),
        _frame(a_hello("node-1"), address=""),
        _frame(a_hello("node-1"), facts={"a": "\x00"}),
        _frame(a_hello("node-1"), facts={str(n): "" for n in range(101)}),
        _frame(a_hello("node-1", a_device("same"), a_device("same"))),
        _device(kind="quantum"),
        _device(health="splendid"),
        _device(memory_bytes=-1),
        _device(memory_bytes=1 << 70),
        _device(memory_bytes=1.5),
        _device(stable_id=""),
        _device(name="x" * 201),
        _observed(state="flying"),
        _observed(port=70_000),
        _observed(pid=-1),
        _observed(process_started_at=1e300),
        _observed(fencing_token=1 << 64),
        _observed(reason="\x00"),
        _frame(Observed(sequence=1, devices=[], instances=[]), load=[{"instance_id": str(UUID(int=1))}] * 5000),
        _device(traceable_id="x" * 251),
        _device(tags=["x" * 81]),
        _device(tags=["a"] * 33),
        _device(regions=[{"kind": "hyperspace", "size_bytes": 1}]),
        _device(regions=[{"kind": "vram", "size_bytes": 1 << 70}]),
        _device(regions=[{"kind": "vram", "size_bytes": 1}] * 33),
        _device(links=[{"peer": "x" * 201, "kind": "nvlink"}]),
        _device(links=[{"peer": "gpu-1", "kind": "rope"}]),
        _device(links=["gpu-1"]),
        _device(processes=[{"pid": "1"}]),
        _device(processes=[{"pid": 1, "name": "\x00"}]),
        _device(processes=[{"pid": 1, "memory_bytes": -1}]),
        _device(processes=[{"pid": 1, "instance_id": {}}]),
        _load(kv_used=1.5),
        _load(kv_used=-0.1),
        _load(kv_used=1e308),
        _device(capability={"precisions": [1]}),
        _device(capability={"architecture": "hopper", "extra": [[[[1]]]]}),
        _device(telemetry={"": 1.0}),
        _device(telemetry={"power_watts": 1e30}),
        _device(telemetry={f"reading_{n}": 1.0 for n in range(101)}),
        _frame(a_hello("node-1"), capabilities={"a": {"b": {"c": {"d": {"e": 1}}}}}),
        _frame(a_hello("node-1"), capabilities={"a": ["x"] * 501}),
        _frame(a_hello("node-1"), capabilities={"a": "x" * 2001}),
        _observed(device_bytes=-1),
        _observed(load_seconds=-0.1),
        _observed(weights_bytes=-1),
        _observed(compute_bytes=1 << 63),
        _observed(adapters_bytes=-1),
        _observed(memory_mode="roomy"),
        _observed(guard_state="x" * 17),
        _observed(started_from="heaven"),
        _observed(last_used_at=1e300),
        _events(sequence=0),
        _events({}, {}),
        _events(kind=""),
        _events(text="x" * 2001),
        _events(at=-1),
        _events(code=1 << 31),
        _events(data={"a": "\x00"}),
        _events(*({"sequence": n + 1} for n in range(257))),
        _frame(
            Observed(sequence=1, devices=[], instances=[]), actions=[{"action_id": str(UUID(int=1)), "state": "maybe"}]
        ),
    ],
    ids=lambda frame: str(frame)[:40],
)
def test_a_frame_that_says_nonsense_is_refused(frame: str | bytes) -> None:
    with pytest.raises(BadMessage):
        decode(frame)


@given(st.binary(max_size=200) | st.text(max_size=200))
def test_no_bytes_do_anything_but_be_refused(frame: bytes | str) -> None:
    with pytest.raises(BadMessage):
        decode(frame)
