"""What Ollama says of itself: the models it has (`/api/tags`). It has no metrics."""

import msgspec

from gpupool.engines.translation import decode


class _Listed(msgspec.Struct):
    name: str


class _Listing(msgspec.Struct):
    models: list[_Listed]


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
