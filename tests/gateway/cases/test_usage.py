"""What is written down of a request: usage by one rule, whatever the endpoint and however it ends (G2, G8, G16)."""

import json
from typing import Any, Final

import pytest

from bench.house import wait_until
from tests.doubles.engine import DONE, Script, Wire, answers, chunk, completion, event, streams
from tests.gateway.cases.desk import CHAT, MESSAGES, RESPONSES, SERVED, Case

COUNTS: Final = {
    "prompt_tokens": 11,
    "completion_tokens": 5,
    "total_tokens": 16,
    "prompt_tokens_details": {"cached_tokens": 4},
}


def counting(case: Case, usage: object) -> Script:
    """An answer of two words that says this of its usage; "absent": nothing."""
    if not case.streamed:
        body = completion("A B", usage=None, model=SERVED)
        return answers(body if usage == "absent" else {**body, "usage": usage})
    last = event(json.dumps({"id": "x", "model": SERVED, "choices": [], "usage": usage}).encode())
    said = [] if usage == "absent" else [last]
    return streams(chunk(role=True), chunk("A "), chunk("B"), chunk(finish="stop"), *said, DONE)


@pytest.mark.parametrize("path", [CHAT, MESSAGES, RESPONSES])
def test_g02_usage_of_every_dialect_is_one_usage(case: Case, path: str) -> None:
    served = case.serve(counting(case, COUNTS))
    answer = case.ask(served.name, path)
    assert answer.status == 200, answer.body
    row = case.row(answer)
    assert (row.input_tokens, row.cached_tokens, row.output_tokens) == (11, 4, 5)
    assert (row.usage_source, row.streamed, row.outcome) == ("engine", case.streamed, "success")


@pytest.mark.parametrize(
    ("path", "members", "said"),
    [
        ("/v1/embeddings", {"input": ["a"]}, {"prompt_tokens": 3, "total_tokens": 3}),
        ("/v1/embeddings", {"input": ["a"]}, {"prompt_tokens": 3, "completion_tokens": 0, "total_tokens": 3}),
        ("/v1/rerank", {"query": "a", "documents": ["b"]}, {"total_tokens": 3}),
    ],
)
def test_g02_usage_of_what_only_takes_in(whole: Case, path: str, members: dict[str, Any], said: object) -> None:
    data = {"data": [{"index": 0, "embedding": [0.5]}], "results": [{"index": 0, "relevance_score": 0.5}]}
    served = whole.serve(answers({"model": SERVED, **data, "usage": said}))
    content = json.dumps({"model": served.name, **members}).encode()
    answer = whole.ask(served.name, path, content=content)
    assert answer.status == 200, answer.body
    row = whole.row(answer)
    assert (row.usage_source, row.input_tokens, row.output_tokens or 0) == ("engine", 3, 0)
    assert row.api == path.removeprefix("/v1/")


@pytest.mark.shows("G8")
@pytest.mark.parametrize("said", [(7, 0), (0, 0)])
def test_g08_zero_is_not_missing(case: Case, said: tuple[int, int]) -> None:
    served = case.serve(counting(case, {"prompt_tokens": said[0], "completion_tokens": said[1]}))
    row = case.row(case.ask(served.name))
    assert (row.usage_source, row.input_tokens, row.output_tokens) == ("engine", *said)


@pytest.mark.shows("G8")
@pytest.mark.parametrize(
    "said",
    [
        "absent",
        None,
        {},
        {"prompt_tokens": -1, "completion_tokens": -7},
        {"prompt_tokens": 7, "completion_tokens": 10**12},
        "many",
    ],
)
def test_g08_what_is_missing_or_a_lie_is_estimated_and_marked(case: Case, said: object) -> None:
    served = case.serve(counting(case, said))
    row = case.row(case.ask(served.name))
    assert (row.outcome, row.usage_source) == ("success", "estimated")
    prompt = len(json.dumps([{"role": "user", "content": "Hello"}]))
    message = len(json.dumps("A B"))
    assert row.input_tokens == -(-prompt // 4)
    assert row.output_tokens == (2 if case.streamed else -(-message // 4))


@pytest.mark.shows("G8")
@pytest.mark.parametrize("end", ["the client leaves", "the engine dies"])
@pytest.mark.parametrize("counted", [False, True], ids=["not counted", "counted as it goes"])
def test_g08_an_aborted_stream_is_worth_what_was_told(streamed: Case, end: str, counted: bool) -> None:
    async def die(wire: Wire) -> None:
        wire.die()

    last = {"id": "x", "choices": [{"index": 0, "delta": {"content": "C"}}], "usage": COUNTS if counted else None}
    pieces = (chunk(role=True), chunk("A"), chunk("B"), event(json.dumps(last).encode()))
    served = streamed.serve(streams(*pieces, then=die if end == "the engine dies" else Wire.stall))
    if end == "the engine dies":
        assert streamed.ask(served.name).status == 200
    else:
        body = streamed.body(served.name)
        with streamed.client.stream("POST", CHAT, json=body, headers=streamed.headers()) as response:
            said = response.iter_text()
            told = next(said)
            while '"C"' not in told:
                told += next(said)
    row = streamed.row_of(served.name)
    assert row.outcome == ("truncated" if end == "the engine dies" else "cancelled")
    assert (row.usage_source, row.output_tokens) == (("engine", 5) if counted else ("estimated", 3))


@pytest.mark.shows("G16")
@pytest.mark.parametrize("usage", [(7, 4), None], ids=["counted", "not counted"])
def test_g16_two_choices_keep_their_index_and_both_are_counted(case: Case, usage: tuple[int, int] | None) -> None:
    def part(index: int, text: str | None, finish: str | None = None) -> bytes:
        choice = {"index": index, "delta": {"content": text} if text else {}, "finish_reason": finish}
        return event(json.dumps({"id": "x", "model": SERVED, "choices": [choice]}).encode())

    parts = [part(0, "A"), part(1, "B"), part(1, "C"), part(0, "D"), part(1, None, "stop"), part(0, None, "length")]
    body = completion("AD", usage=usage, model=SERVED)
    body["choices"].append({"index": 1, "message": {"role": "assistant", "content": "BC"}, "finish_reason": "stop"})
    counted = [chunk(usage=usage, model=SERVED)] if usage else []
    served = case.serve(streams(*parts, *counted, DONE) if case.streamed else answers(body))
    answer = case.ask(served.name, n=2)
    texts = {0: "", 1: ""}
    for told in answer.events if case.streamed else [answer.json]:
        for choice in told["choices"]:
            texts[choice["index"]] += choice["delta" if case.streamed else "message"].get("content", "")
    assert texts == {0: "AD", 1: "BC"}
    assert served.received[0].json["n"] == 2
    row = case.row(answer)
    if usage:
        assert (row.usage_source, row.output_tokens) == ("engine", 4)
    else:
        of_both = sum(len(json.dumps(text)) for text in ("AD", "BC"))
        assert (row.usage_source, row.output_tokens) == ("estimated", 4 if case.streamed else -(-of_both // 4))


@pytest.mark.shows("G16")
def test_g16_a_stream_is_not_whole_until_both_have_ended(streamed: Case) -> None:
    served = streamed.serve(streams(chunk("A"), chunk(finish="stop")))
    answer = streamed.ask(served.name, n=2)
    assert answer.error["code"] == "upstream_error"
    wait_until(lambda: streamed.row(answer).outcome == "truncated", "it is written down as cut")
