"""The room of servers of the Open Inference Protocol: names in addresses, bodies untouched."""

import pytest

from gpupool.engines.base import CallNotSupported, OpenAICall, WireRequest
from gpupool.engines.kserve.wire import KserveWire

BODY = b'{ "inputs":[ ] }'


@pytest.mark.parametrize(
    ("served", "path", "asked"),
    [
        ("resnet50-v2", "/infer", "/v2/models/resnet50-v2/infer"),
        ("resnet50-v2", "/versions/3/infer", "/v2/models/resnet50-v2/versions/3/infer"),
        ("org/a model", "/infer", "/v2/models/org%2Fa%20model/infer"),
        ("r\u00e9seau?", "/infer", "/v2/models/r%C3%A9seau%3F/infer"),
    ],
)
def test_the_served_name_is_in_the_address(served: str, path: str, asked: str) -> None:
    translation = KserveWire().translate(OpenAICall("infer", path, BODY, served))
    assert translation is not None
    assert translation.request == WireRequest("POST", asked, BODY)
    assert translation.whole(b"{}") == b"{}"
    assert translation.end() == b""
    with pytest.raises(ValueError, match="stream"):
        translation.feed(b"data: {}\n\n")


def test_it_takes_tensors_only() -> None:
    with pytest.raises(CallNotSupported, match="tensors only"):
        KserveWire().translate(OpenAICall("chat", "/v1/chat/completions", b"{}", "m"))
