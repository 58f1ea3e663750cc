"""Both doors, as real processes, write the same line about a request: its id, whose, how it ended, how long it took."""

import json
from typing import Any

import pytest

from bench.house import wait_until
from tests.gateway.two_doors import CHAT, chat
from tests.house import TestHouse

TRACE = "0af7651916cd43dd8448eb211c80319c"


@pytest.fixture(scope="module")
def house_more() -> dict[str, str]:
    return {"GATEHOUSE_REQUEST_LOG": "all", "GATEHOUSE_LOG_LEVEL": "INFO"}


@pytest.fixture(scope="module", autouse=True)
def _written(house: TestHouse) -> None:
    house.start("web")


def _line(house: TestHouse, door: str, request_id: str) -> dict[str, Any]:
    found: list[dict[str, Any]] = []

    def written() -> bool:
        lines = [json.loads(line) for line in house.log(door).read_text().splitlines() if line.startswith("{")]
        found[:] = [line for line in lines if line["event"] == "request" and line["request_id"] == request_id]
        return bool(found)

    wait_until(written, f"a line about {request_id}")
    assert len(found) == 1
    return found[0]


@pytest.mark.shows("R134")
@pytest.mark.parametrize("door", ["relay", "web"])
@pytest.mark.parametrize(("model", "status"), [("tiny", 200), ("hidden", 404)])
def test_a_request_is_one_line_at_each_door(house: TestHouse, door: str, model: str, status: int) -> None:
    with house.client(door=door) as client:
        headers = {"traceparent": f"00-{TRACE}-b7ad6b7169203331-01"}
        answer = client.post(CHAT, json={**chat(), "model": model}, headers=headers)
    assert answer.status_code == status
    line = _line(house, door, answer.headers["x-request-id"])
    assert (line["status_code"], line["tenant"], line["trace_id"]) == (status, "acme", TRACE)
    assert line["duration_ms"] > 0
    assert house.key.secret not in str(line)
