"""Sentences with places for values, found again in what services and policies said in English.

Pages say them in the reader's language (dashboard.reasons, dashboard.refusals), and so do mails
(tenants.policies.notice_texts).
"""

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from operator import itemgetter
from typing import Final

PLACE: Final = re.compile(r"%\((\w+)\)s")
LONGEST: Final = 1_200
"""Characters. What is longer is shown as it was said: engines' and other people's words lie within it."""

_START: Final = 2
"""Characters of a beginning by which sentences are sorted."""

DEEPEST: Final = 4
"""Sentences within sentences; what lies deeper is shown as it was said."""

NEXT: Final = re.compile(r"(?<=[.?]) (?=[A-Z])")
"""Between a sentence and the one that follows it."""

_WORDS: Final = frozenset(
    {"answer", "code", "count", "deed", "name", "node", "pid", "remedy", "seconds", "share", "size", "state", "status"}
)
"""Places for a word or a number: no sentence goes on within them."""

_NAMES: Final = frozenset({"command", "device", "engine", "host", "index", "path", "tensor", "vendor"})
"""Places for what something is called: what a sentence says after a colon is not that."""


def gettext_noop(text: str) -> str:
    """Marks a text that pages translate. Django's own asks for the settings; policies and settings know none."""
    return text


@dataclass(frozen=True, slots=True)
class Sentence:
    """One with values in its places: `literals` stand around them, one more than there are `names`."""

    text: str
    literals: tuple[str, ...]
    names: tuple[str, ...]

    def values_in(self, said: str) -> dict[str, str] | None:
        """What stands in its places in what was said; None where that is another sentence.

        Each place takes as little as it can, and something. In time that grows with the text alone, whatever is in
        it, which matching by a regular expression of several places does not.
        """
        first, last = self.literals[0], self.literals[-1]
        if not self.names:
            return {} if said == first else None
        end = len(said) - len(last)
        if not said.startswith(first) or not said.endswith(last):
            return None
        found, place = {}, len(first)
        for name, literal in zip(self.names[:-1], self.literals[1:-1], strict=True):
            after = said.find(literal, place + 1, end)
            if after < 0:
                return None
            found[name] = said[place:after]
            place = after + len(literal)
        if place >= end:
            return None
        return found | {self.names[-1]: said[place:end]}


def sentences_of(texts: Iterable[str]) -> tuple[Sentence, ...]:
    """Those that say most come first: others may have room for the same words in their places."""
    return tuple(
        Sentence(text, tuple(PLACE.split(text)[::2]), tuple(PLACE.findall(text)))
        for text in sorted(texts, key=lambda one: len(PLACE.sub("", one)), reverse=True)
    )


class Sentences:
    """Many, of which those that a text may be are found by how it begins."""

    def __init__(self, texts: Iterable[str]) -> None:
        self._starting: dict[str, list[tuple[int, Sentence]]] = {}
        for rank, sentence in enumerate(sentences_of(texts)):
            first = sentence.literals[0]
            start = first[:_START] if len(first) >= _START else ""
            self._starting.setdefault(start, []).append((rank, sentence))

    def like(self, said: str) -> list[Sentence]:
        """Those that may begin so, in the order of `sentences_of`."""
        found = self._starting.get("", []) + (self._starting.get(said[:_START], []) if len(said) >= _START else [])
        return [sentence for _rank, sentence in sorted(found, key=itemgetter(0))]

    def found(
        self, said: str, *, fits: Callable[[str, str], bool] = lambda _name, _value: True
    ) -> tuple[Sentence, dict[str, str]] | None:
        """The first of them that it is, with what stands in its places; `fits`: whether a place may hold a value."""
        for sentence in self.like(said):
            values = sentence.values_in(said)
            if values is not None and all(fits(name, value) for name, value in values.items()):
                return sentence, values
        return None


def fits(name: str, value: str) -> bool:
    """Whether the value of a place is no more than what stands there: no other sentence, and not its beginning."""
    if name in _NAMES and ": " in value:
        return False
    return name not in _WORDS or not NEXT.search(value)


def unquoted(values: Mapping[str, str]) -> dict[str, str]:
    """Services quote names as Python does."""
    return {
        name: value[1:-1] if value[:1] == value[-1:] == "'" and len(value) > 1 else value
        for name, value in values.items()
    }
