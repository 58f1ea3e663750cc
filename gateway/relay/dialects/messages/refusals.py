"""Refusals in words that name the member at fault as an Anthropic client wrote it: messages.0.content.1.text."""

import re
from typing import Final, NoReturn, TypeVar

import msgspec

from core.errors import InvalidRequest

T = TypeVar("T")

MOST_PIECES: Final = 100_000
"""Messages and blocks of a request, and its tools: Anthropic's own bound on messages. Each takes Python steps."""

_WORDS: Final = {
    "str": "a string",
    "int": "an integer",
    "float": "a number",
    "bool": "true or false",
    "object": "an object",
    "array": "an array",
    "null": "null",
}
_place = re.compile(r" - at `\$(.*)`$")
_missing_field = re.compile(r"missing required field `(\w+)`")
_expected = re.compile(r"Expected `([^`]+)`")
_element = re.compile(r"\[(\d+|\.\.\.)\]")


def refuse(at: str, problem: str) -> NoReturn:
    """Raise InvalidRequest about the member at this place."""
    raise InvalidRequest(f"Invalid value for '{at}': {problem}.", param=at)


def refuse_many(count: int, at: str) -> None:
    """Raise InvalidRequest about a member with more pieces than are looked at."""
    if count > MOST_PIECES:
        refuse(at, f"expected at most {MOST_PIECES} pieces")


def missing(at: str) -> NoReturn:
    """Raise InvalidRequest about a member that must be given."""
    raise InvalidRequest(f"Missing required parameter: '{at}'.", param=at)


def read(decoder: msgspec.json.Decoder[T], raw: bytes | msgspec.Raw, at: str) -> T:
    """Decode the value at this place. Raises InvalidRequest."""
    try:
        return decoder.decode(raw)
    except msgspec.ValidationError as error:
        _refuse_fault(at, str(error))
    except msgspec.DecodeError:
        refuse(at, "it is not valid JSON in UTF-8")


def _refuse_fault(at: str, fault: str) -> NoReturn:
    """`fault` is msgspec's, as "Expected `str`, got `int` - at `$[1].role`"."""
    place = _place.search(fault)
    at += _element.sub(r".\1", place[1]) if place else ""
    if field := _missing_field.search(fault):
        missing(f"{at}.{field[1]}")
    if kinds := _expected.search(fault):
        refuse(at, "expected " + " or ".join(_WORDS.get(kind, kind) for kind in kinds[1].split(" | ")))
    refuse(at, fault.partition(" - at ")[0].lower())
