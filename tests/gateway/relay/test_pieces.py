"""A piece of text that is told by its form is told as one that is read in full."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.relay.completion import CompletionStream
from gateway.relay.pieces import Pieces
from tests.doubles.engine import DONE

TEXT = st.one_of(
    st.text(max_size=12), st.sampled_from(["", "a", '"', "\\", 'x"}', "\n", "é", "\u2028", '","text":"b', "data: "])
)


def chunk(delta: Any, *, created: int = 1, model: str = "served", index: int = 0, **more: Any) -> dict[str, Any]:
    choice = {"index": index, "delta": delta, "finish_reason": more.pop("finish", None)}
    return {"id": "c", "created": created, "model": model, "choices": [choice], **more}


CHUNKS = st.one_of(
    TEXT.map(lambda text: chunk({"content": text})),
    TEXT.map(lambda text: chunk({"content": text})),
    TEXT.map(lambda text: chunk({"role": "assistant", "content": text})),
    st.tuples(TEXT, st.integers(1, 2)).map(lambda pair: chunk({"content": pair[0]}, created=pair[1])),
    st.tuples(TEXT, st.integers(0, 1)).map(lambda pair: chunk({"content": pair[0]}, index=pair[1])),
    TEXT.map(lambda text: chunk({"reasoning_content": text})),
    TEXT.map(lambda text: chunk({"content": text, "text": text})),
    TEXT.map(lambda text: chunk({"content": text}, finish="stop")),
    TEXT.map(lambda text: chunk({"content": text}, usage={"prompt_tokens": 1, "completion_tokens": 2})),
    TEXT.map(lambda text: chunk({"content": "x", "tool_calls": [{"index": 0, "id": text}]})),
    TEXT.map(lambda text: {"model": "served", "choices": [{"index": 0, "text": text}]}),
    TEXT.map(lambda text: chunk({"content": "a"}, error=text)),
)


def stream_of(chunks: list[dict[str, Any]], *, spaced: bool) -> bytes:
    separators = (", ", ": ") if spaced else (",", ":")
    lines = [json.dumps(c, separators=separators, ensure_ascii=False).encode() for c in chunks]
    return b"".join(b"data: " + line + b"\n\n" for line in lines) + DONE


def _parts(data: bytes, size: int) -> list[bytes]:
    """Cut anywhere; or, for a negative size, between events, so many in a part."""
    if size > 0:
        return [data[start : start + size] for start in range(0, len(data), size)]
    events = [event + b"\n\n" for event in data.split(b"\n\n")[:-1]]
    return [b"".join(events[start : start - size]) for start in range(0, len(events), -size)]


def told(data: bytes, client: str, size: int) -> tuple[Any, ...]:
    stream = CompletionStream(client_model=client, drop_usage=True)
    out = b""
    for part in _parts(data, size):
        piece = stream.piece(part)
        out += b"".join(stream.take(part)) if piece is None else piece
        if stream.over:
            break
    return out, stream.content_events, stream.progress, stream.finish_reasons, stream.usage, stream.error, stream.done


@given(
    chunks=st.lists(CHUNKS, max_size=30),
    spaced=st.booleans(),
    client=st.sampled_from(["served", "alias", 'a"b']),
    size=st.one_of(st.integers(1, 400), st.integers(-6, -1)),
)
def test_by_its_form_as_in_full(chunks: list[dict[str, Any]], spaced: bool, client: str, size: int) -> None:
    data = stream_of(chunks, spaced=spaced)
    by_form = told(data, client, size)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Pieces, "told", lambda *_: None)
        patch.setattr(Pieces, "told_run", lambda *_: None)
        assert by_form == told(data, client, size)


def test_it_is_used() -> None:
    pieces = Pieces()
    event, other = (b'data: {"model":"m","choices":[{"delta":{"content":"%b"}}]}\n\n' % text for text in (b"a", b"bc"))
    renamed = event.replace(b'"m"', b'"alias"')
    assert pieces.told(event) is None
    pieces.learn(event, renamed)
    assert pieces.told(other) == other.replace(b'"m"', b'"alias"')


def test_a_run_of_them_is_told_at_once() -> None:
    pieces = Pieces()
    first, second, odd = (
        b'data: {"model":"m","choices":[{"delta":{"content":"%b"}}]}\n\n' % text for text in (b"a", b"bc", b'd","x":"')
    )
    pieces.learn(first, first.replace(b'"m"', b'"alias"'))
    assert pieces.told_run(first + second + second) == ((first + second + second).replace(b'"m"', b'"alias"'), 3)
    for other in (first + odd, odd + first, first + b": ping\n\n" + first, first + first[:-1], first + first + b"\n"):
        assert pieces.told_run(other) is None


@pytest.mark.parametrize("letters", [b"", b'"', b"\\n", b"\n", b"\x00", b'x","y":"z'])
def test_anything_but_letters_is_read_in_full(letters: bytes) -> None:
    pieces = Pieces()
    event = b'data: {"choices":[{"delta":{"content":"a"}}]}\n\n'
    pieces.learn(event, event)
    assert pieces.told(event) == event
    assert pieces.told(event.replace(b'"a"', b'"' + letters + b'"')) is None


def test_a_form_that_changes_is_learned_ever_more_rarely() -> None:
    pieces = Pieces()
    learned = 0
    for number in range(200):
        event = b'data: {"created":%d,"choices":[{"delta":{"content":"a"}}]}\n\n' % number
        assert pieces.told(event) is None
        pieces.learn(event, event)
        learned += pieces.told(event) is not None and pieces._until_learning == pieces._wait // 2
    assert learned < 10
