"""What an agent sends is checked before anything believes it."""

import json
from typing import Any
from uuid import UUID

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpupool.stream.intake import LARGEST_FRAME_BYTES, BadMessage, decode
from gpupool.stream.messages import Hello, InstanceFact, Observed
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
