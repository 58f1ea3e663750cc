"""Examples to train on: what is one, and that what is none is told by its line."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpupool.policies.training_data import LONGEST_LINE_BYTES, BadExample, count_examples

USER = {"role": "user", "content": "Hello"}
ANSWER = {"role": "assistant", "content": "你好"}
GOOD = json.dumps({"messages": [USER, ANSWER]}).encode()


def lines(*examples: Any) -> bytes:
    return b"\n".join(one if isinstance(one, bytes) else json.dumps(one).encode() for one in examples) + b"\n"


@pytest.mark.parametrize(
    "example",
    [
        {"messages": [{"role": "system", "content": "Be brief."}, USER, ANSWER]},
        {"messages": [USER, {"role": "assistant", "content": None, "tool_calls": [{}]}]},
        {"messages": [{"role": "user", "content": [{"type": "text", "text": "a"}]}, ANSWER], "tools": []},
        {"prompt": "a", "completion": "b"},
        {"input": {"messages": [USER]}, "preferred_output": [ANSWER], "non_preferred_output": [ANSWER]},
    ],
)
def test_examples_are_counted(example: Any) -> None:
    assert count_examples(lines(example, example)) == 2
    assert count_examples(lines(example).rstrip(b"\n")) == 1
    assert count_examples(lines(example).replace(b"\n", b"\r\n")) == 1


@pytest.mark.parametrize(
    ("bad", "says"),
    [
        (b"", "empty"),
        (b"  ", "empty"),
        (b"{", "not JSON"),
        (b"\xff\xfe", "not JSON"),
        (b"[" * 100_000, "not JSON"),
        (b"x" * (LONGEST_LINE_BYTES + 1), "longer than"),
        ([], "not a JSON object"),
        ({}, "neither"),
        ({"messages": []}, "at least one"),
        ({"messages": "a"}, "at least one"),
        ({"messages": [USER]}, "assistant"),
        ({"messages": [1]}, "message 1 is not an object"),
        ({"messages": [USER, {"role": "boss", "content": ""}]}, "message 2 has no role"),
        ({"messages": [{"role": ["user"], "content": ""}]}, "message 1 has no role"),
        ({"messages": [{"role": "user"}, ANSWER]}, "message 1 has no content"),
        ({"prompt": "a"}, "both"),
        ({"input": [], "preferred_output": []}, "in 'input'"),
        ({"input": {"messages": [USER]}, "preferred_output": [ANSWER]}, "in 'non_preferred_output'"),
    ],
)
def test_the_first_line_that_is_none_is_named(bad: Any, says: str) -> None:
    with pytest.raises(BadExample, match=says) as refused:
        count_examples(lines(GOOD, GOOD, bad, GOOD, bad))
    assert refused.value.line == 3
    assert refused.value.message.startswith("Line 3: ")


def test_a_file_without_a_line_is_none() -> None:
    with pytest.raises(BadExample, match="empty"):
        count_examples(b"")


@given(st.binary(max_size=200))
def test_whatever_is_sent_is_counted_or_refused(body: bytes) -> None:
    try:
        assert count_examples(body) > 0
    except BadExample as refused:
        line = refused.line
    else:
        line = 1
    assert 1 <= line <= body.count(b"\n") + 1
