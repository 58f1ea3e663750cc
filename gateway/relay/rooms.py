"""The engines' rooms, looked up for each request."""

from gpupool.engines.base import Engine
from gpupool.engines.registry import UnknownEngine, get_engine

_found: dict[str, Engine | None] = {}


def find_room(name: str) -> Engine | None:
    """The room of that name; None where this process has none (a plugin that is not installed here)."""
    try:
        return _found[name]
    except KeyError:
        pass
    try:
        room = get_engine(name)
    except UnknownEngine:
        return None  # asked again: what is not there now may be installed and the process be started anew
    _found[name] = room
    return room
