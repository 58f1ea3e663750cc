"""What is changed of requests and answers, and nothing else: options, ids, tool calls, sizes (G14, G15, G17, G19)."""

import gzip
import json
import socket
from typing import Any, Final

import pytest

from tests.doubles.engine import DONE, answers, chat_stream, chunk, completion, event, streams, tool_chunk
from tests.gateway.cases.desk import BODY_CAP_BYTES, CHAT, COMPLETIONS, MESSAGES, RESPONSES, SERVED, Answer, Case

EMBEDDINGS: Final = "/v1/embeddings"
USAGE: Final = {"prompt_tokens": 3, "total_tokens": 3}


@pytest.mark.shows("G14")
@pytest.mark.parametrize(
    ("path", "options"),
    [
        (CHAT, "left out"),
        (CHAT, None),
        (CHAT, {}),
        (CHAT, {"include_usage": False}),
        (CHAT, {"include_usage": None}),
        (COMPLETIONS, "left out"),
        (COMPLETIONS, None),
    ],
)
def test_g14_usage_is_asked_for_and_its_chunk_taken_out(streamed: Case, path: str, options: Any) -> None:
    events = chat_stream("A", "B", model=SERVED)
    served = streamed.serve(streams(*events))
    members = {} if options == "left out" else {"stream_options": options}
    answer = streamed.ask(served.name, path, **members)
    assert answer.status == 200, answer.body
    assert served.received[0].json["stream_options"]["include_usage"] is True
    told = b"".join(one for one in events if b'"usage"' not in one)
    assert answer.body == told.replace(SERVED.encode(), served.name.encode())
    row = streamed.row(answer)
    assert (row.usage_source, row.input_tokens, row.output_tokens) == ("engine", 7, 3)


@pytest.mark.shows("G14")
def test_g14_who_asks_for_usage_gets_its_chunk(streamed: Case) -> None:
    events = chat_stream("A", model=SERVED)
    served = streamed.serve(streams(*events))
    options = {"include_usage": True, "continuous_usage_stats": True}
    answer = streamed.ask(served.name, stream_options=options)
    assert answer.body == b"".join(events).replace(SERVED.encode(), served.name.encode())
    assert served.received[0].json["stream_options"] == options


@pytest.mark.shows("G14")
def test_g14_null_is_tolerated_where_nothing_is_streamed(whole: Case) -> None:
    served = whole.serve(answers(completion(model=SERVED)))
    assert whole.ask(served.name, stream_options=None).status == 200
    assert (served.received[0].json.get("stream_options") or {}).get("include_usage") is None


@pytest.mark.shows("G15")
@pytest.mark.parametrize("identity", [{}, {"id": ""}, {"id": None}, {"id": 7}, {"id": "the same each time"}])
def test_g15_whatever_the_engine_calls_it_the_key_is_ours(case: Case, identity: dict[str, Any]) -> None:
    body = {**{key: value for key, value in completion("A", model=SERVED).items() if key != "id"}, **identity}
    choice = {"index": 0, "delta": {"content": "A"}, "finish_reason": "stop"}
    said = event(json.dumps({"model": SERVED, "choices": [choice], **identity}).encode())
    served = case.serve(streams(said, DONE) if case.streamed else answers(body))
    told = [case.ask(served.name) for _ in range(2)]
    assert {answer.status for answer in told} == {200}
    first, second = (case.row(answer) for answer in told)
    assert first.pk != second.pk
    assert [request.header("x-request-id") for request in served.received] == [one.request_id for one in told]
    engines_own = identity.get("id") if isinstance(identity.get("id"), str) else ""
    assert first.engine_request_id == second.engine_request_id == engines_own


def _tool_chunk(*calls: dict[str, Any]) -> bytes:
    return tool_chunk(*calls, model=SERVED)


def _call(identity: str | None, arguments: str, *, index: int = 0) -> dict[str, Any]:
    head = {} if identity is None else {"id": identity, "type": "function"}
    named = {} if identity is None else {"name": "look"}
    return {"index": index, **head, "function": {**named, "arguments": arguments}}


CALLS: Final = {"a": {"at": "left"}, "b": {"at": "世"}}
TOOL_STREAMS: Final = {
    "always index 0": [
        _tool_chunk(_call("a", '{"at": "le')),
        _tool_chunk(_call(None, 'ft"}')),
        _tool_chunk(_call("b", "")),
        _tool_chunk(_call(None, '{"at": "世"}')),
    ],
    "both in one chunk, index 0": [
        _tool_chunk(_call("a", '{"at": "left"}'), _call("b", '{"at": ')),
        _tool_chunk(_call(None, '"世"}')),
    ],
    "interleaved by index": [
        _tool_chunk(_call("a", "", index=0), _call("b", "", index=1)),
        _tool_chunk(_call(None, '{"at": ', index=1), _call(None, '{"at": ', index=0)),
        _tool_chunk(_call(None, '"left"}', index=0)),
        _tool_chunk(_call(None, '"世"}', index=1)),
    ],
}


