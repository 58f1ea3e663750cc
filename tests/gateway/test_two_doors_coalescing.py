"""A hundred identical requests at once, at each door of real processes: one engine, which counts what it is asked."""

import asyncio
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import httpx2 as httpx
import pytest

from bench.house import wait_until
from bench.rows import attach, make_key, make_tenant
from gateway.relay.exchange import KEEP_ALIVE
from tenants.actor import SYSTEM
from tenants.models import UsageRecord
from tenants.services import grant_model
from tests.doubles.engine import DONE, EngineDouble, Received, Wire, answers, chat_stream, completion, streams
from tests.house import TestHouse
from tests.house import house as house

CHAT = "/v1/chat/completions"
TOGETHER = 100
COUNT = "gatehouse_coalesced_requests_total"


class PatientEngine:
    """The double on a thread of its own; it answers once it is let to."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._double = EngineDouble(self._answer)
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self.let = threading.Event()

    def start(self) -> int:
        """The port it listens on."""
        self._thread.start()
        asyncio.run_coroutine_threadsafe(self._double.__aenter__(), self._loop).result(10)
        return self._double.port

    def stop(self) -> None:
        asyncio.run_coroutine_threadsafe(self._double.stop(), self._loop).result(10)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)
        self._loop.close()

    @property
    def count(self) -> int:
        return len(self._double.received)

    async def _answer(self, request: Received, wire: Wire) -> None:
        await asyncio.to_thread(self.let.wait)
        told = streams(*chat_stream("Hal", "lo")) if request.json.get("stream") else answers(completion("Hallo"))
        await told(request, wire)


@pytest.fixture(scope="module")
def house_more() -> dict[str, str]:
    # Some are told comments: where that may not be, it shows.
    return {"GATEHOUSE_COALESCE": "deterministic", "GATEHOUSE_SSE_KEEP_ALIVE_SECONDS": "0.2"}


@pytest.fixture(scope="module")
def engine(house: TestHouse) -> Iterator[PatientEngine]:
    engine = PatientEngine()
    attach("patient", engine.start(), engine="vllm")
    grant_model(house.tenant, model_pattern="patient", actor=SYSTEM)
    house.start("web")
    with house.client() as client:
        wait_until(lambda: "patient" in client.get("/v1/models").text, "the relay knows it")
    yield engine
    engine.let.set()
    engine.stop()


def joined(house: TestHouse, door: str) -> float:
    """Requests that the engine was not asked for, as the door counts them."""
    with house.client("", door=door) as client:
        lines = client.get("/metrics").text.splitlines()
    return sum(float(line.rpartition(" ")[2]) for line in lines if line.startswith(COUNT))


@pytest.mark.shows("R88")
@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("door", ["relay", "web"])
def test_a_hundred_at_once_are_a_hundred_rows_and_at_most_three_questions(
    house: TestHouse, engine: PatientEngine, door: str, stream: bool
) -> None:
    body = {"model": "patient", "messages": [{"role": "user", "content": door}], "temperature": 0}
    asked, before = engine.count, joined(house, door)
    engine.let.clear()

    def ask(_: int) -> httpx.Response:
        with house.client(door=door, timeout=60) as client:
            return client.post(CHAT, json={**body, "stream": stream})

    with ThreadPoolExecutor(TOGETHER) as pool:
        told = [pool.submit(ask, number) for number in range(TOGETHER)]
        wait_until(lambda: joined(house, door) >= before + 97, "the others have come", seconds=50)
        engine.let.set()
        answered = [future.result(60) for future in told]
    assert engine.count - asked <= 3, "reuse of at least 97 %"
    assert {answer.status_code for answer in answered} == {200}
    # Comments that tell a client that we live are each one's own: those who came first may have waited for long.
    assert len({answer.content.replace(KEEP_ALIVE, b"") for answer in answered}) == 1
    assert not stream or answered[0].content.endswith(DONE)
    assert answered[0].content.count(b'"patient"') >= 1
    ids = {answer.headers["x-request-id"] for answer in answered}
    assert len(ids) == TOGETHER
    rows = UsageRecord.objects.filter(pk__in=ids)
    wait_until(lambda: rows.count() == TOGETHER, "a ledger row for each")
    assert {(row.door, row.outcome, row.key_id) for row in rows} == {
        ("relay" if door == "relay" else "drf", "success", house.key.id)
    }
    assert [row.usage_source for row in rows].count("engine") == engine.count - asked
    assert sum(row.output_tokens or 0 for row in rows) == 3 * (engine.count - asked)
    assert {row.usage_source for row in rows} == {"engine", "apportioned"}


def test_tenants_share_nothing(house: TestHouse, engine: PatientEngine) -> None:
    body = {"model": "patient", "messages": [{"role": "user", "content": "the same"}], "temperature": 0}
    other = make_key(make_tenant("other", models=("patient",)), "test")
    asked = engine.count
    engine.let.clear()

    def ask(secret: str) -> httpx.Response:
        with house.client(secret, timeout=60) as client:
            return client.post(CHAT, json=body)

    with ThreadPoolExecutor(4) as pool:
        told = [pool.submit(ask, secret) for secret in (house.key.secret, other.secret) * 2]
        wait_until(lambda: engine.count == asked + 2, "the engine is asked once for each tenant")
        engine.let.set()
        assert {future.result(60).status_code for future in told} == {200}
