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

_MOST_SEARCHED: Final = 2000
"""Characters of a line that are searched for secrets: what it takes grows with the square of the length."""

_LONGEST_SECRET: Final = 1000
"""Half of one does not look like one: so much is left out where a line is cut."""

HIDDEN: Final = "[hidden]"
_MARK: Final = "\x00"
"""Stands for it meanwhile: no pattern takes it for a secret."""

_MARKS: Final = re.compile("\x00+")

_ESCAPES: Final = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)|[@-Z\\-_])")
# Control characters but the tab, and those that turn the direction of what follows, or cannot be seen: a line could
# show another text.
_CONTROL: Final = re.compile("[\x00-\x08\x0a-\x1f\x7f-\x9f\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff]")
_LINES: Final = re.compile(r"\r\n|\n")
_KEY_BEGINS: Final = re.compile(r"-----BEGIN [A-Z0-9 ]{0,40}PRIVATE KEY")
_KEY_ENDS: Final = re.compile(r"-----END [A-Z0-9 ]{0,40}PRIVATE KEY")
_KEY_LINE: Final = re.compile(r"[\w\s:,|>+/=.-]{0,120}\Z")
_MOST_KEY_LINES: Final = 200

_NAMES: Final = (
    r"(?:(?:api|access|auth|secret|private|encryption|engine|account|signing)[_ -]?key|token|secret|passw(?:or)?d|"
    r"passphrase|pwd|authorization|credentials?|signature)"
)
_VALUE: Final = r"""(?:"[^"\x00]{3,}"?|'[^'\x00]{3,}'?|[^\s"',;)}\]\x00]{4,})"""
_SECRETS: Final = (
    # A header's scheme and what follows it.
    re.compile(r"(?i)\b((?:bearer|basic)\s+)[A-Za-z0-9._~+/=-]{4,}"),
    # Headers that hold nothing else, to their end.
    re.compile(
        r"(?i)(\b(?:set-cookie|cookie|(?:proxy-)?authorization)[\"']?\s*[:=,]\s*[\[(]*(?:b(?=[\"']))?[\"']*)[^\"'\]\x00]{4,}"
    ),
    # NAME=value, NAME: value, "name": "value", 'name': ['value'], (b'name', b'value'), --name value.
    re.compile(
        rf"(?i)({_NAMES}[\"']?(?:\s*[=:,]\s*|\s+(?=[^\s=:]))[b\[(]*(?=[\"'])|{_NAMES}[\"']?(?:\s*[=:]\s*|\s+(?=[^\s=:]))\[?)"
        rf"(?!None\b|null\b){_VALUE}"
    ),
    # user:password@ of an address, and a token that stands for both.
    re.compile(r"(://[^/\s:@]*:)[^/\s]+(?=@)"),
    re.compile(r"(://)[^/\s:@]{8,}(?=@)"),
)
_SHAPES: Final = re.compile(
    r"\b(?:sk-[A-Za-z0-9_-]{12,}|hf_[A-Za-z0-9]{16,}|gh[pousr]_[A-Za-z0-9]{20,}|github_pat_\w{20,}|glpat-[\w-]{16,}"
    r"|AKIA[0-9A-Z]{16}|xox[abprs]-[\w-]{10,}|eyJ[\w-]{8,}\.[\w-]{8,}\.[\w-]*)"
)
_OF_TOKEN: Final = re.compile(r"(?i)token[\"']?[\s:=]*\Z")
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
    for line in reversed(_without_keys(lines)[-MOST_LINES:]):
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
    """Without escapes, control characters and secrets; of a line that wrote over itself, what it showed last.

    Of an endless one the beginning, without the word that the cut went through: it could be half a secret.
    """
    line = _ESCAPES.sub("", line.rstrip("\r"))
    line = _CONTROL.sub("", line.rsplit("\r", 1)[-1]).rstrip()
    if len(line) > _MOST_SEARCHED:
        line = _up_to_a_word(line[:_MOST_SEARCHED]) + "…"
    return hide_secrets(line)


def _up_to_a_word(line: str) -> str:
    """Without its last word, unless that is longer than any secret: then without its end."""
    word = len(line) - 1 - max(line.rfind(" "), line.rfind("\t"))
    return line[: len(line) - min(word, _LONGEST_SECRET)]


def hide_secrets(line: str) -> str:
    """With HIDDEN in place of what looks like a key, a token or a password. It may hide more than it had to."""
    line = line.replace("\x00", "").replace(HIDDEN, _MARK)  # it may have been here before
    for pattern in _SECRETS:
        line = pattern.sub(_hidden, line)
    return _MARKS.sub(HIDDEN, _SHAPES.sub(_MARK, line))


def _without_keys(lines: list[str]) -> list[str]:
    """With HIDDEN in place of each private key, which goes over many lines; of one that is cut off before, its rest."""
    kept: list[str] = []
    inside = 0
    for line in lines:
        if inside:
            inside = 0 if _KEY_ENDS.search(line) or inside >= _MOST_KEY_LINES else inside + 1
        elif _KEY_BEGINS.search(line):
            kept.append(HIDDEN)
            inside = 0 if _KEY_ENDS.search(line) else 1
        elif _KEY_ENDS.search(line):
            while kept and len(kept[-1]) > 20 and " " not in kept[-1].strip() and _KEY_LINE.match(kept[-1]):
                kept.pop()
            kept.append(HIDDEN)
        else:
            kept.append(line)
    return kept


def _hidden(found: "re.Match[str]") -> str:
    """Counts of tokens are no secrets."""
    before = found.group(1)
    value = found.group(0)[len(before) :]
    if _PLAIN_NUMBER.match(value) and _OF_TOKEN.search(before):
        return found.group(0)
    quote = value[0] if value[0] in "\"'" else ""
    return before + quote + _MARK + (quote if value[-1] == quote else "")
