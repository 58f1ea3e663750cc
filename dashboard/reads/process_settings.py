"""The settings of this process, as the console tells them: read-only, for they come from its environment."""

import dataclasses
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from django.conf import settings
from django.utils.translation import gettext

from core.env import SettingsError, read_file

MASK: Final = "•••"
# Up to the last @ before a space: a password may hold a / or an @ that nobody has written as %2F or %40.
_IN_USER: Final = re.compile(r"(://[^\s:/?#@]*:)\S*@")
_IN_QUERY: Final = re.compile(
    r"([?&;](?:[\w-]*(?:password|passwd|secret|token|api_?key|signature))=)[^\s&;#]+", re.IGNORECASE
)


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
        help=gettext(field.metadata["help"]),
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
    """Text with the passwords of the addresses in it masked, those in their queries too; anything else as it is."""
    if "://" not in text:
        return text
    return _IN_QUERY.sub(rf"\1{MASK}", _IN_USER.sub(rf"\1{MASK}@", text))
