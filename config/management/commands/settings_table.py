"""`manage.py settings_table`: writes docs/settings.md from the typed settings."""

import dataclasses
import typing
from argparse import ArgumentParser
from pathlib import Path
from typing import Any

from django.core.management.base import BaseCommand, CommandError

from config.environment import BASE_DIR, Environment

_HEAD = """# Settings

Made from `config/environment.py` by `make settings`; do not edit.

A setting is an environment variable. For commands on the machine where `make up` runs, the addresses that it chose
stand in `var/run/environment.json`, which the environment overrides. A wrong value stops the start with a sentence.

| variable | kind | default | meaning |
| --- | --- | --- | --- |
"""


def settings_table() -> str:
    """The page as Markdown, in the order of the dataclass."""
    hints = typing.get_type_hints(Environment)
    rows = []
    for field in dataclasses.fields(Environment):
        metadata = field.metadata
        bounds = [f"at least {metadata['minimum']}"] if metadata["minimum"] is not None else []
        bounds += [f"at most {metadata['maximum']}"] if metadata["maximum"] is not None else []
        kind = ", ".join([_kind(hints[field.name]), *bounds, *(["secret"] if metadata["secret"] else [])])
        rows.append(f"| `{metadata['variable']}` | {kind} | {_default(field.default)} | {metadata['help']} |")
    return _HEAD + "\n".join(rows) + "\n"


def _kind(hint: Any) -> str:
    members = [member for member in typing.get_args(hint) if member is not type(None)]
    if typing.get_origin(hint) is tuple:
        return "list, comma-separated"
    plain = members[0] if members else hint
    return {bool: "yes or no", int: "whole number", float: "number", str: "text", Path: "path"}[plain]


def _default(value: Any) -> str:
    if value is None or value == ():
        return "empty"
    if isinstance(value, Path):
        return f"`{value.relative_to(BASE_DIR)}`"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, tuple):
        return f"`{','.join(value)}`"
    return f"`{value}`"


class Command(BaseCommand):
    help = "Writes docs/settings.md; with --check only says whether it is up to date."
    requires_system_checks = []

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("--check", action="store_true", help="change nothing; exit 1 when the page is old")

    def handle(self, *args: Any, **options: Any) -> None:
        page = BASE_DIR / "docs" / "settings.md"
        wanted = settings_table()
        if options["check"]:
            if not page.exists() or page.read_text() != wanted:
                raise CommandError("docs/settings.md is not what config/environment.py says: run `make settings`")
            return
        page.parent.mkdir(exist_ok=True)
        page.write_text(wanted)
