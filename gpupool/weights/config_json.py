"""The `config.json` of a model's folder, read with a bound."""

import json
from pathlib import Path
from typing import Any, Final

_MOST_BYTES: Final = 4 << 20


def read_config(path: Path) -> dict[str, Any]:
    """Its members. Raises ValueError, whose message can follow the file's name, and OSError."""
    with open(path, "rb") as file:
        text = file.read(_MOST_BYTES + 1)
    if len(text) > _MOST_BYTES:
        raise ValueError(f"is larger than {_MOST_BYTES} bytes")
    try:
        config = json.loads(text)  # Python's own reader takes Infinity, which some models' files have
    except (ValueError, RecursionError) as error:
        raise ValueError("is not JSON") from error
    if not isinstance(config, dict):
        raise ValueError("is not JSON of an object")
    return config
