"""From an agent's frame to a checked message. What an agent says is data from another machine: bounded and cleaned."""

from collections.abc import Iterable
from typing import Any, Final

import msgspec

from gpupool.discovery.base import Capability, DeviceProcess, Link, MemoryRegion
from gpupool.policies.instance import State
from gpupool.policies.log_text import LARGEST_TEXT
from gpupool.policies.tiers import Tier
from gpupool.stream.bounds import (
    LARGEST_BIGINT,
    LARGEST_INT,
    check_count,
    check_facts,
    check_json,
    check_moment,
    check_number,
    check_real,
    check_text,
)
from gpupool.stream.messages import (
    PROTOCOL,
    ActionFact,
    AgentMessage,
    BadMessage,
    DeviceFact,
    EngineLoadFact,
    EventFact,
    Hello,
    InstanceFact,
    LogFact,
)

LARGEST_FRAME_BYTES: Final = 1024 * 1024
MOST_EVENTS: Final = 256  # in one report; an agent that has more tells the rest later
MOST_LOGS: Final = 8
_MOST_EVENT_DATA: Final = 32
_MOST_DEVICES: Final = 1024
_MOST_INSTANCES: Final = 4096
_MOST_ACTIONS: Final = 256
_MOST_REGIONS: Final = 32
_MOST_LINKS: Final = 1024
_MOST_PROCESSES: Final = 1024
_MOST_READINGS: Final = 100
_MOST_TAGS: Final = 32
_LONGEST_NAME: Final = 200
_LONGEST_SECONDS: Final = 1e9
_LARGEST_READING: Final = 1e18
_HEALTHS: Final = frozenset({"ok", "failed", "unknown"})
_KINDS: Final = frozenset({"cpu", "gpu"})
_STATES: Final = frozenset(State)
_STARTS: Final = frozenset({"", Tier.COLD, Tier.STAGED})
_MEMORY_MODES: Final = frozenset({"", "full", "mixed", "cpu"})
_ACTION_STATES: Final = frozenset({"running", "done", "failed", "dry_run"})
_decoder: Final = msgspec.json.Decoder(AgentMessage)


def decode(frame: str | bytes) -> AgentMessage:
    """A message whose every value fits its column. Raises BadMessage."""
    if len(frame) > LARGEST_FRAME_BYTES:
        raise BadMessage(f"a frame has at most {LARGEST_FRAME_BYTES} bytes")
    try:
        message = _decoder.decode(frame)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise BadMessage(str(error)) from error
    if isinstance(message, Hello):
        _check_hello(message)
    else:
        check_number("sequence", message.sequence, LARGEST_BIGINT)
        _check_loads(message.load)
        _check_events(message.events)
        _check_actions(message.actions)
        _check_capabilities(message.capabilities)
        _check_logs(message.logs)
    _check_devices(message.devices)
    _check_instances(message.instances)
    return message


def _check_hello(hello: Hello) -> None:
    if hello.protocol != PROTOCOL:
        raise BadMessage(
            f"protocol {hello.protocol} is not spoken here; install the agent of this release ({PROTOCOL})"
        )
    check_text("node", hello.node, 120)
    check_text("boot_id", hello.boot_id, 64)
    check_text("agent_version", hello.agent_version, 32)
    check_text("address", hello.address, 255, may_be_empty=False)
    check_facts(hello.facts)
    _check_capabilities(hello.capabilities)


def _check_capabilities(capabilities: dict[str, Any]) -> None:
    check_json("capabilities", capabilities, depth=4, most=500, longest=2000)


def _check_devices(devices: Iterable[DeviceFact]) -> None:
    seen: set[str] = set()
    for device in devices:
        check_text("stable_id", device.stable_id, _LONGEST_NAME, may_be_empty=False)
        if device.stable_id in seen:
            raise BadMessage(f"device {device.stable_id} is listed twice")
        seen.add(device.stable_id)
        check_count("devices of a node", seen, _MOST_DEVICES)
        if device.kind not in _KINDS or device.health not in _HEALTHS:
            raise BadMessage(f"device {device.stable_id}: {device.kind} and {device.health} are not known here")
        check_text("vendor", device.vendor, 16)
        check_text("name", device.name, _LONGEST_NAME)
        check_number("index", device.index, LARGEST_INT)
        check_number("memory_bytes", device.memory_bytes, LARGEST_BIGINT)
        check_number("memory_used_bytes", device.memory_used_bytes, LARGEST_BIGINT)
        check_real("utilization", device.utilization)
        check_real("temperature_celsius", device.temperature_celsius)
        check_facts(device.facts)
        _check_make(device)


