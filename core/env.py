"""Typed process settings: a frozen dataclass read once from the environment and a file.

A field declares its variable, unit and meaning by `setting(...)`; `read` fills the dataclass and
names every wrong value at once, so that a bad setting stops the start with a sentence.
"""

import dataclasses
import json
import types
import typing
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import urlsplit

T = TypeVar("T")

_TRUE = frozenset({"1", "true", "yes", "on"})
_FALSE = frozenset({"0", "false", "no", "off"})


class SettingsError(Exception):
    """One or more settings are wrong; the message says which and what would be right."""


def setting(
    variable: str,
    help: str,
    *,
    default: Any = dataclasses.MISSING,
    minimum: float | None = None,
    maximum: float | None = None,
    secret: bool = False,
    check: Callable[[str], str] | None = None,
) -> Any:
    """A dataclass field that is read from the environment variable `variable`.

    `check`, of a text: what is wrong with a value, "" for nothing.
    """
    metadata = {
        "variable": variable, "help": help, "minimum": minimum, "maximum": maximum, "secret": secret, "check": check,
    }  # fmt: skip
    if default is dataclasses.MISSING:
        return dataclasses.field(metadata=metadata)
    return dataclasses.field(default=default, metadata=metadata)


def read(cls: type[T], environ: Mapping[str, str], file_values: Mapping[str, str] | None = None) -> T:
    """Build `cls` from variables; the environment wins over `file_values`, which win over defaults.

    Raises SettingsError naming every variable that is missing or wrong.
    """
    values: dict[str, Any] = {}
    problems: list[str] = []
    hints = typing.get_type_hints(cls)
    for field in dataclasses.fields(cls):  # type: ignore[arg-type]  # cls is a dataclass by contract
        variable: str = field.metadata["variable"]
        raw = environ.get(variable) or (file_values or {}).get(variable)
        if raw is None or raw == "":
            if field.default is dataclasses.MISSING:
                problems.append(f"{variable} is not set: {field.metadata['help']}")
            continue
        try:
            values[field.name] = _convert(raw, hints[field.name], field.metadata)
        except ValueError as error:
            hidden = field.metadata["secret"] or "@" in raw  # an address may hold a password where none belongs
            shown = "(hidden)" if hidden else repr(raw)
            problems.append(f"{variable}={shown} {error}")
    if problems:
        raise SettingsError("; ".join(problems))
    return cls(**values)


def read_file(path: Path) -> dict[str, str]:
    """Variables that a running installation wrote down (a JSON object of strings); empty when absent.

    Raises SettingsError when the file is there but is not such an object.
    """
    try:
        loaded = json.loads(path.read_text())
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        raise SettingsError(f"{path} cannot be read as settings: {error}") from error
    if not isinstance(loaded, dict) or not all(isinstance(v, str) for v in loaded.values()):
        raise SettingsError(f"{path} must be a JSON object of strings")
    return loaded


def _convert(raw: str, hint: Any, metadata: Mapping[str, Any]) -> Any:
    if isinstance(hint, types.UnionType):
        hint = next(member for member in typing.get_args(hint) if member is not type(None))
    if hint is bool:
        lowered = raw.strip().lower()
        if lowered in _TRUE:
            return True
        if lowered in _FALSE:
            return False
        raise ValueError("is neither true nor false")
    if hint in (int, float):
        try:
            number = hint(raw)
        except ValueError:
            raise ValueError("is not a number" if hint is float else "is not a whole number") from None
        if metadata["minimum"] is not None and number < metadata["minimum"]:
            raise ValueError(f"is below {metadata['minimum']}")
        if metadata["maximum"] is not None and number > metadata["maximum"]:
            raise ValueError(f"is above {metadata['maximum']}")
        return number
    if hint is Path:
        return Path(raw).expanduser()
    if typing.get_origin(hint) is tuple:
        return tuple(part.strip() for part in raw.split(",") if part.strip())
    if metadata["check"] is not None and (fault := metadata["check"](raw)):
        raise ValueError(fault)
    return raw


def web_address_fault(url: str) -> str:
    """Why that is no address that links can begin with; "" where it is one."""
    try:
        parts = urlsplit(url)
        host, _ = parts.hostname, parts.port  # a port that is none is only noticed as it is asked for
    except ValueError:
        host = None
    if not host or parts.scheme not in ("http", "https") or not url.isascii() or not url.isprintable() or " " in url:
        return "is no address such as https://gatehouse.example.com"
    if "@" in parts.netloc:
        return "holds a user or a password, which everybody would read in links"
    return "goes on behind its host with a ? or #, where links go on" if "?" in url or "#" in url else ""
