"""Sentences are found again in what was said, in time that grows with its length alone."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from core.sentences import PLACE, Sentences, fits, sentences_of, unquoted


@pytest.mark.parametrize(
    ("text", "said", "values"),
    [
        ("It failed: %(why)s", "It failed: no room.", {"why": "no room."}),
        ("It failed: %(why)s", "It failed: ", None),
        ("Node %(node)s is cordoned.", "Node a is cordoned. is cordoned.", {"node": "a is cordoned."}),
        ("%(a)s of %(b)s of %(c)s.", "1 of 2 of 3 of 4.", {"a": "1", "b": "2", "c": "3 of 4"}),
        ("%(a)s of %(b)s.", " of 2.", None),
        ("There is none.", "There is none.", {}),
        ("There is none.", "There is none..", None),
        ("a%(a)sa", "aa", None),
    ],
)
def test_places_take_as_little_as_they_can_and_something(text: str, said: str, values: dict[str, str] | None) -> None:
    assert sentences_of([text])[0].values_in(said) == values


@given(
    st.lists(st.text("ab ", max_size=2), min_size=1, max_size=4),
    st.text("ab ", max_size=12),
)
def test_values_are_those_of_a_regular_expression(literals: list[str], text: str) -> None:
    names = [f"n{nth}" for nth in range(len(literals) - 1)]
    written = literals[0] + "".join(f"%({name})s{part}" for name, part in zip(names, literals[1:], strict=True))
    parts = PLACE.split(written)
    pattern = "".join(re.escape(part) if nth % 2 == 0 else f"(?P<{part}>.+?)" for nth, part in enumerate(parts))
    found = re.fullmatch(pattern, text, re.DOTALL)
    assert sentences_of([written])[0].values_in(text) == (None if found is None else found.groupdict())


@given(st.lists(st.text("ab", max_size=4), min_size=1, max_size=8, unique=True), st.text("ab", max_size=6))
def test_looking_at_the_beginning_first_finds_the_same_ones_in_the_same_order(starts: list[str], text: str) -> None:
    texts = [*starts, *(f"{start}%(rest)s" for start in starts)]
    found = [one.text for one in sentences_of(texts) if one.values_in(text) is not None]
    assert [one.text for one in Sentences(texts).like(text) if one.values_in(text) is not None] == found


def test_quotes_of_values_are_left_out() -> None:
    assert unquoted({"a": "'b'", "c": "'", "d": "e"}) == {"a": "b", "c": "'", "d": "e"}


@pytest.mark.parametrize(
    ("name", "value", "right"),
    [
        ("host", "example.com", True),
        ("host", "Every attempt failed: example.com", False),
        ("count", "3", True),
        ("count", "3. It has 4", False),
        ("why", "no room: ask. It has 4", True),
    ],
)
def test_a_place_for_a_name_or_a_word_takes_no_other_sentence(name: str, value: str, right: bool) -> None:
    assert fits(name, value) is right
    text = f"%({name})s is left."
    found = Sentences([text, "%(text)s."]).found(f"{value} is left.", fits=fits)
    assert found is not None
    assert (found[0].text == text) is right
