"""Which device nodes belong to a device: of CDI specifications where one names it, else as the drivers' files say."""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from gpupool.engines.base import GivenDevice

_NVIDIA_COMMON: Final = ("nvidiactl", "nvidia-uvm", "nvidia-uvm-tools")
_AMD_COMMON: Final = ("kfd",)


class NodesUnknown(Exception):
    """A device cannot be shown to a sandbox; the message is a sentence for the operator."""


def device_nodes(
    devices: Sequence[GivenDevice], *, specs: Iterable[Mapping[str, Any]] = (), root: Path = Path("/")
) -> tuple[str, ...]:
    """The nodes of exactly these devices, and those that all of a vendor's share. Raises NodesUnknown."""
    found: dict[str, None] = {}
    known = list(specs)
    for device in devices:
        if device.kind != "gpu":
            continue
        nodes = _of_cdi(device, known) or _of_driver(device, root)
        if not nodes:
            raise NodesUnknown(_why_unknown(device))
        found.update(dict.fromkeys(nodes))
    return tuple(found)


def _of_cdi(device: GivenDevice, specs: Iterable[Mapping[str, Any]]) -> tuple[str, ...]:
    names = {device.stable_id, device.uuid or device.stable_id}
    for spec in specs:
        for entry in _list(spec.get("devices")):
            if isinstance(entry, Mapping) and entry.get("name") in names:
                return (*_edited(spec.get("containerEdits")), *_edited(entry.get("containerEdits")))
    return ()


def _edited(edits: Any) -> tuple[str, ...]:
    nodes = _list(edits.get("deviceNodes")) if isinstance(edits, Mapping) else []
    paths = [node.get("hostPath") or node.get("path") for node in nodes if isinstance(node, Mapping)]
    return tuple(path for path in paths if isinstance(path, str) and path.startswith("/dev/"))


def _of_driver(device: GivenDevice, root: Path) -> tuple[str, ...]:
    if device.vendor == "nvidia":
        minor = _nvidia_minor(device.uuid or device.stable_id, root)
        names = () if minor is None else (*_NVIDIA_COMMON, f"nvidia{minor}")
    else:
        folder = root / "sys/bus/pci/devices" / device.pci_address / "drm"
        render = sorted(path.name for path in folder.glob("renderD*")) if device.pci_address else []
        common = _AMD_COMMON if device.vendor == "amd" else ()
        names = (*common, *(f"dri/{name}" for name in render)) if render else ()
    return tuple(f"/dev/{name}" for name in names if (root / "dev" / name).exists())


def _nvidia_minor(uuid: str, root: Path) -> int | None:
    """Of /dev/nvidia0 and so on: it is not the driver's index."""
    for file in (root / "proc/driver/nvidia/gpus").glob("*/information"):
        values = dict(_pairs(file))
        if values.get("GPU UUID") == uuid and values.get("Device Minor", "").isdigit():
            return int(values["Device Minor"])
    return None


def _pairs(file: Path) -> Iterable[tuple[str, str]]:
    try:
        text = file.read_text(errors="replace")
    except OSError:
        return
    for line in text.splitlines():
        name, _, value = line.partition(":")
        yield name.strip(), value.strip()


def _why_unknown(device: GivenDevice) -> str:
    if device.stable_id.startswith("MIG-"):
        return (
            f"{device.stable_id} is a part of a GPU, whose device nodes only a CDI specification tells: make one with "
            "`nvidia-ctk cdi generate --device-name-strategy=uuid`."
        )
    return f"The device nodes of {device.stable_id} are not known, so that no sandbox can show it."


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []
