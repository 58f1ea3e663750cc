"""What Ollama says of itself: models it has (`/api/tags`), and those in memory (`/api/ps`). It has no metrics."""

from dataclasses import dataclass

import msgspec

from gpupool.engines.translation import decode


class _Listed(msgspec.Struct):
    name: str
    size: int = 0
    size_vram: int = 0
    expires_at: str = ""


class _Listing(msgspec.Struct):
    models: list[_Listed]


@dataclass(frozen=True, slots=True)
class Resident:
    """A model in memory. Sizes in bytes; `expires_at` (RFC 3339) is when it is unloaded if nobody asks it."""

    name: str
    size_bytes: int
    gpu_bytes: int
    expires_at: str


def parse_names(body: bytes) -> tuple[str, ...]:
    """Names from `/api/tags`, each also without `:latest`, as requests may say it. Raises ValueError."""
    names: list[str] = []
    try:
        listed = decode(body, _Listing).models
    except ValueError as error:
        raise ValueError(f"This is not a list of models: {error}.") from error
    for model in listed:
        names.append(model.name)
        if model.name.endswith(":latest"):
            names.append(model.name.removesuffix(":latest"))
    return tuple(names)


def parse_resident(body: bytes) -> tuple[Resident, ...]:
    """Models in memory, from `/api/ps`. Raises ValueError for an answer of another shape."""
    return tuple(
        Resident(model.name, model.size, model.size_vram, model.expires_at) for model in decode(body, _Listing).models
    )
