"""Parsing and splicing of request bodies, against Python's own JSON parser."""

import json
import time
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from core.errors import InvalidRequest
from gateway.relay.members import DuplicateMember, MalformedJson, apply_edits, scan_members
from gateway.relay.plan import Api
from gateway.relay.splice import parse_body, splice

# No lone surrogates: they are no text, and msgspec refuses them (see test_lone_surrogates_are_refused).
text = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
scalars = (
    st.none() | st.booleans() | st.integers(-(10**30), 10**30) | st.floats(allow_nan=False, allow_infinity=False) | text
)
values = st.recursive(
    scalars, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(text, inner, max_size=4), max_leaves=12
)
names = text | st.sampled_from(["model", "messages", 'a"b', "\\", "{", "}", "[", ",", ":", "\u2028", "n"])
spaces = st.text(" \t\r\n", max_size=3)


@st.composite
def written_objects(draw: st.DrawFn) -> tuple[bytes, dict[str, Any]]:
    """A JSON object as somebody may have written it, and what it says."""
    members = draw(st.dictionaries(names, values, max_size=6))
    parts = []
    for name, value in members.items():
        ascii_only = draw(st.booleans())
        key = json.dumps(name, ensure_ascii=ascii_only)
        if name and name.isascii() and draw(st.booleans()):
            key = '"' + "".join(f"\\u{ord(character):04x}" for character in name) + '"'
        indent = draw(st.sampled_from([None, 1]))
        said = json.dumps(value, ensure_ascii=ascii_only, indent=indent)
        parts.append(draw(spaces) + key + draw(spaces) + ":" + draw(spaces) + said + draw(spaces))
    return (draw(spaces) + "{" + (",".join(parts) or draw(spaces)) + "}" + draw(spaces)).encode(), members


either_size = pytest.mark.parametrize("padding", [b"", b" " * (1 << 18)], ids=["small", "large"])
"""Large bodies are read in another way."""


@either_size
@given(written=written_objects())
def test_spans_are_where_the_members_are(padding: bytes, written: tuple[bytes, dict[str, Any]]) -> None:
    body, members = written
    spans = scan_members(body + padding)
    assert list(spans) == list(members)
    for name, (key_start, key_end, start, end) in spans.items():
        assert json.loads(body[key_start:key_end]) == name
        assert json.loads(body[start:end]) == members[name]
        assert body[key_end:start].strip() == b":"


@either_size
@given(written=written_objects(), data=st.data())
def test_a_name_given_twice_is_refused_wherever_it_stands(
    padding: bytes, written: tuple[bytes, dict[str, Any]], data: st.DataObject
) -> None:
    _, members = written
    if not members:
        return
    name = data.draw(st.sampled_from(list(members)))
    again = (name, data.draw(values | st.just(members[name])))
    pairs = list(members.items())
    pairs.insert(data.draw(st.integers(0, len(pairs))), again)
    body = "{" + ",".join(f"{json.dumps(key)}:{json.dumps(value)}" for key, value in pairs) + "}"
    with pytest.raises(DuplicateMember) as caught:
        scan_members(body.encode() + padding)
    assert caught.value.name in members


@either_size
@given(body=st.binary(max_size=30) | st.text(max_size=30).map(str.encode) | written_objects().map(lambda w: w[0][:-1]))
def test_whatever_comes_is_either_json_or_refused(padding: bytes, body: bytes) -> None:
    try:
        spans = scan_members(body + padding)
    except (MalformedJson, DuplicateMember):
        return
    assert set(spans) == set(json.loads(body))


