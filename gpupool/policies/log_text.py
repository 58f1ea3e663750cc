"""The end of a log as people may see it: its last lines, without control characters and without secrets. Pure.

A log is what a program wrote: it may hold anything, and engines are known to print their keys.
"""

import re
from dataclasses import dataclass
from typing import Final

MOST_LINES: Final = 200
LONGEST_LINE: Final = 400
LARGEST_TEXT: Final = 48 * 1024
"""Characters of one log: several of them fit into one report."""

HIDDEN: Final = "[hidden]"

_ESCAPES: Final = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)|[@-Z\\-_])")
# Control characters but the tab, and those that turn the direction of what follows: a line could show another text.
_CONTROL: Final = re.compile("[\x00-\x08\x0a-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069\ufeff]")
_LINES: Final = re.compile(r"\r\n|\n")

_NAMES: Final = (
    r"(?:[\w-]*(?:api|access|auth|secret|private|encryption|engine)[_-]?key|[\w-]*token|[\w-]*secret|[\w-]*passw(?:or)?d|"
    r"authorization|credentials?)"
)
_SECRETS: Final = (
    # A header's scheme and what follows it.
    re.compile(r"(?i)\b((?:bearer|basic)\s+)[A-Za-z0-9._~+/=-]{6,}"),
    # NAME=value, NAME: value, "name": "value", --name value.
    re.compile(
        rf"(?i)((?:--|\b){_NAMES}[\"']?\s*(?:[=:]\s*|\s+(?=[^\s=:]))[\"']?)(?!\[hidden\]|None\b|null\b)[^\s\"',;)}}]{{6,}}"
    ),
    # user:password@ of an address.
    re.compile(r"(\b[a-z][a-z0-9+.-]*://[^/\s:@]*:)[^/\s@]+(?=@)"),
)
_SHAPES: Final = re.compile(
    r"\b(?:sk-[A-Za-z0-9_-]{12,}|hf_[A-Za-z0-9]{16,}|gh[pousr]_[A-Za-z0-9]{20,}|github_pat_\w{20,}|glpat-[\w-]{16,}"
    r"|AKIA[0-9A-Z]{16}|xox[abprs]-[\w-]{10,}|eyJ[\w-]{8,}\.[\w-]{8,}\.[\w-]*)"
)
_PLAIN_NUMBER: Final = re.compile(r"[\d.,]+\Z")


@dataclass(frozen=True, slots=True)
class Tail:
    """`cut`: something stands before it, or lines were shortened."""

    text: str
    cut: bool


def last_lines(text: str, *, cut: bool = False) -> Tail:
    """The last MOST_LINES lines of `text`, each of at most LONGEST_LINE characters, of LARGEST_TEXT in all."""
    lines = _LINES.split(text)
    while lines and not lines[-1].strip():
        lines.pop()
    cut = cut or len(lines) > MOST_LINES
    kept: list[str] = []
    size = 0
    for line in reversed(lines[-MOST_LINES:]):
        clean = clean_line(line)
        if len(clean) > LONGEST_LINE:
            clean, cut = clean[: LONGEST_LINE - 1] + "…", True
        size += len(clean) + 1
        if size > LARGEST_TEXT:
            cut = True
            break
        kept.append(clean)
    return Tail("\n".join(reversed(kept)), cut)


def clean_line(line: str) -> str:
    """Without escapes, control characters and secrets; of a line that wrote over itself, what it showed last."""
    line = _ESCAPES.sub("", line.rstrip("\r"))
    line = line.rsplit("\r", 1)[-1]
    return hide_secrets(_CONTROL.sub("", line).rstrip())


def hide_secrets(line: str) -> str:
    """With HIDDEN in place of what looks like a key, a token or a password. It may hide more than it had to."""
    for pattern in _SECRETS:
        line = pattern.sub(_hidden, line)
    return _SHAPES.sub(HIDDEN, line)


def _hidden(found: "re.Match[str]") -> str:
    value = found.group(0)[len(found.group(1)) :]
    return found.group(0) if _PLAIN_NUMBER.match(value) else found.group(1) + HIDDEN
