"""The engines that this process knows, by the name that versions and endpoints carry.

Looked for once, when the first is asked for: packages that are installed later are seen by the next process.
"""

import threading
from collections.abc import Mapping
from types import MappingProxyType

from gpupool.engines.base import Engine
from gpupool.engines.plugins import BrokenPlugin, Found, Room, load_rooms


class UnknownEngine(LookupError):
    """No room has this name; the message lists those that exist."""


class Registry:
    """The rooms, loaded when first asked for, by whichever thread is first."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._loading = False
        self._found: Found | None = None

    def found(self) -> Found:
        """Raises RuntimeError when a room asks while it is being imported: its import then fails, and it alone."""
        if self._found is not None:
            return self._found
        with self._lock:
            if self._found is None:
                if self._loading:
                    raise RuntimeError("an engine's room cannot ask for others while it is imported")
                self._loading = True
                try:
                    self._found = load_rooms()
                finally:
                    self._loading = False
            return self._found


_registry = Registry()


def rooms() -> Mapping[str, Room]:
    """Every engine with the package that brought it, by name."""
    return MappingProxyType(_registry.found().rooms)


def engines() -> Mapping[str, Engine]:
    """Every engine, by name."""
    return {name: room.engine for name, room in _registry.found().rooms.items()}


def broken_plugins() -> tuple[BrokenPlugin, ...]:
    """What was found and cannot be used."""
    return _registry.found().broken


def get_engine(name: str) -> Engine:
    """The engine called `name`. Raises UnknownEngine."""
    known = _registry.found().rooms
    try:
        return known[name].engine
    except KeyError:
        raise UnknownEngine(f"There is no engine {name!r}; known are {', '.join(known)}.") from None
