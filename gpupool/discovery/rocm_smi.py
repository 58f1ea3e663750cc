"""What `rocm-smi` prints: its JSON, the long text of `-a`, the short table; and the memory sizes of `rocminfo`.

The words of a reading changed from version to version: `Card series`, `Card Series` and `Device Name` say the same.
"""

import re
from collections.abc import Iterator, Mapping
from typing import Final

from gpupool.discovery.amd_smi import LINK_TYPES, farther, unique_id
from gpupool.discovery.base import DeviceProcess, Link
from gpupool.discovery.gpu_catalogue import architecture_of, name_of, plain_id
from gpupool.discovery.reading import Reading
from gpupool.discovery.tolerant import json_in, numa_node, number, pci_address, plain, share, whole, words

_CARD: Final = re.compile(r"^card(\d+)$")
_PID: Final = re.compile(r"^PID(\d+)$")
_LINE: Final = re.compile(r"^GPU\[(\d+)\]\s*:\s*(.*?):\s*(.*)$")
_CLOCK: Final = re.compile(r"\(?(\d+)\s*mhz\)?", re.IGNORECASE)
_PAIR: Final = re.compile(r"^\(Topology\) (Link type|Weight|Hops) between DRM devices (\d+) and (\d+)$", re.IGNORECASE)
_ROW: Final = re.compile(r"^(\d+)\s+\[(0x[0-9a-f]+) :[^\]]*\]\s+(.*)$", re.IGNORECASE)
_TEMPERATURE: Final = re.compile(r"^(-?\d+(?:\.\d+)?)\S*C\b")
_MODES: Final = re.compile(r"(NPS\d), (\w+)")


def readings(text: str) -> list[Reading]:
    """Every GPU of rocm-smi's JSON, in its order of numbers. Empty where there is no JSON in the text."""
    printed = json_in(text)
    if not isinstance(printed, Mapping):
        return []
    cards = {
        int(match[1]): card
        for name, card in printed.items()
        if (match := _CARD.match(str(name))) is not None and isinstance(card, Mapping)
    }
    system = printed.get("system")
    found = {index: _card(index, cards[index]) for index in sorted(cards)}
    if isinstance(system, Mapping):
        _system(found, system)
    return list(found.values())


def readings_of_text(text: str) -> list[Reading]:
    """Every GPU of `rocm-smi -a` without `--json`: lines of `GPU[0] : name: value`."""
    cards: dict[int, dict[str, object]] = {}
    for line in plain(text).splitlines():
        if (match := _LINE.match(line)) is not None:
            card = cards.setdefault(int(match[1]), {})
            name, value = match[2].strip(), match[3].strip()
            if name.endswith("clock level"):  # "sclk clock level: S: (137Mhz)"
                name, value = name.replace("level", "speed"), value.rpartition(" ")[2]
            card.setdefault(name, value)
    driver = re.search(r"^Driver version: (\S+)$", text, re.MULTILINE)
    found = [_card(index, cards[index]) for index in sorted(cards)]
    for reading in found:
        if driver is not None:
            reading.facts["driver"] = driver[1]
    return found


def readings_of_table(text: str) -> list[Reading]:
    """Every GPU of plain `rocm-smi`: two lines each, the second with the name."""
    lines = plain(text).splitlines()
    found: list[Reading] = []
    for line, following in zip(lines, [*lines[1:], ""], strict=False):
        match = _ROW.match(line.strip())
        if match is None:
            continue
        index, device_id, rest = match.groups()
        reading = Reading(vendor="amd", index=int(index), device_id=plain_id(device_id))
        reading.name = following.strip() or name_of(device_id)
        reading.architecture = architecture_of(reading.name, device_id)
        if (temperature := _TEMPERATURE.match(rest)) is not None:
            reading.temperature_celsius = float(temperature[1])
        if (modes := _MODES.search(rest)) is not None:
            reading.memory_partition, reading.compute_partition = modes[1], modes[2].upper()
        powers = re.findall(r"(\d+(?:\.\d+)?)W", rest)
        _measure(reading, "power_watts", number(powers[0]) if powers else None)
        _measure(reading, "power_limit_watts", number(powers[-1]) if len(powers) > 1 else None)
        clocks = _CLOCK.findall(rest)
        _measure(reading, "sm_clock_mhz", number(clocks[0]) if clocks else None)
        _measure(reading, "memory_clock_mhz", number(clocks[1]) if len(clocks) > 1 else None)
        shares = rest.split()
        if len(shares) >= 2 and shares[-1].endswith("%"):
            reading.utilization = share(shares[-1])
        found.append(reading)
    return found


def readings_of_rocminfo(text: str) -> list[Reading]:
    """GPU agents of `rocminfo`: the only tool that tells a GPU's memory inside some virtual machines."""
    return [reading for block in re.split(r"^\*+\s*\nAgent \d+\s*\n\*+\s*$", plain(text), flags=re.MULTILINE)
            if (reading := _agent(block)) is not None]  # fmt: skip


