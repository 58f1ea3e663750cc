"""Frames cut anywhere, texts that grow, and the one renderer of the token stream."""

import json
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpupool.engines.deltas import Chunks, Delta, Done, EngineFailure, Growth, Step, ToolCall
from gpupool.engines.frames import Frames, FrameTooLarge, JsonLines, SseData

CUTS = st.lists(st.integers(0, 400), max_size=8)
VALUES = st.lists(st.dictionaries(st.sampled_from("abc"), st.text(max_size=8), max_size=2), max_size=6)


def cut(sent: bytes, cuts: list[int]) -> list[bytes]:
    places = sorted({0, len(sent), *(place % (len(sent) + 1) for place in cuts)})
    return [sent[start:end] for start, end in pairwise(places)]


def read(frames: Frames, pieces: list[bytes]) -> list[bytes]:
    return [*(frame for piece in pieces for frame in frames.feed(piece)), *frames.rest()]


@pytest.mark.shows("R127")
@given(VALUES, st.sampled_from([b"\n", b"\r\n", b"\0", b"\n\n"]), CUTS, st.booleans())
def test_json_lines_are_the_same_however_they_are_cut(
    values: list[dict[str, str]], end: bytes, cuts: list[int], ended: bool
) -> None:
    sent = b"".join(json.dumps(value, ensure_ascii=False).encode() + end for value in values)
    if not ended:
        sent = sent.removesuffix(end)
    assert [json.loads(frame) for frame in read(JsonLines(), cut(sent, cuts))] == values


@pytest.mark.shows("R127")
@given(VALUES, st.sampled_from([b"\n", b"\r\n", b"\r"]), CUTS, st.booleans(), st.sampled_from([b"data: ", b"data:"]))
def test_events_are_the_same_however_they_are_cut(
    values: list[dict[str, str]], end: bytes, cuts: list[int], ended: bool, field: bytes
) -> None:
    noise = b": comment" + end + b"event: x" + end + b"id" + end
    sent = b"".join(
        noise + field + json.dumps(value, ensure_ascii=False).encode() + end + end + end for value in values
    )
    if not ended:
        sent = sent[: len(sent) - 2 * len(end)]
    assert [json.loads(frame) for frame in read(SseData(), cut(sent, cuts))] == values


@given(st.binary(max_size=300), CUTS)
def test_any_bytes_are_cut_alike(sent: bytes, cuts: list[int]) -> None:
    assert read(SseData(), cut(sent, cuts)) == read(SseData(), [sent])
    assert read(JsonLines(), cut(sent, cuts)) == read(JsonLines(), [sent])


def test_data_over_several_lines_is_joined() -> None:
    assert SseData().feed(b"data: a\ndata:b\n\ndata\n\n") == [b"a\nb", b""]


@pytest.mark.parametrize(
    ("frames", "piece"), [(JsonLines(100), b"xxxxxxxx"), (SseData(100), b"xxxxxxxx"), (SseData(100), b"data: xxxxx\n")]
)
def test_a_frame_without_end_is_bounded(frames: Frames, piece: bytes) -> None:
    def feed_on() -> None:
        for _ in range(50):
            frames.feed(piece)

    with pytest.raises(FrameTooLarge):
        feed_on()


@given(st.text(max_size=40), st.lists(st.integers(0, 40), max_size=6), st.text(max_size=5))
def test_a_text_that_grows_is_told_once(text: str, sizes: list[int], prompt: str) -> None:
    growth = Growth(prompt)
    told = [growth.grow(prompt + text[: min(size, len(text))]) for size in sorted(sizes)]
    assert "".join([*told, growth.grow(prompt + text, last=True)]) == text


def test_half_a_character_waits_for_the_other_half() -> None:
    growth = Growth()
    assert [growth.grow(text) for text in ("a", "a\ufffd", "a世")] == ["a", "", "世"]
    assert Growth().grow("a\ufffd", last=True) == "a\ufffd"


def test_another_text_than_before_is_nonsense() -> None:
    growth = Growth()
    growth.grow("Hello")
    with pytest.raises(ValueError, match="does not begin"):
        growth.grow("Help me")


STEPS: list[Step] = [
    Delta(reasoning="hm"),
    Delta("Hel"),
    Delta("lo", tool_calls=(ToolCall("c1", "f", "{}"), ToolCall("c2", "g", '{"a":1}'))),
    Delta(tool_calls=(ToolCall("c3", "h", "{}"),), finish_reason="tool_calls"),
    Done(7, 3, 2),
]


@pytest.mark.shows("R127")
def test_steps_become_chunks_and_end_with_done() -> None:
    chunks = Chunks(chat=True, model="m", identity="chatcmpl-1", created=5)
    events = [chunks.event(step) for step in STEPS]
    assert events[-1].endswith(b"\n\ndata: [DONE]\n\n")
    bodies = [json.loads(event.split(b"\n\n")[0].removeprefix(b"data: ")) for event in events]
    assert {(body["id"], body["object"], body["created"], body["model"]) for body in bodies} == {
        ("chatcmpl-1", "chat.completion.chunk", 5, "m")
    }
    assert bodies[0]["choices"][0]["delta"] == {"role": "assistant", "content": "", "reasoning_content": "hm"}
    assert bodies[1]["choices"][0]["delta"] == {"content": "Hel"}
    assert [call["index"] for body in bodies[:4] for call in body["choices"][0]["delta"].get("tool_calls", [])] == [
        0,
        1,
        2,
    ]
    assert bodies[3]["choices"][0]["finish_reason"] == "tool_calls"
    assert bodies[4]["choices"] == []
    assert bodies[4]["usage"] == {
        "prompt_tokens": 7,
        "completion_tokens": 3,
        "total_tokens": 10,
        "prompt_tokens_details": {"cached_tokens": 2},
    }


def test_the_same_steps_become_one_answer() -> None:
    body = json.loads(Chunks(chat=True, model="m", identity="chatcmpl-1", created=5).whole(STEPS))
    message = body["choices"][0]["message"]
    assert (message["content"], message["reasoning_content"]) == ("Hello", "hm")
    assert [call["function"]["name"] for call in message["tool_calls"]] == ["f", "g", "h"]
    assert (body["object"], body["usage"]["total_tokens"]) == ("chat.completion", 10)


def test_what_the_engine_does_not_count_is_not_made_up() -> None:
    chunks = Chunks(chat=False, model="m", identity="cmpl-1", created=5)
    assert chunks.event(Done()) == b"data: [DONE]\n\n"
    assert json.loads(chunks.event(Done(None, 3)).split(b"\n\n")[0][6:])["usage"] == {"completion_tokens": 3}
    assert "usage" not in json.loads(chunks.whole([Delta("a", finish_reason="stop"), Done()]))


def test_a_failure_is_an_error_and_never_an_answer() -> None:
    chunks = Chunks(chat=False, model="m", identity="cmpl-1", created=5)
    failure = EngineFailure("broken", 503)
    assert json.loads(chunks.event(failure)[6:])["error"] == {
        "message": "broken",
        "type": "server_error",
        "param": None,
        "code": 503,
    }
    assert json.loads(chunks.whole([Delta("a"), failure]))["error"]["code"] == 503
    with pytest.raises(ValueError, match="no choice"):
        chunks.whole([Done(1, 1)])
