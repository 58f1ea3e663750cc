"""From an agent's frame to a checked message. What an agent says is data from another machine: bounded and cleaned."""

import math
from collections.abc import Iterable
from typing import Final

import msgspec

from gpupool.policies.instance import State
from gpupool.stream.messages import PROTOCOL, AgentMessage, DeviceFact, EngineLoadFact, Hello, InstanceFact

LARGEST_FRAME_BYTES: Final = 1024 * 1024
_MOST_DEVICES: Final = 1024
_MOST_INSTANCES: Final = 4096
_MOST_FACTS: Final = 100
_LARGEST_BIGINT: Final = (1 << 63) - 1
_LARGEST_INT: Final = (1 << 31) - 1
_LATEST_SECOND: Final = 253_402_300_799.0  # the end of the year 9999
_HEALTHS: Final = frozenset({"ok", "failed", "unknown"})
_KINDS: Final = frozenset({"cpu", "gpu"})
_STATES: Final = frozenset(State)
_decoder: Final = msgspec.json.Decoder(AgentMessage)


class BadMessage(ValueError):
    """The frame is not what the protocol says; the message says what is wrong."""


def decode(frame: str | bytes) -> AgentMessage:
    """A message whose every value fits its column. Raises BadMessage."""
    if len(frame) > LARGEST_FRAME_BYTES:
        raise BadMessage(f"a frame has at most {LARGEST_FRAME_BYTES} bytes")
    try:
        message = _decoder.decode(frame)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise BadMessage(str(error)) from error
    if isinstance(message, Hello):
        _check_hello(message)
    else:
        _number("sequence", message.sequence, _LARGEST_BIGINT)
        _check_loads(message.load)
    _check_devices(message.devices)
    _check_instances(message.instances)
    return message


def _check_hello(hello: Hello) -> None:
    if hello.protocol != PROTOCOL:
        raise BadMessage(
            f"protocol {hello.protocol} is not spoken here; install the agent of this release ({PROTOCOL})"
        )
    _text("node", hello.node, 120)
    _text("boot_id", hello.boot_id, 64)
    _text("agent_version", hello.agent_version, 32)
    _text("address", hello.address, 255, may_be_empty=False)
    _facts(hello.facts)


def _check_devices(devices: Iterable[DeviceFact]) -> None:
    seen: set[str] = set()
    for device in devices:
        _text("stable_id", device.stable_id, 200, may_be_empty=False)
        if device.stable_id in seen:
            raise BadMessage(f"device {device.stable_id} is listed twice")
        seen.add(device.stable_id)
        if len(seen) > _MOST_DEVICES:
            raise BadMessage(f"a node has at most {_MOST_DEVICES} devices")
        if device.kind not in _KINDS or device.health not in _HEALTHS:
            raise BadMessage(f"device {device.stable_id}: {device.kind} and {device.health} are not known here")
        _text("vendor", device.vendor, 16)
        _text("name", device.name, 200)
        _number("index", device.index, _LARGEST_INT)
        _number("memory_bytes", device.memory_bytes, _LARGEST_BIGINT)
        _number("memory_used_bytes", device.memory_used_bytes, _LARGEST_BIGINT)
        _real("utilization", device.utilization)
        _real("temperature_celsius", device.temperature_celsius)
        _facts(device.facts)


def _check_instances(instances: Iterable[InstanceFact]) -> None:
    seen = set()
    for fact in instances:
        if fact.instance_id in seen:
            raise BadMessage(f"instance {fact.instance_id} is listed twice")
        seen.add(fact.instance_id)
        if len(seen) > _MOST_INSTANCES:
            raise BadMessage(f"a node has at most {_MOST_INSTANCES} instances")
        if fact.state not in _STATES:
            raise BadMessage(f"instance {fact.instance_id}: there is no state {fact.state!r}")
        _number("lease_id", fact.lease_id, _LARGEST_BIGINT)
        _number("fencing_token", fact.fencing_token, _LARGEST_BIGINT)
        _number("port", fact.port, 65535)
        _number("pid", fact.pid, _LARGEST_INT)
        _number("slots", fact.slots, _LARGEST_INT)
        _number("restarts", fact.restarts, _LARGEST_INT)
        _number("memory_rss_bytes", fact.memory_rss_bytes, _LARGEST_BIGINT)
        _text("reason", fact.reason, 10_000)
        started = fact.process_started_at
        if started is not None and not 0 <= started <= _LATEST_SECOND:
            raise BadMessage("process_started_at is no time")


def _check_loads(loads: Iterable[EngineLoadFact]) -> None:
    for number, load in enumerate(loads, start=1):
        if number > _MOST_INSTANCES:
            raise BadMessage(f"a node has at most {_MOST_INSTANCES} instances")
        _number("running", load.running, _LARGEST_INT)
        _number("waiting", load.waiting, _LARGEST_INT)
        _real("kv_used", load.kv_used)


def _text(name: str, value: str, longest: int, *, may_be_empty: bool = True) -> None:
    if len(value) > longest or "\x00" in value or (not value and not may_be_empty):
        raise BadMessage(f"{name} is not a text of at most {longest} characters")


def _number(name: str, value: int | None, largest: int) -> None:
    if value is not None and not 0 <= value <= largest:
        raise BadMessage(f"{name} is not between 0 and {largest}")


def _real(name: str, value: float | None) -> None:
    if value is not None and not math.isfinite(value):
        raise BadMessage(f"{name} is not a finite number")


def _facts(facts: dict[str, str]) -> None:
    if len(facts) > _MOST_FACTS:
        raise BadMessage(f"at most {_MOST_FACTS} facts")
    for key, value in facts.items():
        _text("fact", key, 100)
        _text("fact", value, 2000)
