"""What clients may say, and when: a table, and whatever else they say changes nothing."""

import itertools
import json
from typing import Any

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from core.errors import RateLimited
from gateway.relay.plan import Api, Usage
from gateway.relay.realtime.response import Event, Response, Status
from gateway.relay.realtime.session import CLIENT_EVENTS, Cancel, Phase, Respond, Session, SessionLimits, Step
from gateway.relay.splice import parse_body
from tests.gateway.relay.broken import broken

USER = {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "Hi"}]}
SAID: dict[str, dict[str, Any]] = {
    "session.update": {"session": {"type": "realtime", "instructions": "Be brief."}},
    "conversation.item.create": {"item": USER},
    "conversation.item.retrieve": {"item_id": "first"},
    "conversation.item.delete": {"item_id": "first"},
    "response.create": {},
    "response.cancel": {},
}
SWITCHES = {  # the phase after an event that is taken; others leave it as it is
    (Phase.IDLE, "response.create"): Phase.RESPONDING,
    (Phase.RESPONDING, "response.cancel"): Phase.CANCELLING,
}


def new_session(limits: SessionLimits | None = None) -> Session:
    numbers = itertools.count()
    return Session("tiny", new_id=lambda prefix: f"{prefix}{next(numbers)}", limits=limits or SessionLimits())


def say(conversation: Session, kind: str, **members: Any) -> Step:
    return conversation.take(json.dumps({"type": kind, **members}))


def error_of(step: Step) -> dict[str, Any]:
    (event,) = step.events
    assert event["type"] == "error"
    assert step.command is None
    return dict(event["error"])


def in_phase(phase: Phase) -> Session:
    session = new_session()
    say(session, "conversation.item.create", item={**USER, "id": "first"})
    if phase is not Phase.IDLE:
        say(session, "response.create")
    if phase is Phase.CANCELLING:
        say(session, "response.cancel")
    assert session.phase is phase
    return session


def respond(session: Session, **response: Any) -> Response:
    command = say(session, "response.create", response=response).command
    assert isinstance(command, Respond)
    return command.response


@pytest.mark.parametrize("phase", Phase)
@pytest.mark.parametrize("kind", CLIENT_EVENTS)
def test_every_event_in_every_phase(phase: Phase, kind: str) -> None:
    session = in_phase(phase)
    step = say(session, kind, event_id="mine", **SAID[kind])
    if phase in CLIENT_EVENTS[kind]:
        assert all(event["type"] != "error" for event in step.events)
        assert session.phase is SWITCHES.get((phase, kind), phase)
    else:
        assert error_of(step)["event_id"] == "mine"
        assert session.phase is phase
    assert isinstance(step.command, Respond) is (kind == "response.create" and phase is Phase.IDLE)
    assert isinstance(step.command, Cancel) is (kind == "response.cancel" and phase is Phase.RESPONDING)


@given(st.lists(st.sampled_from([*SAID, "over"]), max_size=30))
def test_phases_follow_the_table_whatever_is_said(said: list[str]) -> None:
    session, expected = new_session(SessionLimits(items=5)), Phase.IDLE
    for kind in said:
        if kind == "over":
            session.response_over()
            expected = Phase.IDLE
            continue
        step = say(session, kind, **SAID[kind])
        refused = any(event["type"] == "error" for event in step.events)
        if phase_allows(expected, kind) and not refused:
            expected = SWITCHES.get((expected, kind), expected)
        else:
            assert refused
        assert session.phase is expected
        assert len(session.items) <= 5
        if isinstance(step.command, Respond):
            parsed = parse_body(Api.CHAT, step.command.response.body)
            assert (parsed.model, parsed.stream, parsed.include_usage) == ("tiny", True, True)


def phase_allows(phase: Phase, kind: str) -> bool:
    return phase in CLIENT_EVENTS[kind]


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)
MEMBERS = [
    "session", "item", "item_id", "response", "response_id", "previous_item_id", "event_id", "id", "type", "role",
    "content", "text", "tools", "tool_choice", "instructions", "input", "metadata", "conversation", "temperature",
    "max_output_tokens", "output_modalities", "model", "call_id", "output", "name", "arguments", "status",
]  # fmt: skip
shaped = st.recursive(
    json_values
    | st.sampled_from(["message", "user", "input_text", "realtime", "function_call_output", "item_reference"]),
    lambda inner: st.dictionaries(st.sampled_from(MEMBERS), inner, max_size=5) | st.lists(inner, max_size=2),
    max_leaves=12,
)


