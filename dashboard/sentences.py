"""Sentences with places for values, found again in what services and policies said in English."""

import re
from collections.abc import Iterable, Mapping
from typing import Final

PLACE: Final = re.compile(r"%\((\w+)\)s")


def patterns_of(sentences: Iterable[str]) -> "dict[re.Pattern[str], str]":
    """What each sentence looks like with values in its places.

    Those that say most come first: others may have room for the same words in their places.
    """
    made = {}
    for sentence in sorted(sentences, key=lambda one: len(PLACE.sub("", one)), reverse=True):
        parts = PLACE.split(sentence)
        text = "".join(re.escape(part) if n % 2 == 0 else f"(?P<{part}>.+?)" for n, part in enumerate(parts))
        made[re.compile(text, re.DOTALL)] = sentence
    return made


def unquoted(values: Mapping[str, str]) -> dict[str, str]:
    """Services quote names as Python does."""
    return {
        name: value[1:-1] if value[:1] == value[-1:] == "'" and len(value) > 1 else value
        for name, value in values.items()
    }