def _agent(block: str) -> Reading | None:
    values: dict[str, str] = {}
    for line in block.splitlines():
        name, colon, value = line.partition(":")
        if colon:
            values.setdefault(name.strip(), value.strip())
    if values.get("Device Type") != "GPU":
        return None
    bdf = whole(values.get("BDFID"))
    uuid = words(values.get("Uuid")) if len(values.get("Uuid", "")) > len("GPU-XX") else ""
    size = re.search(r"Segment:\s+GLOBAL;.*\n\s+Size:\s+(\d+)\(", block)
    reading = Reading(
        vendor="amd",
        name=words(values.get("Marketing Name")),
        architecture=words(values.get("Name")),
        unique_id=uuid,
        runtime_id=uuid,
        compute_units=whole(values.get("Compute Unit")),
        memory_bytes=None if size is None else int(size[1]) * 1024,
    )
    if bdf:
        reading.pci_address = f"0000:{bdf >> 8 & 0xFF:02x}:{bdf >> 3 & 0x1F:02x}.{bdf & 7}"
    return reading


def _card(index: int, card: Mapping[str, object]) -> Reading:
    values = {" ".join(str(name).lower().rstrip(":").split()): value for name, value in card.items()}
    reading = Reading(vendor="amd", index=index)
    reading.pci_address = pci_address(values.get("pci bus"))
    reading.unique_id = unique_id(values.get("unique id"))
    reading.device_id = plain_id(words(values.get("device id")) or words(values.get("gpu id")))
    reading.name = _name(values, reading.device_id)
    reading.architecture = words(values.get("gfx version")) or architecture_of(reading.name, reading.device_id)
    reading.memory_bytes = whole(values.get("vram total memory (b)"))
    reading.memory_used_bytes = whole(values.get("vram total used memory (b)"))
    reading.host_visible_bytes = whole(values.get("gtt total memory (b)"))
    gtt = whole(values.get("gtt total used memory (b)"))
    _measure(reading, "gtt_used_bytes", None if gtt is None else float(gtt))
    reading.utilization = share(values.get("gpu use (%)"))
    _temperatures(reading, values)
    _power(reading, values)
    activity = values.get("gpu memory read/write activity (%)", values.get("gpu memory use (%)"))
    _measure(reading, "memory_utilization", share(activity))
    _measure(reading, "sm_clock_mhz", _clock(values.get("sclk clock speed")))
    _measure(reading, "memory_clock_mhz", _clock(values.get("mclk clock speed")))
    _measure(reading, "fan_share", share(values.get("fan speed (%)")))
    _measure(reading, "pcie_replays", number(values.get("pcie replay count")))
    reading.numa_node = numa_node(values.get("(topology) numa node"))
    reading.compute_partition = words(values.get("compute partition")).upper()
    reading.memory_partition = words(values.get("memory partition")).upper()
    for name in ("vbios version", "serial number", "gpu memory vendor"):
        if (text := words(values.get(name))) and text != "0":
            reading.facts[name.replace(" ", "_")] = text
    return reading


def _name(values: Mapping[str, object], device_id: str) -> str:
    """Some versions give a number where a name belongs."""
    for name in ("device name", "card series", "card model"):
        text = words(values.get(name))
        if text and not text.lower().startswith("0x"):
            return text if text.startswith("AMD") else f"AMD {text}"
    return name_of(device_id)


def _temperatures(reading: Reading, values: Mapping[str, object]) -> None:
    edge = number(values.get("temperature (sensor edge) (c)"))
    junction = number(values.get("temperature (sensor junction) (c)"))
    reading.temperature_celsius = edge if junction is None else junction
    _measure(reading, "edge_celsius", edge)
    memory = values.get("temperature (sensor memory) (c)", values.get("temperature (sensor mem) (c)"))
    _measure(reading, "memory_celsius", number(memory))


def _power(reading: Reading, values: Mapping[str, object]) -> None:
    for name in ("current socket graphics package power (w)", "average graphics package power (w)"):
        if (watts := number(values.get(name))) is not None:
            reading.telemetry["power_watts"] = watts
            break
    _measure(reading, "power_limit_watts", number(values.get("max graphics package power (w)")))


def _clock(value: object) -> float | None:
    match = _CLOCK.search(value) if isinstance(value, str) else None
    return None if match is None else float(match[1])


def _system(found: Mapping[int, Reading], system: Mapping[str, object]) -> None:
    driver = words(system.get("Driver version"))
    links: dict[int, list[Link]] = {}
    pairs = {(m[1].lower(), int(m[2]), int(m[3])): value for name, value in system.items() if (m := _PAIR.match(name))}
    for (what, one, other), value in pairs.items():
        kind = LINK_TYPES.get(words(value).upper()) if what == "link type" else None
        if kind is None or one not in found or other not in found:
            continue
        kind = farther(kind, number(pairs.get(("hops", one, other))))
        links.setdefault(one, []).append(Link(peer=found[other].pci_address, kind=kind))
        links.setdefault(other, []).append(Link(peer=found[one].pci_address, kind=kind))
    for index, reading in found.items():
        if driver:
            reading.facts["driver"] = driver
        reading.links = tuple(link for link in links.get(index, ()) if link.peer)
    processes = tuple(_processes(system))
    if len(found) == 1:  # with several, it does not say which of them a process is on
        next(iter(found.values())).processes = processes


def _processes(system: Mapping[str, object]) -> Iterator[DeviceProcess]:
    """`PID104225: "name, GPUs, VRAM, SDMA, occupancy"`; those that have no GPU open are not on one."""
    for name, value in system.items():
        match = _PID.match(str(name))
        fields = [field.strip() for field in value.split(",")] if isinstance(value, str) else []
        if match is not None and len(fields) >= 3 and (whole(fields[1]) or 0) > 0:
            yield DeviceProcess(pid=int(match[1]), name=fields[0], memory_bytes=whole(fields[2]))


def _measure(reading: Reading, name: str, value: float | None) -> None:
    if value is not None:
        reading.telemetry[name] = value
