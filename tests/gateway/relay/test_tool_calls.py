"""Indexes of streamed tool calls: put right where an engine says the same one for all, left alone elsewhere."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.relay.completion import CompletionStream
from gateway.relay.tool_calls import CallIndexes

Piece = tuple[int, str | None, str]
"""An engine's index, the id if it is said, and a piece of the arguments."""


def data_of(*pieces: Piece, choice: int = 0, **members: Any) -> bytes:
    calls = []
    for index, identity, arguments in pieces:
        call: dict[str, Any] = {"index": index, "function": {"arguments": arguments}}
        if identity is not None:
            call |= {"id": identity, "type": "function"}
        if identity:
            call["function"]["name"] = "look"
        calls.append(call)
    return json.dumps({**members, "choices": [{"index": choice, "delta": {"tool_calls": calls}}]}).encode()


def event_of(data: bytes) -> bytes:
    return b"data: " + data + b"\n\n"


def told(events: list[bytes]) -> dict[tuple[int, int], tuple[str | None, str]]:
    """(choice, index) -> id and arguments, as a client puts them together."""
    calls: dict[tuple[int, int], tuple[str | None, str]] = {}
    for event in events:
        for choice in json.loads(event[6:])["choices"]:
            for call in choice["delta"].get("tool_calls") or ():
                key = (choice["index"], call["index"])
                identity, arguments = calls.get(key, (None, ""))
                calls[key] = (identity or call.get("id"), arguments + call["function"]["arguments"])
    return calls


def through(datas: list[bytes]) -> list[bytes]:
    """The events as CompletionStream hands them on."""
    stream = CompletionStream(client_model="m", drop_usage=True)
    return [event for data in datas for event in stream.take(event_of(data))]


@pytest.mark.shows("G17")
def test_calls_that_all_come_under_index_zero_are_told_apart_by_their_ids() -> None:
    datas = [data_of(piece) for piece in [(0, "a", "{"), (0, None, "}"), (0, "b", "["), (0, "", "1]"), (0, "c", "2")]]
    assert told(through(datas)) == {(0, 0): ("a", "{}"), (0, 1): ("b", "[1]"), (0, 2): ("c", "2")}


@pytest.mark.shows("G17")
def test_calls_under_one_index_in_one_event_are_told_apart() -> None:
    assert told(through([data_of((0, "a", "1"), (0, "b", "2"))])) == {(0, 0): ("a", "1"), (0, 1): ("b", "2")}


@pytest.mark.shows("G17")
def test_an_id_said_again_is_the_same_call() -> None:
    datas = [data_of(piece) for piece in [(0, "a", "1"), (0, "b", "2"), (0, "a", "3"), (0, None, "4"), (0, "b", "5")]]
    assert told(through(datas)) == {(0, 0): ("a", "134"), (0, 1): ("b", "25")}


@pytest.mark.shows("G17")
def test_an_engine_that_makes_up_an_id_for_each_piece_makes_no_more_calls() -> None:
    datas = [data_of((0, identity, piece)) for identity, piece in [("a", "{"), ("b", "1"), ("c", "}"), ("d", "{}")]]
    datas[1:3] = [data.replace(b', "name": "look"', b"") for data in datas[1:3]]
    assert told(through(datas)) == {(0, 0): ("a", "{1}"), (0, 1): ("d", "{}")}


def test_an_id_that_comes_late_belongs_to_the_call_that_has_begun() -> None:
    assert told(through([data_of((0, None, "1")), data_of((0, "a", "2"))])) == {(0, 0): ("a", "12")}


def test_an_index_that_was_given_away_moves_on() -> None:
    datas = [data_of(piece) for piece in [(0, "a", "1"), (0, "b", "2"), (1, "c", "3"), (1, None, "4")]]
    assert told(through(datas)) == {(0, 0): ("a", "1"), (0, 1): ("b", "2"), (0, 2): ("c", "34")}


def test_choices_have_indexes_of_their_own() -> None:
    datas = [data_of((0, "a", "1"), choice=0), data_of((0, "b", "2"), choice=1)]
    assert through(datas) == [event_of(data) for data in datas]


def test_only_the_number_changes() -> None:
    second = (
        b'{ "model":"m", "choices" : [ {"index": 0, "delta": {"index": 0, "tool_calls": [ '
        b'{"function": {"name": "look"}, "extra":\n'
        b'data: {"arguments": "\\u4e16 \\"index\\": 0"}, "id": "b" , "index" : 0 } ]}, "index2":0} ] }'
    )
    indexes = CallIndexes()
    indexes.put_right(b"", data_of((0, "a", "")))
    data = second.replace(b"\ndata:", b"\n")
    _, edited = indexes.put_right(event_of(second), data)
    assert edited == data.replace(b'"index" : 0 }', b'"index" : 1 }')
    event, _ = CallIndexes().put_right(event_of(second), data)
    assert event == event_of(second)


@pytest.mark.parametrize(
    "data",
    [
        b'{"choices":[{"delta":{"tool_calls":null}}]}',
        b'{"choices":[{"delta":{"tool_calls":[{"id":"b","function":{}}]}}]}',
        b'{"choices":[{"delta":{"tool_calls":[{"index":"0","id":"b"}]}}]}',
        b'{"choices":[{"delta":{"tool_calls":[{"index":0,"id":"b","index":0}]}}]}',
        b'{"choices":{"tool_calls":1}}',
    ],
)
def test_what_is_not_understood_is_left_alone(data: bytes) -> None:
    indexes = CallIndexes()
    indexes.put_right(b"", data_of((0, "a", "")))
    assert indexes.put_right(event_of(data), data) == (event_of(data), data)


pieces = st.lists(st.tuples(st.integers(0, 3), st.text("xyz{}\"'é", max_size=5)), max_size=20)


@pytest.mark.shows("G17")
@given(pieces, st.lists(st.integers(1, 3), min_size=1), st.booleans())
def test_streams_in_order_pass_byte_for_byte(
    pieces: list[tuple[int, str]], sizes: list[int], says_ids_again: bool
) -> None:
    begun: set[int] = set()
    named: list[Piece] = []
    for index, arguments in pieces:
        named.append((index, f"call-{index}" if says_ids_again or index not in begun else None, arguments))
        begun.add(index)
    datas: list[bytes] = []
    while named:
        size = sizes[len(datas) % len(sizes)]
        datas.append(data_of(*named[:size], model="m"))
        named = named[size:]
    passed = through([*datas, b'{"choices":[{"index":0,"delta":{},"finish_reason":"tool_calls"}]}'])
    assert passed[: len(datas)] == [event_of(data) for data in datas]


@pytest.mark.shows("G17")
@given(pieces, st.data())
def test_calls_under_index_zero_are_grouped_by_id_whatever_their_order(
    pieces: list[tuple[int, str]], draw: st.DataObject
) -> None:
    """An engine that always says 0 and names the call whenever it changes."""
    last: int | None = None
    datas: list[bytes] = []
    expected: dict[str, str] = {}
    for call, arguments in pieces:
        identity = f"call-{call}"
        expected[identity] = expected.get(identity, "") + arguments
        says = call != last or draw.draw(st.booleans())
        datas.append(data_of((0, identity if says else None, arguments)))
        last = call
    calls = told(through([*datas, b'{"choices":[{"index":0,"delta":{},"finish_reason":"tool_calls"}]}']))
    assert dict(calls.values()) == expected
    assert sorted(index for _, index in calls) == list(range(len(expected)))