@given(
    written_objects(),
    st.text(max_size=10),
    st.booleans(),
    st.sampled_from(["missing", None, {}, {"a": [1]}, {"include_usage": False}]),
)
def test_splicing_changes_what_it_should_and_nothing_else(
    written: tuple[bytes, dict[str, Any]], served: str, stream: bool, options: Any
) -> None:
    served = served.encode("utf-8", "ignore").decode()
    body, members = written
    ours: dict[str, Any] = {"model": "alias", "messages": [{"role": "user"}], "stream": stream}
    if options != "missing":
        ours["stream_options"] = options
    known = {*ours, "stream_options", "n", "max_tokens", "max_completion_tokens"}
    if known & set(members):
        return
    rest = body.strip()[1:].lstrip()
    separator = b"" if not members else b", "
    whole = b"{" + json.dumps(ours).encode()[1:-1] + separator + rest
    parsed = parse_body(Api.CHAT, whole)
    spliced = splice(whole, parsed, served_name=served)
    expected = {**ours, **members, "model": served}
    if stream:
        expected["stream_options"] = {**(ours.get("stream_options") or {}), "include_usage": True}
    assert json.loads(spliced) == expected
    assert spliced.endswith(rest)
    if not stream and served == "alias":
        assert spliced == whole


def test_unknown_bytes_pass_as_they_were_written() -> None:
    body = b'{ "x":1e400,"model"\t:\n"a\\u0062" , "messages":[ {"role":"" } ],"\\u00e9":"\\/","z":-0.0 }'
    spliced = splice(body, parse_body(Api.CHAT, body), served_name="s")
    assert spliced == body.replace(b'"a\\u0062"', b'"s"')


def test_what_is_read() -> None:
    body = {
        "model": "m",
        "messages": [{"role": "user"}],
        "stream": True,
        "stream_options": {"include_usage": True},
        "n": 2,
        "max_tokens": 5,
        "max_completion_tokens": 9,
    }
    parsed = parse_body(Api.CHAT, json.dumps(body).encode())
    assert (parsed.model, parsed.stream, parsed.include_usage, parsed.n) == ("m", True, True, 2)
    assert parsed.max_tokens == 9


@pytest.mark.parametrize("name", ["stream", "stream_options", "n", "max_tokens", "max_completion_tokens"])
def test_null_is_as_if_missing(name: str) -> None:
    parsed = parse_body(Api.CHAT, json.dumps({"model": "m", "messages": [{"role": "user"}], name: None}).encode())
    assert (parsed.stream, parsed.include_usage, parsed.n, parsed.max_tokens) == (False, False, 1, None)


CHAT = {"model": "m", "messages": [{"role": "user", "content": "x"}]}


@pytest.mark.parametrize(
    ("change", "param"),
    [
        ({"model": ...}, "model"),
        ({"model": None}, "model"),
        ({"model": 7}, "model"),
        ({"model": ""}, "model"),
        ({"model": ["m"]}, "model"),
        ({"messages": ...}, "messages"),
        ({"messages": None}, "messages"),
        ({"messages": []}, "messages"),
        ({"messages": {}}, "messages"),
        ({"messages": "hi"}, "messages"),
        ({"messages": ["x"]}, "messages[0]"),
        ({"messages": [{"role": "user"}, None]}, "messages[1]"),
        ({"messages": [[]]}, "messages[0]"),
        ({"messages": [{"content": "x"}]}, "messages[0].role"),
        ({"messages": [{"role": "user"}, {"role": 1}]}, "messages[1].role"),
        ({"messages": [{"role": None}]}, "messages[0].role"),
        ({"stream": "true"}, "stream"),
        ({"stream": 1}, "stream"),
        ({"stream_options": []}, "stream_options"),
        ({"stream_options": "x"}, "stream_options"),
        ({"stream_options": {"include_usage": 1}}, "stream_options.include_usage"),
        ({"n": 0}, "n"),
        ({"n": 129}, "n"),
        ({"n": 1.5}, "n"),
        ({"n": True}, "n"),
        ({"n": "1"}, "n"),
        ({"max_tokens": -1}, "max_tokens"),
        ({"max_tokens": "5"}, "max_tokens"),
        ({"max_tokens": 10**40}, "max_tokens"),
        ({"max_completion_tokens": []}, "max_completion_tokens"),
    ],
)
def test_what_is_wrong_is_named(change: dict[str, Any], param: str) -> None:
    body = {name: value for name, value in {**CHAT, **change}.items() if value is not ...}
    with pytest.raises(InvalidRequest) as caught:
        parse_body(Api.CHAT, json.dumps(body).encode())
    assert caught.value.param == param
    assert param in caught.value.message