@given(st.sampled_from([*SAID, "x"]), st.dictionaries(st.sampled_from(MEMBERS), shaped, max_size=4))
def test_no_event_breaks_a_conversation(kind: str, members: dict[str, Any]) -> None:
    session = in_phase(Phase.IDLE)
    step = session.take(json.dumps({**members, "type": kind}))
    for event in step.events:
        json.dumps(event)
    if isinstance(step.command, Respond):
        parse_body(Api.CHAT, step.command.response.body)
        session.response_over()
    say(session, "conversation.item.create", item=USER)
    assert isinstance(say(session, "response.create").command, Respond)


@given(st.text(max_size=40))
def test_no_frame_breaks_a_conversation(text: str) -> None:
    session = new_session()
    assert all(event["type"] == "error" for event in session.take(text).events)


@pytest.mark.parametrize(
    ("kind", "members", "param"),
    [
        ("session.update", {}, "session"),
        ("session.update", {"session": {"model": "other"}}, "session.model"),
        ("session.update", {"session": {"type": "transcription"}}, "session.type"),
        ("session.update", {"session": {"output_modalities": ["audio"]}}, "session.output_modalities"),
        ("session.update", {"session": {"audio": {}}}, "session.audio"),
        ("session.update", {"session": {"tools": [{"type": "mcp"}]}}, "session.tools[0].type"),
        ("session.update", {"session": {"max_output_tokens": 0}}, "session.max_output_tokens"),
        ("session.update", {"session": {"temperature": "hot"}}, "session.temperature"),
        ("conversation.item.create", {}, "item"),
        ("conversation.item.create", {"item": {"type": "audio"}}, "item.type"),
        ("conversation.item.create", {"item": {"type": "message", "role": "root"}}, "item.role"),
        ("conversation.item.create", {"item": {**USER, "content": []}}, "item.content"),
        ("conversation.item.create", {"item": {**USER, "content": [{"type": "input_audio"}]}}, "item.content[0].type"),
        ("conversation.item.create", {"item": {**USER, "id": "first"}}, "item.id"),
        ("conversation.item.create", {"item": USER, "previous_item_id": "none"}, "previous_item_id"),
        ("conversation.item.create", {"item": {"type": "function_call_output", "output": "x"}}, "item.call_id"),
        ("conversation.item.delete", {"item_id": "none"}, "item_id"),
        ("response.create", {"response": {"conversation": "other"}}, "response.conversation"),
        ("response.create", {"response": {"voice": "alloy"}}, "response.voice"),
        ("response.create", {"response": {"input": [{"type": "item_reference", "id": "none"}]}}, "response.input"),
        ("response.create", {"response": 5}, "response"),
        ("none.such", {}, "type"),
    ],
)
def test_errors_name_the_member_at_fault(kind: str, members: dict[str, Any], param: str) -> None:
    session = in_phase(Phase.IDLE)
    before = [item.body for item in session.items]
    error = error_of(say(session, kind, event_id="e", **members))
    assert (error["type"], error["param"], error["event_id"]) == ("invalid_request_error", param, "e")
    assert ([item.body for item in session.items], session.phase) == (before, Phase.IDLE)


def test_a_refused_update_changes_nothing() -> None:
    session = in_phase(Phase.IDLE)
    say(session, "session.update", session={"temperature": 1, "tool_choice": "sometimes"})
    assert "temperature" not in json.loads(respond(session).body)


