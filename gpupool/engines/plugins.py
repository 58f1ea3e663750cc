"""Rooms as entry points: those of this package from a table, those of other packages from their metadata.

Both are loaded by the same code. A plugin that cannot be used is named, with the reason, and takes nothing else
along: whatever it does wrong, the other engines serve.
"""

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from importlib.metadata import Distribution, EntryPoint, distributions
from typing import Final

import structlog

from gpupool.engines.base import ENTRY_POINT_GROUP, Engine

logger = structlog.get_logger(__name__)

PACKAGE: Final = "gatehouse"
"""What the rooms of this package are said to come from."""

BUILT_IN: Final = {
    "vllm": "gpupool.engines.vllm.room:ROOM",
    "vllm-generate": "gpupool.engines.vllm.room:GENERATE",
    "sglang": "gpupool.engines.sglang.room:ROOM",
    "sglang-generate": "gpupool.engines.sglang.room:GENERATE",
    "llamacpp": "gpupool.engines.llamacpp.room:ROOM",
    "ollama": "gpupool.engines.ollama.room:ROOM",
    "tgi": "gpupool.engines.tgi.room:ROOM",
    "tgi-generate": "gpupool.engines.tgi.room:GENERATE",
    "openai": "gpupool.engines.openai.room:ROOM",
    "kserve": "gpupool.engines.kserve.room:ROOM",
}

_NAME: Final = re.compile(r"[a-z0-9][a-z0-9_.-]{0,31}")
_LONGEST_TITLE: Final = 80
_LONGEST_REASON: Final = 300
_NEEDED: Final = {
    "wire": ("health", "models", "parse_models", "metrics", "warm_up", "parse_load", "translate"),
    "launch": ("check_args", "check_artefact", "plan"),
    "control": (
        "sleep", "wake", "is_sleeping", "parse_sleeping", "load_adapter", "unload_adapter", "list_adapters",
        "parse_adapters",
    ),
}  # fmt: skip
"""What the parts of a room are asked for: a plugin made for another release may lack some."""


@dataclass(frozen=True, slots=True)
class Room:
    """An engine, and the package that brought it."""

    engine: Engine
    package: str


@dataclass(frozen=True, slots=True)
class BrokenPlugin:
    """A room that cannot be used; `reason` is a sentence for the operator. `name` is empty where nobody knows it."""

    name: str
    package: str
    reason: str


@dataclass(frozen=True, slots=True)
class Found:
    """All rooms by name, built-in ones first, and what could not be one of them."""

    rooms: dict[str, Room]
    broken: tuple[BrokenPlugin, ...]


class _Refused(Exception):
    """What an entry point names is not a room that we can use; the message is a sentence."""


def load_rooms() -> Found:
    """Every room that this process can use: our own, then those of the packages that are installed. Never raises."""
    rooms: dict[str, Room] = {}
    broken: list[BrokenPlugin] = []
    built_in = [EntryPoint(name, value, ENTRY_POINT_GROUP) for name, value in BUILT_IN.items()]
    for package, entry in [*((PACKAGE, entry) for entry in built_in), *_installed(broken)]:
        try:
            rooms[entry.name] = Room(_load(entry, rooms), package)
        except _Refused as refusal:
            broken.append(BrokenPlugin(_shown(entry.name, 32), package, _shown(str(refusal))))
    for plugin in broken:
        logger.warning("engine_plugin_disabled", engine=plugin.name, package=plugin.package, reason=plugin.reason)
    return Found(rooms, tuple(broken))


def _installed(broken: list[BrokenPlugin]) -> Iterable[tuple[str, EntryPoint]]:
    """Entry points of other packages with the package's name, in the order of these names."""
    found: dict[str, list[EntryPoint]] = {}
    for distribution in _distributions():
        package = ""
        try:
            package = _shown(distribution.name or "", 80)
            # The first on the path is the one that is imported; a later one of the same name is hidden by it.
            if package in found:
                continue
            found[package] = [entry for entry in distribution.entry_points if entry.group == ENTRY_POINT_GROUP]
        except Exception as error:  # noqa: BLE001  # whatever is wrong with a package's metadata is that package's
            broken.append(BrokenPlugin("", package, f"Its metadata cannot be read: {_told(error)}."))
    return [(package, entry) for package in sorted(found) for entry in sorted(found[package], key=lambda e: e.name)]


def _distributions() -> Iterator[Distribution]:
    try:
        yield from distributions()
    except OSError as error:  # a folder of the path that cannot be listed
        logger.warning("engine_plugins_unseen", error=str(error))


def _load(entry: EntryPoint, taken: dict[str, Room]) -> Engine:
    """Raises _Refused."""
    if not _NAME.fullmatch(entry.name):
        raise _Refused("An engine's name has 1 to 32 of a-z, 0-9, dot, dash and underscore.")
    if entry.name in taken:
        raise _Refused(f"The name {entry.name} is taken by {taken[entry.name].package}.")
    try:
        made = entry.load()
    except (Exception, SystemExit) as error:  # its code runs here for the first time, and may do anything
        raise _Refused(f"{entry.value} cannot be imported: {_told(error)}.") from error
    if not isinstance(made, Engine):
        raise _Refused(f"{entry.value} is a {type(made).__name__}, not an Engine.")
    return _checked(made, entry)


def _checked(engine: Engine, entry: EntryPoint) -> Engine:
    """Raises _Refused."""
    if engine.name != entry.name:
        raise _Refused(f"It is registered as {entry.name}, but calls itself {engine.name!r}.")
    if not _is_text(engine.title, most=_LONGEST_TITLE):
        raise _Refused(f"Its title must be a text of 1 to {_LONGEST_TITLE} characters.")
    if not (_is_text(engine.protocol, most=32) and _is_text(engine.versions, least=0, most=80)):
        raise _Refused("Its protocol and versions must be short texts.")
    for name, words in (("capabilities", engine.capabilities), ("translates", engine.translates)):
        if not _are_names(words):
            raise _Refused(f"Its {name} must be a frozenset of short names.")
    if engine.wire is None:
        raise _Refused("It has no wire.")
    for part, names in _NEEDED.items():
        given = getattr(engine, part)
        lacking = [] if given is None else [name for name in names if not callable(getattr(given, name, None))]
        if lacking:
            raise _Refused(f"Its {part} has no {', '.join(lacking)}: it was made for another release.")
    return engine


def _is_text(value: object, *, most: int, least: int = 1) -> bool:
    return isinstance(value, str) and least <= len(value) <= most and value.isprintable()


def _are_names(words: object) -> bool:
    return isinstance(words, frozenset) and all(isinstance(word, str) and _NAME.fullmatch(word) for word in words)


def _told(error: BaseException) -> str:
    said = str(error).rstrip(".")
    return f"{type(error).__name__}: {said}" if said else type(error).__name__


def _shown(text: str, length: int = _LONGEST_REASON) -> str:
    """A text from a stranger, fit for a log, a page and a terminal: one line, bounded, without control characters."""
    printable = "".join(character if character.isprintable() else " " for character in text)
    return printable if len(printable) <= length else printable[: length - 1] + "\N{HORIZONTAL ELLIPSIS}"