@pytest.mark.parametrize("prompt", [..., None, {}, 5, [], [{}], [None]])
def test_completions_want_a_prompt(prompt: Any) -> None:
    body = {"model": "m"} if prompt is ... else {"model": "m", "prompt": prompt}
    with pytest.raises(InvalidRequest) as caught:
        parse_body(Api.COMPLETIONS, json.dumps(body).encode())
    assert caught.value.param == "prompt"
    for good in ("", "x", ["x"], [1, 2]):
        parse_body(Api.COMPLETIONS, json.dumps({"model": "m", "prompt": good}).encode())


@either_size
@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"[]",
        b"null",
        b'"x"',
        b"{}{}",
        b'{"model": "m",}',
        b"{'model': 'm'}",
        b'{"model": NaN}',
        b'\xef\xbb\xbf{"model": "m"}',
        '{"model": "m"}'.encode("utf-16"),
        b'{"model": "m", "messages": ["\xff"]}',
        b'{"model": "m", "messages": ["\xed\xa0\x80"]}',
        b'{"model": "m", "messages": ["' + "é".encode() * 40_000 + b'\xc3"]}',
        b'{"model": "m", "messages": ' + b"[" * 100_000 + b"]" * 100_000 + b"}",
    ],
)
def test_what_is_no_json_object_is_refused(body: bytes, padding: bytes) -> None:
    with pytest.raises(InvalidRequest) as caught:
        parse_body(Api.CHAT, body + padding)
    assert caught.value.status == 400


def test_duplicates_are_refused_by_name() -> None:
    with pytest.raises(InvalidRequest) as caught:
        parse_body(Api.CHAT, b'{"model": "a", "messages": [{"role": "user"}], "m\\u006fdel": "b"}')
    assert caught.value.param == "model"
    with pytest.raises(InvalidRequest) as caught:
        parse_body(
            Api.CHAT,
            b'{"model": "a", "messages": [{"role": ""}], '
            b'"stream_options": {"include_usage": true, "include_usage": false}}',
        )
    assert caught.value.param == "stream_options"


def test_lone_surrogates_are_refused() -> None:
    with pytest.raises(InvalidRequest):
        parse_body(Api.CHAT, b'{"model": "m", "messages": [{"role": "\\ud800"}]}')


@settings(deadline=None)
@given(st.sampled_from(['"' + "\\\\" * 500_000 + '"', "[" + "0," * 500_000 + "0]", '"' + "é" * 500_000 + '"']))
def test_time_is_linear_in_the_body(large: str) -> None:
    messages = f'[{{"role": "user", "content": {large}}}]'
    body = f'{{"model": "m", "messages": {messages}, {json.dumps("k" * 500_000)}: 1, "stream": true}}'.encode()
    began = time.process_time()
    parsed = parse_body(Api.CHAT, body)
    assert len(splice(body, parsed, served_name="s")) > len(body)
    assert time.process_time() - began < 2.0  # some milliseconds; quadratic would be minutes


def test_edits_apply_in_order_of_place() -> None:
    assert apply_edits(b"abcdef", [(4, 5, b"X"), (0, 1, b""), (2, 2, b"--")]) == b"b--cdXf"


def test_a_body_of_very_many_members_is_refused_before_they_are_looked_at() -> None:
    body = b'{"model":"m","messages":[{"role":"user"}],' + b",".join(b'"a%d":1' % n for n in range(1 << 18)) + b"}"
    started = time.process_time()
    with pytest.raises(InvalidRequest, match="more than 1024 members"):
        parse_body(Api.CHAT, body)
    assert time.process_time() - started < 0.1


def test_options_of_very_many_members_are_refused() -> None:
    options = b"{" + b",".join(b'"a%d":1' % n for n in range(1025)) + b"}"
    body = b'{"model":"m","messages":[{"role":"user"}],"stream":true,"stream_options":' + options + b"}"
    with pytest.raises(InvalidRequest) as caught:
        parse_body(Api.CHAT, body)
    assert caught.value.param == "stream_options"
