"""Tensors through both doors: a server of the Open Inference Protocol behind them, and what it is asked."""

import json
from collections.abc import Iterator
from functools import partial
from typing import Any, Final

import pytest

from bench.house import wait_until
from bench.rows import attach, set_engine_health
from gpupool.services import attach_engine
from tenants.actor import SYSTEM
from tenants.services import grant_model
from tests.doubles.engine import Received, Wire, answers
from tests.gateway.test_two_doors_engine import NotingEngine
from tests.gateway.two_doors import Ask, Doors, comparable
from tests.gateway.two_doors import doors as doors
from tests.gateway.two_doors import house_more as house_more
from tests.house import house as house
from tests.ports import free_port

TENSOR: Final = {"name": "input0", "shape": [1, 2], "datatype": "FP32", "data": [1.0, 2.5]}
BODY: Final = b'{ "id" : "42", "inputs":' + json.dumps([TENSOR]).encode() + b', "unknown" : null }'
INFER: Final = "/v2/models/tensors/infer"


class TensorServer(NotingEngine):
    """Answers with what it was asked; input named `fail` is an error of its own."""

    async def _answer(self, request: Received, wire: Wire) -> None:
        if request.json["inputs"] and request.json["inputs"][0]["name"] == "fail":
            await answers({"error": "unknown input of resnet50-v2"}, status=400)(request, wire)
            return
        outputs = [{"name": "output0", "shape": [1], "datatype": "FP32", "data": [3.5]}]
        said = {"model_name": "resnet50-v2", "model_version": "1", "id": request.json.get("id"), "outputs": outputs}
        await answers(said)(request, wire)


def _answers(doors: Doors, door: str, ask: Ask) -> bool:
    return doors.send(door, ask).status_code == 200


@pytest.fixture(scope="module")
def server(doors: Doors) -> Iterator[TensorServer]:
    noting = TensorServer()
    attached = attach_engine(
        f"http://127.0.0.1:{noting.start()}",
        engine="kserve",
        model_name="tensors",
        served_name="resnet50-v2",
        actor=SYSTEM,
    )
    set_engine_health(attached.instance, healthy=True)
    attach("cold-tensors", free_port(), engine="kserve", ready=False)
    for name in ("tensors", "cold-tensors"):
        grant_model(doors.house.tenant, model_pattern=name, actor=SYSTEM)
    ready = Ask("ready", "/v2/models/tensors/ready", method="GET")
    for door in ("relay", "web"):
        wait_until(partial(_answers, doors, door, ready), f"the {door} knows the model")
    yield noting
    noting.stop()


@pytest.mark.shows("R52")
@pytest.mark.parametrize(
    ("path", "seen"),
    [
        (INFER, "/v2/models/resnet50-v2/infer"),
        ("/v2/models/tensors/versions/1/infer", "/v2/models/resnet50-v2/versions/1/infer"),
    ],
)
def test_an_inference(doors: Doors, server: TensorServer, path: str, seen: str) -> None:
    told = {}
    for door in ("relay", "web"):
        response = doors.send(door, Ask("infer", path, body=BODY))
        assert (server.last.method, server.last.path, server.last.body) == ("POST", seen, BODY)
        answer: Any = response.json()
        assert (answer["model_name"], answer["id"], answer["outputs"][0]["data"]) == ("tensors", "42", [3.5])
        row = doors.house.ledger_row(response.headers["x-request-id"])
        assert (row.api, row.model, row.outcome, row.usage_source) == ("infer", "tensors", "success", "none")
        assert (row.input_tokens, row.output_tokens, row.streamed) == (None, None, False)
        told[door] = comparable(response)
    assert told["relay"] == told["web"]


@pytest.mark.parametrize(
    ("ask", "status", "sentence"),
    [
        (Ask("no inputs", INFER, body={}), 400, "'inputs'"),
        (Ask("no JSON", INFER, body=b"\x00"), 400, "not valid"),
        (
            Ask("binary", INFER, body=BODY, headers={"Inference-Header-Content-Length": "10"}),
            400,
            "Binary tensors are not supported",
        ),
        (Ask("its own refusal", INFER, body={"inputs": [{**TENSOR, "name": "fail"}]}), 400, "unknown input of tensors"),
        (Ask("no key", INFER, body=BODY, key=""), 401, "No API key"),
        (Ask("revoked", INFER, body=BODY, key="revoked"), 401, "API key"),
        (Ask("no right", INFER, body=BODY, key="unscoped"), 403, "lacks the scope 'infer'"),
        (Ask("no such model", "/v2/models/none/infer", body=BODY), 404, "does not exist"),
        (Ask("not granted", "/v2/models/hidden/infer", body=BODY), 404, "does not exist"),
        (Ask("no tensors", "/v2/models/tiny/infer", body=BODY), 400, "does not support infer"),
        (Ask("not ready", "/v2/models/cold-tensors/infer", body=BODY), 503, ""),
        (Ask("another method", INFER, "PUT", body=BODY), 405, "not allowed"),
        (Ask("another method of a model", "/v2/models/tensors", "POST", body=BODY), 405, "not allowed"),
        (Ask("nowhere", "/v2/else", "GET"), 404, "nothing at this address"),
    ],
    ids=lambda value: value.name if isinstance(value, Ask) else "",
)
def test_refusals_are_sentences(doors: Doors, server: TensorServer, ask: Ask, status: int, sentence: str) -> None:
    by_relay, by_web = (comparable(doors.send(door, ask)) for door in ("relay", "web"))
    assert by_relay == by_web
    assert by_relay[0] == status
    told = json.loads(by_relay[1])
    assert list(told) == ["error"]
    assert sentence in told["error"]


@pytest.mark.parametrize(
    ("path", "key", "status", "body"),
    [
        ("/v2", "", 200, {"name": "gatehouse", "version": "2", "extensions": []}),
        ("/v2/health/live", "", 200, {"live": True}),
        ("/v2/health/ready", "", 200, {"live": True, "ready": True}),
        ("/v2/models/tensors", "valid", 200, {"name": "tensors", "platform": "gatehouse"}),
        ("/v2/models/tensors/ready", "valid", 200, {"name": "tensors", "ready": True}),
        ("/v2/models/tensors/versions/1/ready", "valid", 200, {"name": "tensors", "ready": True}),
        ("/v2/models/cold-tensors/ready", "valid", 503, None),
        ("/v2/models/hidden/ready", "valid", 404, None),
        ("/v2/models/tiny", "valid", 400, None),
        ("/v2/models/tensors/ready", "", 401, None),
    ],
)
def test_questions(
    doors: Doors, server: TensorServer, path: str, key: str, status: int, body: dict[str, Any] | None
) -> None:
    by_relay, by_web = (doors.send(door, Ask("question", path, "GET", key=key)) for door in ("relay", "web"))
    assert (by_relay.status_code, by_relay.content) == (by_web.status_code, by_web.content)
    assert by_relay.status_code == status
    assert by_relay.json() == body if body is not None else list(by_relay.json()) == ["error"]


def test_the_schema_describes_it(doors: Doors, server: TensorServer) -> None:
    with doors.house.client("", door="web") as client:
        schema = client.get("/api/schema", headers={"accept": "application/vnd.oai.openapi+json"}).text
    assert "/v2/models/{name}/infer" in schema
    assert "InferError" in schema
