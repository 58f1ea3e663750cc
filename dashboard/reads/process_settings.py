"""The settings of this process, as the console tells them: read-only, for they come from its environment."""

import dataclasses
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

from django.conf import settings

from core.env import SettingsError, read_file

MASK: Final = "•••"


@dataclass(frozen=True, slots=True)
class SettingRow:
    """`source`: environment, file (that `up` wrote) or default. Values that are secret are masked, and so are
    passwords in addresses.
    """

    variable: str
    help: str
    value: str
    default: str
    source: str
    secret: bool

    @property
    def changed(self) -> bool:
        """It is not the default."""
        return self.source != "default"


def read_settings() -> list[SettingRow]:
    """In the order in which they are documented."""
    typed: Any = settings.GATEHOUSE
    try:
        written = read_file(typed.runtime_file)
    except SettingsError:
        written = {}
    return [_row(field, getattr(typed, field.name), written) for field in dataclasses.fields(typed)]


def _row(field: "dataclasses.Field[Any]", value: Any, written: dict[str, str]) -> SettingRow:
    variable: str = field.metadata["variable"]
    secret: bool = field.metadata["secret"]
    source = "environment" if os.environ.get(variable) else "file" if written.get(variable) else "default"
    return SettingRow(
        variable=variable,
        help=field.metadata["help"],
        value=(MASK if value else "") if secret else _said(value),
        default="" if field.default is dataclasses.MISSING or secret else _said(field.default),
        source=source,
        secret=secret,
    )


def _said(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, Path):
        return str(value)
    if isinstance(value, Sequence) and not isinstance(value, str):
        return ", ".join(map(_said, value))
    return without_password(str(value))


def without_password(text: str) -> str:
    """An address with its password masked; anything else as it is."""
    if "://" not in text or "@" not in text:
        return text
    try:
        parts = urlsplit(text)
        _user, _, host = parts.netloc.rpartition("@")
    except ValueError:
        return MASK
    name = parts.username or ""
    return parts._replace(netloc=f"{name}:{MASK}@{host}" if parts.password else f"{name}@{host}").geturl()
