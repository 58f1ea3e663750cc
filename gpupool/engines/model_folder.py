"""Models that are folders (Hugging Face's layout), named by the `config.json` in them, which is what is on a node."""

from pathlib import Path

from gpupool.engines.base import ArtefactRefused, EngineArgumentsRefused, GivenDevice, LaunchRequest

CONFIG = "config.json"
HEAD_BYTES = 64
_MOST = 0.95  # of a device: its driver and the engine's own start need some


def model_folder(path: Path, engine: str) -> Path:
    """The folder whose `config.json` the artefact is. Raises EngineArgumentsRefused."""
    if path.name != CONFIG:
        raise EngineArgumentsRefused(f"{engine} loads folders: name the {CONFIG} in the model's folder.")
    return path.parent


def check_config(head: bytes, size_bytes: int, engine: str) -> None:
    """Raises ArtefactRefused unless it begins as a JSON object does."""
    if not head.lstrip().startswith(b"{") or size_bytes < 2:
        raise ArtefactRefused(f"This is not the {CONFIG} of a model's folder, by which {engine} takes a model.")


def gpus(request: LaunchRequest) -> list[GivenDevice]:
    """The lease's GPUs."""
    return [device for device in request.devices if device.kind == "gpu"]


def memory_fraction(request: LaunchRequest, engine: str) -> float | None:
    """The lease's share of each of its GPUs, 0 to 0.95, rounded down; None when it has none.

    Raises EngineArgumentsRefused where a GPU's size is not known: the engine would take all of it.
    """
    shares: list[float] = []
    for device in gpus(request):
        if not device.memory_bytes:
            raise EngineArgumentsRefused(
                f"The memory of {device.stable_id} is not known, so {engine} cannot be told its share of it."
            )
        shares.append(request.memory_bytes / device.memory_bytes)
    return int(min(*shares, _MOST) * 1000) / 1000 if shares else None
