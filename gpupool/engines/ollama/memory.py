"""What Ollama says of the models that it has loaded (`/api/ps`)."""

from dataclasses import dataclass

import msgspec

from gpupool.engines.translation import decode


class _Running(msgspec.Struct):
    name: str
    size: int | None = None
    size_vram: int | None = None
    context_length: int | None = None


class _Listing(msgspec.Struct):
    models: list[_Running]


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """One model in memory; None where that version does not say."""

    name: str
    memory_bytes: int | None  # weights, cache and scratch, on all devices
    device_bytes: int | None  # of that, on GPUs
    context_tokens: int | None

    @property
    def host_bytes(self) -> int | None:
        """What did not fit onto the GPUs."""
        if self.memory_bytes is None or self.device_bytes is None:
            return None
        return max(0, self.memory_bytes - self.device_bytes)


def parse_loaded(body: bytes) -> tuple[LoadedModel, ...]:
    """Raises ValueError for an answer of another shape."""
    try:
        running = decode(body, _Listing).models
    except ValueError as error:
        raise ValueError(f"This is not a list of loaded models: {error}.") from error
    return tuple(LoadedModel(model.name, model.size, model.size_vram, model.context_length) for model in running)
