"""Names: the client's is echoed, ours is told to nobody, and nobody learns which there are (G24, G31)."""

import json
from collections.abc import Iterator
from typing import Any, Final

import pytest

from bench.rows import Key
from tenants.actor import SYSTEM
from tenants.services import create_api_key
from tests.doubles.engine import DONE, answers, chat_stream, chunk, completion, event, streams
from tests.gateway.cases.desk import CHAT, COMPLETIONS, MESSAGES, RESPONSES, SERVED, Answer, Case

EMBEDDINGS: Final = "/v1/embeddings"
RERANK: Final = "/v1/rerank"
COUNT: Final = "/v1/messages/count_tokens"
_CHANGING: Final = {"date", "x-request-id", "request-id"}


def names_in(told: Any) -> Iterator[str]:
    """Every `model` of an answer, at whatever depth."""
    if isinstance(told, dict):
        for name, value in told.items():
            if name == "model":
                yield value
            yield from names_in(value)
    elif isinstance(told, list):
        for value in told:
            yield from names_in(value)


def is_told_nowhere(case: Case, answer: Answer, port: int) -> None:
    """Neither the engine's name for the model, nor where it is."""
    told = answer.body.decode() + repr(answer.headers)
    for ours in (SERVED, str(port), "127.0.0.1"):
        assert ours not in told


@pytest.mark.shows("G24")
@pytest.mark.parametrize("path", [CHAT, COMPLETIONS, MESSAGES, RESPONSES])
def test_g24_the_name_that_the_client_used_is_echoed(case: Case, path: str) -> None:
    served = case.serve(case.says("A", "B"))
    answer = case.ask(served.name, path)
    assert answer.status == 200
    assert served.received[0].json["model"] == SERVED
    names = list(names_in(answer.events if case.streamed else answer.json))
    assert names
    assert set(names) == {served.name}
    is_told_nowhere(case, answer, served.doubles[0].port)
    row = case.row(answer)
    assert (row.model, row.instance_id) == (served.name, served.instances[0].pk)  # but we know


@pytest.mark.shows("G24")
@pytest.mark.parametrize("path", [EMBEDDINGS, RERANK])
def test_g24_also_of_what_only_takes_in(whole: Case, path: str) -> None:
    served = whole.serve(answers({"model": SERVED, "data": [], "results": [], "usage": {"total_tokens": 1}}))
    content = json.dumps({"model": served.name, "input": "a", "query": "a", "documents": ["b"]}).encode()
    answer = whole.ask(served.name, path, content=content)
    assert (answer.status, answer.json["model"]) == (200, served.name)
    is_told_nowhere(whole, answer, served.doubles[0].port)


@pytest.mark.shows("G24")
def test_g24_only_the_answers_own_member_is_renamed(case: Case) -> None:
    said = f'"model": "{SERVED}"'
    body = completion(said, model=SERVED) | {"x": {"model": SERVED}}
    choice = {"index": 0, "delta": {"content": said}, "finish_reason": "stop"}
    piece = event(json.dumps({"choices": [choice], "x": {"model": SERVED}, "model": SERVED}).encode())
    served = case.serve(streams(piece, DONE) if case.streamed else answers(body))
    answer = case.ask(served.name)
    told = answer.events[0] if case.streamed else answer.json
    assert answer.text == said
    assert (told["model"], told["x"]["model"]) == (served.name, SERVED)


@pytest.mark.shows("G24")
@pytest.mark.parametrize("path", [CHAT, MESSAGES])
def test_g24_errors_say_the_clients_name(case: Case, path: str) -> None:
    served = case.serve(answers({"error": {"message": f"the model '{SERVED}' is too small", "type": "e"}}, status=400))
    answer = case.ask(served.name, path)
    assert answer.error["message"] == f"the model '{served.name}' is too small"
    is_told_nowhere(case, answer, served.doubles[0].port)


@pytest.mark.shows("G24")
def test_g24_an_engine_that_answers_with_another_name_yet(case: Case) -> None:
    """With each chunk another, even."""
    events = [*chat_stream("A", usage=None, model="/models/a")[:2], chunk("B", model="b"), chunk(finish="stop"), DONE]
    served = case.serve(streams(*events) if case.streamed else answers(completion("AB", model="/models/a")))
    answer = case.ask(served.name)
    assert set(names_in(answer.events if case.streamed else answer.json)) == {served.name}
    assert answer.text == "AB"


def seen_alike(answer: Answer) -> tuple[int, bytes, list[tuple[str, str]]]:
    """What must be equal when two answers may not be told apart."""
    body = answer.body.replace(answer.request_id.encode(), b"*")
    return answer.status, body, sorted((k, v) for k, v in answer.headers.items() if k not in _CHANGING)


def _about(case: Case, path: str, model: str, key: Key | None = None) -> Answer:
    more = {"input": "a", "query": "a", "documents": ["b"]} if path in (EMBEDDINGS, RERANK) else {}
    body = case.body(model, path, **more)
    if path in (EMBEDDINGS, RERANK, COUNT):
        del body["stream"]
    return case.ask(model, path, key=key, content=json.dumps(body).encode())


@pytest.mark.shows("G31")
@pytest.mark.parametrize("path", [CHAT, COMPLETIONS, MESSAGES, RESPONSES, EMBEDDINGS, RERANK, COUNT, "/tokenize"])
def test_g31_unknown_ungranted_and_unlisted_models_are_the_same_bytes(case: Case, path: str) -> None:
    hidden = case.serve(case.says("A"), name="hidden")  # of another tenant, as far as acme can know
    granted = case.serve(case.says("A"))
    narrow = create_api_key(case.house.tenant, name="narrow", allowed_models=["case-nothing"], actor=SYSTEM)
    unknown, ungranted = (_about(case, path, model) for model in (f"absent-{hidden.name}", hidden.name))
    unlisted = _about(case, path, granted.name, Key(narrow.key.pk, narrow.secret))
    assert unknown.status == 404
    if path in (MESSAGES, COUNT):
        assert unknown.json["error"]["type"] == "not_found_error"
    else:
        assert unknown.json["error"]["code"] == "model_not_found"
    assert seen_alike(unknown) == seen_alike(ungranted) == seen_alike(unlisted)
    assert hidden.received == granted.received == []  # an engine may accept any name


@pytest.mark.shows("G31")
def test_g31_the_list_of_models_tells_no_more(whole: Case) -> None:
    hidden = whole.serve(whole.says("A"), name="hidden")
    granted = whole.serve(whole.says("A"))
    listed = whole.client.get("/v1/models", headers=whole.headers())
    assert granted.name in listed.text
    assert hidden.name not in listed.text
    told = []
    for name in (hidden.name, f"absent-{hidden.name}"):
        response = whole.client.get(f"/v1/models/{name}", headers=whole.headers())
        told.append(seen_alike(Answer(response.status_code, response.headers, response.content)))
    assert told[0] == told[1]
    assert told[0][0] == 404