def _check_make(device: DeviceFact) -> None:
    """What a device is made of, and what its sensors say."""
    check_text("traceable_id", device.traceable_id, 250)
    check_text("partition_of", device.partition_of, _LONGEST_NAME)
    check_count("tags of a device", device.tags, _MOST_TAGS)
    for tag in device.tags:
        check_text("tag", tag, 80)
    _shaped("regions", device.regions, list[MemoryRegion], _MOST_REGIONS)
    _shaped("links", device.links, list[Link], _MOST_LINKS)
    _shaped("processes", device.processes, list[DeviceProcess], _MOST_PROCESSES)
    for process in device.processes:
        check_number("memory_bytes of a process", process.get("memory_bytes"), LARGEST_BIGINT)
        if not isinstance(process.get("instance_id", ""), str):
            raise BadMessage("instance_id of a process is no text")
    _shaped("capability", device.capability, Capability, 32)
    check_count("readings of a device", device.telemetry, _MOST_READINGS)
    for name, value in device.telemetry.items():
        check_text("reading", name, 64, may_be_empty=False)
        check_real(name, value, least=-_LARGEST_READING, largest=_LARGEST_READING)


def _shaped(name: str, value: Any, kind: Any, most: int) -> None:
    """It is what the unified device view says, and fits a column."""
    check_count(name, value, most)
    try:
        msgspec.convert(value, kind)
    except msgspec.ValidationError as error:
        raise BadMessage(f"{name}: {error}") from error
    check_json(name, value, depth=3, most=16 * most + 64, longest=_LONGEST_NAME)


def _check_instances(instances: Iterable[InstanceFact]) -> None:
    seen = set()
    for fact in instances:
        if fact.instance_id in seen:
            raise BadMessage(f"instance {fact.instance_id} is listed twice")
        seen.add(fact.instance_id)
        check_count("instances of a node", seen, _MOST_INSTANCES)
        if fact.state not in _STATES:
            raise BadMessage(f"instance {fact.instance_id}: there is no state {fact.state!r}")
        check_number("lease_id", fact.lease_id, LARGEST_BIGINT)
        check_number("fencing_token", fact.fencing_token, LARGEST_BIGINT)
        check_number("port", fact.port, 65535)
        check_number("pid", fact.pid, LARGEST_INT)
        check_number("slots", fact.slots, LARGEST_INT)
        check_number("restarts", fact.restarts, LARGEST_INT)
        check_number("memory_rss_bytes", fact.memory_rss_bytes, LARGEST_BIGINT)
        check_text("reason", fact.reason, 10_000)
        check_moment("process_started_at", fact.process_started_at)
        _check_use(fact)


def _check_use(fact: InstanceFact) -> None:
    """What an instance uses, and how its agent keeps it in bounds."""
    check_number("device_bytes", fact.device_bytes, LARGEST_BIGINT)
    check_number("device_peak_bytes", fact.device_peak_bytes, LARGEST_BIGINT)
    check_number("kv_capacity_bytes", fact.kv_capacity_bytes, LARGEST_BIGINT)
    check_number("weights_bytes", fact.weights_bytes, LARGEST_BIGINT)
    check_number("compute_bytes", fact.compute_bytes, LARGEST_BIGINT)
    check_number("adapters_bytes", fact.adapters_bytes, LARGEST_BIGINT)
    check_number("concurrency_cap", fact.concurrency_cap, LARGEST_INT)
    check_real("load_seconds", fact.load_seconds, least=0.0, largest=_LONGEST_SECONDS)
    check_real("wake_seconds", fact.wake_seconds, least=0.0, largest=_LONGEST_SECONDS)
    check_moment("last_used_at", fact.last_used_at)
    check_text("guard_state", fact.guard_state, 16)
    if fact.started_from not in _STARTS:
        raise BadMessage(f"instance {fact.instance_id}: nothing starts from {fact.started_from!r}")
    if fact.memory_mode not in _MEMORY_MODES:
        raise BadMessage(f"instance {fact.instance_id}: there is no memory mode {fact.memory_mode!r}")


def _check_events(events: list[EventFact]) -> None:
    check_count("events in a report", events, MOST_EVENTS)
    last = 0
    for event in events:
        check_number("sequence of an event", event.sequence, LARGEST_BIGINT, least=last + 1)
        last = event.sequence
        check_text("source", event.source, 16, may_be_empty=False)
        check_text("kind", event.kind, 24, may_be_empty=False)
        check_moment("at", event.at)
        check_text("stable_id", event.stable_id, _LONGEST_NAME)
        check_number("code", event.code, LARGEST_INT, least=-LARGEST_INT)
        check_text("text", event.text, 2000)
        check_facts(event.data, most=_MOST_EVENT_DATA, longest=1000)


def _check_actions(actions: list[ActionFact]) -> None:
    check_count("actions in a report", actions, _MOST_ACTIONS)
    for action in actions:
        if action.state not in _ACTION_STATES:
            raise BadMessage(f"action {action.action_id}: there is no state {action.state!r}")
        check_text("outcome", action.outcome, 1000)


def _check_logs(logs: list[LogFact]) -> None:
    check_count("logs in a report", logs, MOST_LOGS)
    for log in logs:
        check_text("log", log.text, LARGEST_TEXT)


def _check_loads(loads: list[EngineLoadFact]) -> None:
    check_count("instances of a node", loads, _MOST_INSTANCES)
    for load in loads:
        check_number("running", load.running, LARGEST_INT)
        check_number("waiting", load.waiting, LARGEST_INT)
        check_real("kv_used", load.kv_used, least=0.0, largest=1.0)