def test_a_conversation_is_bounded_in_items_and_bytes() -> None:
    session = new_session(SessionLimits(items=2))
    for _ in range(2):
        say(session, "conversation.item.create", item=USER)
    assert error_of(say(session, "conversation.item.create", item=USER))["code"] == "conversation_too_large"
    assert error_of(say(session, "response.create"))["code"] == "conversation_too_large"
    say(session, "conversation.item.delete", item_id=session.items[0].id)
    assert len(session.items) == 1
    respond(session)
    small = new_session(SessionLimits(conversation_bytes=300))
    content = [{"type": "input_text", "text": "x" * 400}]
    large = {**USER, "content": content}
    assert error_of(say(small, "conversation.item.create", item=large))["code"] == "conversation_too_large"
    assert small.items == ()


def test_items_are_put_where_the_client_wants_them() -> None:
    session = new_session()
    for item_id, previous in (("b", None), ("a", "root"), ("d", None), ("c", "b")):
        say(session, "conversation.item.create", item={**USER, "id": item_id}, previous_item_id=previous)
    assert [item.id for item in session.items] == ["a", "b", "c", "d"]


def test_nothing_is_asked_without_a_message() -> None:
    assert error_of(say(new_session(), "response.create"))["code"] == "invalid_request"


def test_a_response_may_have_an_input_of_its_own_and_stay_out_of_the_conversation() -> None:
    session = in_phase(Phase.IDLE)
    other = {**USER, "content": [{"type": "input_text", "text": "Other"}]}
    response = respond(session, conversation="none", input=[{"type": "item_reference", "id": "first"}, other])
    assert [message["content"] for message in json.loads(response.body)["messages"]] == ["Hi", "Other"]
    response.feed(chunks(delta={"content": "A"}))
    told = response.complete(None)
    assert len(session.items) == 1
    assert not any(event["type"].startswith("conversation") for event in told)
    assert told[-1]["response"]["conversation_id"] is None


def test_an_item_that_is_being_written_cannot_be_deleted_or_asked_about() -> None:
    session = in_phase(Phase.IDLE)
    response = respond(session)
    response.feed(chunks(delta={"content": "A"}))
    written = session.items[-1].id
    assert error_of(say(session, "conversation.item.delete", item_id=written))["param"] == "item_id"
    response.complete(None)
    session.response_over()
    assert [event["type"] for event in say(session, "conversation.item.delete", item_id=written).events] == [
        "conversation.item.deleted"
    ]


def test_a_call_that_was_cut_short_is_not_told_to_engines() -> None:
    session = in_phase(Phase.IDLE)
    response = respond(session)
    response.feed(chunks(delta={"tool_calls": [{"index": 0, "id": "c", "function": {"name": "f", "arguments": "{"}}]}))
    response.cancel(None)
    session.response_over()
    assert len(session.items) == 2
    assert [message["role"] for message in json.loads(respond(session).body)["messages"]] == ["user"]


def test_an_error_tells_what_http_would() -> None:
    event = new_session().error(RateLimited("Slower."), "mine")
    assert event["error"] == {
        "type": "rate_limit_error",
        "code": "rate_limit_exceeded",
        "message": "Slower.",
        "param": None,
        "event_id": "mine",
    }


def chunks(**choice: Any) -> bytes:
    return b"data: " + json.dumps({"choices": [{"index": 0, **choice}]}).encode() + b"\n\n"


pieces = st.one_of(
    st.builds(lambda text: {"delta": {"content": text}}, st.text(max_size=5)),
    st.builds(
        lambda index, text: {"delta": {"tool_calls": [{"index": index, "function": {"name": "f", "arguments": text}}]}},
        st.integers(0, 2),
        st.text(max_size=5),
    ),
    st.builds(lambda reason: {"delta": {}, "finish_reason": reason}, st.sampled_from(["stop", "length", "tool_calls"])),
    st.just({"delta": {"role": "assistant", "content": ""}}),
    st.just({"delta": {"reasoning_content": "hm"}}),
)
ENDS = ("complete", "cancel", "fail")


