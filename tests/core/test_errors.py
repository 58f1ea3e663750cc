"""The one tree of errors and its one rendering."""

import json
from collections.abc import Iterator

import pytest

from core import errors
from core.errors import GatehouseError, InvalidApiKey, error_headers, render_openai, render_openai_event


def _all(cls: type[GatehouseError]) -> Iterator[type[GatehouseError]]:
    yield cls
    for child in cls.__subclasses__():
        yield from _all(child)


@pytest.mark.parametrize("cls", [cls for cls in _all(GatehouseError) if cls.__module__ == errors.__name__])
def test_every_error_has_openais_shape(cls: type[GatehouseError]) -> None:
    body = json.loads(render_openai(cls(param="model")))
    assert set(body) == {"error"}
    assert set(body["error"]) == {"message", "type", "param", "code"}
    assert body["error"]["param"] == "model"
    assert body["error"]["message"]
    assert 400 <= cls.status <= 599


def test_event_ends_with_an_empty_line_and_no_done() -> None:
    event = render_openai_event(GatehouseError("broken"))
    assert event.startswith(b"data: {")
    assert event.endswith(b"}\n\n")
    assert b"[DONE]" not in event


def test_a_401_says_how_to_authenticate() -> None:
    assert (b"www-authenticate", b'Bearer realm="gatehouse"') in error_headers(InvalidApiKey())


@pytest.mark.parametrize(("seconds", "header"), [(0.2, b"1"), (1.4, b"2"), (30.0, b"30")])
def test_retry_after_is_whole_seconds_and_never_zero(seconds: float, header: bytes) -> None:
    assert (b"retry-after", header) in error_headers(GatehouseError(retry_after_seconds=seconds))