def _calls_of(path: str, events: list[Any]) -> dict[str, Any]:
    """Calls by id, put together as clients of that API do."""
    ids: dict[Any, str] = {}
    said: dict[Any, str] = {}
    for told in events:
        if path == CHAT:
            for choice in told["choices"]:
                for call in choice["delta"].get("tool_calls", ()):
                    ids.setdefault(call["index"], call.get("id"))
                    said[call["index"]] = said.get(call["index"], "") + call["function"]["arguments"]
        elif told["type"] == "content_block_start" and told["content_block"]["type"] == "tool_use":
            ids[told["index"]] = told["content_block"]["id"]
        elif told["type"] == "content_block_delta" and told["delta"]["type"] == "input_json_delta":
            said[told["index"]] = said.get(told["index"], "") + told["delta"]["partial_json"]
        elif told["type"] == "response.output_item.done" and told["item"]["type"] == "function_call":
            ids[told["output_index"]] = told["item"]["call_id"]
            said[told["output_index"]] = told["item"]["arguments"]
    return {ids[index]: json.loads(arguments) for index, arguments in said.items()}


@pytest.mark.shows("G17")
@pytest.mark.parametrize("path", [CHAT, MESSAGES, RESPONSES])
@pytest.mark.parametrize("kind", TOOL_STREAMS)
def test_g17_parallel_calls_are_told_apart_by_index_and_id(streamed: Case, path: str, kind: str) -> None:
    served = streamed.serve(streams(chunk(role=True), *TOOL_STREAMS[kind], chunk(finish="tool_calls"), DONE))
    answer = streamed.ask(served.name, path)
    assert _calls_of(path, answer.events) == CALLS


@pytest.mark.shows("G17")
def test_g17_calls_of_a_whole_answer_stay_as_they_are(whole: Case) -> None:
    body = completion(model=SERVED)
    calls = [_call("a", '{"at": "left"}'), _call("b", '{"at": "世"}')]
    body["choices"][0]["message"] |= {"content": None, "tool_calls": calls}
    served = whole.serve(answers(body))
    assert whole.ask(served.name).json == {**body, "model": served.name}


@pytest.mark.shows("G19")
def test_g19_large_embeddings_pass(whole: Case) -> None:
    served = whole.serve(answers({"data": [], "model": SERVED, "usage": USAGE}))
    texts = ["x" * 1000] * 640
    content = json.dumps({"model": served.name, "input": texts}).encode()
    assert len(content) > 640 * 1000
    for headers, sent in (({}, content), ({"content-encoding": "gzip"}, gzip.compress(content))):
        answer = whole.ask(served.name, EMBEDDINGS, content=sent, headers=headers)
        assert answer.status == 200
        assert served.received[-1].json == {"model": SERVED, "input": texts}


def _is_too_large(status: int, body: bytes, path: str) -> None:
    error = json.loads(body)["error"]
    assert status == 413
    assert error["type"] == ("request_too_large" if path == MESSAGES else "invalid_request_error")
    if path != MESSAGES:
        assert (error["code"], error["param"]) == ("request_too_large", None)


@pytest.mark.shows("G19")
@pytest.mark.parametrize("path", [CHAT, EMBEDDINGS, MESSAGES])
@pytest.mark.parametrize("kind", ["a bomb", "chunks", "a length"])
def test_g19_what_is_too_large_is_told_413_in_the_words_of_its_api(case: Case, path: str, kind: str) -> None:
    filling = " " * (BODY_CAP_BYTES + 1)
    content = json.dumps({**case.body("case-any", path), "input": "a", "user": filling}).encode()
    if kind == "a bomb":
        sent = gzip.compress(content)
        assert len(sent) < 10_000
        answer = case.ask("", path, content=sent, headers={"content-encoding": "gzip"})
    elif kind == "a length":
        answer = case.ask("", path, content=content)
    else:
        pieces = (content[at : at + 65536] for at in range(0, len(content), 65536))
        response = case.client.post(path, content=pieces, headers=case.headers())
        answer = Answer(response.status_code, response.headers, response.content)
    _is_too_large(answer.status, answer.body, path)


@pytest.mark.shows("G19")
def test_g19_a_body_of_forty_megabytes_is_refused_before_it_is_sent(whole: Case) -> None:
    port = whole.house.web_port if whole.door == "drf" else whole.house.relay_port
    head = (
        f"POST {EMBEDDINGS} HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {whole.house.key.secret}\r\n"
        "Content-Length: 40000000\r\n\r\n"
    )
    with socket.create_connection(("127.0.0.1", port), 10.0) as client:
        client.sendall(head.encode())
        said = b""
        while not said.endswith(b"}"):
            piece = client.recv(65536)
            assert piece, said
            said += piece
    told, _, body = said.partition(b"\r\n\r\n")
    _is_too_large(int(told.split()[1]), body, EMBEDDINGS)


@pytest.mark.shows("G19")
def test_g19_what_is_just_small_enough_passes(case: Case) -> None:
    served = case.serve(case.says("A"))
    content = json.dumps(case.body(served.name)).encode()
    content += b" " * (BODY_CAP_BYTES - len(content))
    assert case.ask(served.name, content=content).status == 200
    assert case.ask(served.name, content=content + b" ").status == 413