@given(st.lists(pieces, max_size=12), st.sampled_from(ENDS), st.data())
def test_a_response_is_told_whole_however_it_comes_and_ends(said: list[Any], end: str, data: st.DataObject) -> None:
    session = in_phase(Phase.IDLE)
    response = respond(session)
    stream = b"".join([chunks(**choice) for choice in said]) + b": comment\n\n"
    told: list[Event] = [response.created()]
    while stream:
        cut = data.draw(st.integers(1, len(stream)))
        told += response.feed(stream[:cut])
        stream = stream[cut:]
    usage = Usage(input_tokens=3, output_tokens=2)
    match end:
        case "complete":
            told += response.complete(usage)
        case "cancel":
            told += response.cancel(usage)
        case _:
            told += response.fail({"type": "server_error", "code": "upstream_error"}, usage)
    assert response.complete(usage) == response.cancel(usage) == []  # it ends once
    assert (told[0]["type"], told[-1]["type"]) == ("response.created", "response.done")
    done = told[-1]["response"]
    assert response.status is not Status.IN_PROGRESS
    assert done["status"] == response.status
    for kind, name, whole in (
        ("output_text", "delta", "text"),
        ("function_call_arguments", "delta", "arguments"),
    ):
        for last in (event for event in told if event["type"] == f"response.{kind}.done"):
            of_item = [e for e in told if e["type"] == f"response.{kind}.delta" and e["item_id"] == last["item_id"]]
            assert "".join(event[name] for event in of_item) == last[whole]
    added = [event["item"]["id"] for event in told if event["type"] == "response.output_item.added"]
    closed = [event["item"]["id"] for event in told if event["type"] == "response.output_item.done"]
    assert added == closed == [item["id"] for item in done["output"]]
    assert all(item["status"] != "in_progress" for item in done["output"])
    assert len({event["event_id"] for event in told}) == len(told)
    assert done["usage"]["total_tokens"] == 5
    assert [item.id for item in session.items[1:]] == added


def test_an_item_cannot_be_made_many_by_naming_it_often() -> None:
    session = new_session(SessionLimits(conversation_bytes=1000))
    item = {**USER, "id": "long", "content": [{"type": "input_text", "text": "x" * 300}]}
    say(session, "conversation.item.create", item=item)
    once = {"type": "item_reference", "id": "long"}
    error = error_of(say(session, "response.create", response={"input": [once] * 10}))
    assert (error["code"], error["param"]) == ("conversation_too_large", "response.input")
    assert session.phase is Phase.IDLE
    assert respond(session, input=[once, once]).body.count(b"xxx") > 1


EVENTS: list[dict[str, Any]] = [
    {
        "type": "session.update",
        "event_id": "e",
        "session": {
            "type": "realtime",
            "model": "tiny",
            "output_modalities": ["text"],
            "instructions": "Be brief.",
            "tools": [{"type": "function", "name": "look", "parameters": {}}],
            "tool_choice": {"type": "function", "name": "look"},
            "max_output_tokens": 9,
            "temperature": 1,
            "parallel_tool_calls": True,
        },
    },
    {
        "type": "conversation.item.create",
        "previous_item_id": "root",
        "item": {**USER, "id": "a", "status": "completed"},
    },
    {
        "type": "conversation.item.create",
        "item": {"type": "function_call", "call_id": "c", "name": "look", "arguments": "{}"},
    },
    {"type": "conversation.item.create", "item": {"type": "function_call_output", "call_id": "c", "output": "x"}},
    {"type": "conversation.item.retrieve", "item_id": "first"},
    {"type": "conversation.item.delete", "item_id": "first"},
    {
        "type": "response.create",
        "response": {
            "conversation": "none",
            "metadata": {"a": "b"},
            "input": [{"type": "item_reference", "id": "first"}, USER],
            "max_output_tokens": "inf",
        },
    },
]


@given(st.sampled_from(EVENTS).flatmap(broken))
@example({"type": "conversation.item.create", "item": {**USER, "status": [1]}})
@example({"type": "conversation.item.create", "item": {**USER, "content": [{"type": [], "text": "x"}]}})
def test_whatever_comes_is_taken_or_told_of(event: dict[str, Any]) -> None:
    session = in_phase(Phase.IDLE)
    step = session.take(json.dumps(event))
    msgspec.json.encode(step.events)
    if isinstance(step.command, Respond):
        parse_body(Api.CHAT, step.command.response.body)
        msgspec.json.encode(step.command.response.created())
