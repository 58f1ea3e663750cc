"""The Open Inference Protocol: what is refused before an engine sees it, and what passes untouched."""

import json
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from core.errors import InvalidRequest, NotFound
from core.ids import uuid7
from gateway.relay.dialects.infer import infer_work
from gateway.relay.plan import Api, Headers, SlimRequest
from gateway.relay.routes import api_near, find_infer, posted_api
from gateway.relay.splice import splice

TENSOR = {"name": "input0", "shape": [2, 2], "datatype": "UINT32", "data": [1, 2, 3, 4]}


def slim(body: bytes | dict[str, Any], path: str = "/v2/models/m/infer", headers: Headers = ()) -> SlimRequest:
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    return SlimRequest(uuid7(), Api.INFER, path, headers, data, 0.0)


@pytest.mark.parametrize(
    ("path", "found"),
    [
        ("/v2/models/m/infer", ("m", "")),
        ("/v2/models/m/versions/3/infer", ("m", "3")),
        ("/v2/models/org/m/infer", ("org/m", "")),
        ("/v2/models/versions/infer", ("versions", "")),
        ("/v2/models/infer/infer", ("infer", "")),
        ("/v2/models/m", None),
        ("/v2/models//infer", None),
        ("/v2/models/m/infer/", None),
        ("/v1/models/m/infer", None),
    ],
)
def test_whom_an_address_asks(path: str, found: tuple[str, str] | None) -> None:
    assert find_infer(path) == found
    assert (posted_api(path) is Api.INFER) == (found is not None)
    assert (api_near(path) is Api.INFER) == path.startswith("/v2/")


def test_the_body_passes_untouched() -> None:
    body = b'{ "id":"4\\u00322", "inputs" :\t[{"data":[1.0e0,2]}], "unknown":{"a":1} }'
    work = infer_work(slim(body, "/v2/models/org/m/versions/1 2/infer"))
    assert (work.api, work.path, work.parsed.model) == (Api.INFER, "/versions/1%202/infer", "org/m")
    assert work.body is body
    assert splice(work.body, work.parsed, served_name="served") is body


@pytest.mark.parametrize(
    ("body", "param"),
    [
        (b"", None),
        (b"[]", None),
        (b'{"inputs":[],"inputs":[]}', None),
        (b'{"inputs":["\xff"]}', None),
        ({}, "inputs"),
        ({"inputs": None}, "inputs"),
        ({"inputs": {}}, "inputs"),
        ({"inputs": [TENSOR], "parameters": []}, "parameters"),
        ({"inputs": [TENSOR], "outputs": {}}, "outputs"),
        ({"inputs": [TENSOR], "parameters": {"binary_data_output": True}}, None),
        ({"inputs": [TENSOR], "outputs": [{"name": "o"}, {"name": "p", "parameters": {"binary_data": True}}]}, None),
        (b'{"inputs":[],"parameters":{"binary_dat\\u0061_output":1}}', None),
    ],
)
def test_what_is_refused(body: bytes | dict[str, Any], param: str | None) -> None:
    with pytest.raises(InvalidRequest) as refused:
        infer_work(slim(body))
    assert refused.value.param == param


@pytest.mark.parametrize(
    "more",
    [
        {"parameters": None, "outputs": None},
        {"parameters": {"binary_data_output": False, "x": [1]}},
        {"outputs": [{"name": "o", "parameters": {"binary_data": False, "classification": 2}}, {"name": "p"}]},
    ],
)
def test_other_parameters_pass(more: dict[str, Any]) -> None:
    assert infer_work(slim({"inputs": [TENSOR], **more})).parsed.model == "m"


def test_binary_tensors_are_refused_with_a_sentence() -> None:
    with pytest.raises(InvalidRequest, match="without Inference-Header-Content-Length"):
        infer_work(slim({"inputs": []}, headers=[(b"inference-header-content-length", b"12")]))


def test_another_address_is_none() -> None:
    with pytest.raises(NotFound):
        infer_work(slim({"inputs": []}, "/v2/models/m"))


@pytest.mark.parametrize(
    ("said", "told"),
    [
        (b'{"model_name":"served","outputs":[]}', b'{"model_name":"m","outputs":[]}'),
        (b'{ "outputs":[{"model_name":"x"}],\n"model_name" : "served" }',
         b'{ "outputs":[{"model_name":"x"}],\n"model_name" : "m" }'),
        (b'{"outputs":[]}', b'{"outputs":[]}'),
    ],
)  # fmt: skip
async def test_the_answer_names_the_model_as_the_client_does(said: bytes, told: bytes) -> None:
    dialect = infer_work(slim({"inputs": []})).dialect
    assert dialect is not None
    assert await dialect.whole(said) == told


NUMBERS = st.integers() | st.floats(allow_nan=False, allow_infinity=False)


@given(outputs=st.recursive(st.none() | NUMBERS | st.text(), st.lists))
def test_whatever_is_answered_stays_but_for_the_name(outputs: Any) -> None:
    dialect = infer_work(slim({"inputs": []}, "/v2/models/gr\u00fc\u00df/infer")).dialect
    assert dialect is not None
    coroutine = dialect.whole(json.dumps({"model_name": "s", "outputs": outputs}).encode())
    with pytest.raises(StopIteration) as ended:
        coroutine.send(None)  # nothing in it waits
    assert msgspec.json.decode(ended.value.value) == {"model_name": "gr\u00fc\u00df", "outputs": outputs}


@pytest.mark.parametrize("said", [b"", b"[]", b"\x00\x01", b'{"model_name":"a","model_name":"b"}'])
async def test_nonsense_is_no_answer(said: bytes) -> None:
    dialect = infer_work(slim({"inputs": []})).dialect
    assert dialect is not None
    with pytest.raises(ValueError, match=r".+"):
        await dialect.whole(said)
