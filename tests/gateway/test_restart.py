"""A relay is restarted under load, beside another on the same port: no client notices, no ledger row is lost."""

import json
import os
import signal
import threading
import time
from collections.abc import Iterator
from typing import Any, Final

import httpx2 as httpx
import psutil
import pytest

from bench.house import wait_until
from bench.rows import attach
from tenants.actor import SYSTEM
from tenants.models import UsageRecord
from tenants.services import grant_model
from tests.gateway.test_leaving import EVENT, STREAM_HEAD, SilentEngine
from tests.house import TestHouse

CHAT: Final = "/v1/chat/completions"
CLIENTS: Final = 6


class Load:
    """Clients that ask again and again on kept connections and never try anything twice."""

    def __init__(self, house: TestHouse) -> None:
        self.request_ids: list[str] = []
        self.faults: list[str] = []
        self._house = house
        self._over = threading.Event()
        self._threads = [threading.Thread(target=self._ask, args=(number,)) for number in range(CLIENTS)]

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        self._over.set()
        for thread in self._threads:
            thread.join()

    def _ask(self, number: int) -> None:
        body: dict[str, Any] = {"model": "tiny", "messages": [{"role": "user", "content": "x"}], "max_tokens": 8}
        with self._house.client() as client:
            while not self._over.is_set():
                streamed = (number + len(self.request_ids)) % 2 == 0
                try:
                    answer = client.post(CHAT, json={**body, "stream": streamed})
                except httpx.HTTPError as error:
                    self.faults.append(repr(error))
                    continue
                self.request_ids.append(answer.headers["x-request-id"])
                if answer.status_code != 200 or (streamed and not answer.text.endswith("data: [DONE]\n\n")):
                    self.faults.append(f"{answer.status_code} {answer.text[-200:]}")


@pytest.fixture(scope="module")
def house_more() -> dict[str, str]:
    return {"GATEHOUSE_DRAIN_NOTICE_SECONDS": "1", "GATEHOUSE_DRAIN_DEADLINE_SECONDS": "2"}


@pytest.fixture
def endless(house: TestHouse) -> Iterator[SilentEngine]:
    """An engine whose stream begins and does not end."""
    engine = SilentEngine()
    engine.told = STREAM_HEAD + b"%x\r\n%b\r\n" % (len(EVENT), EVENT)
    attach("endless", engine.port)
    grant_model(house.tenant, model_pattern="endless", actor=SYSTEM)
    with house.client() as client:
        wait_until(lambda: "endless" in client.get("/v1/models").text, "the door knows it")
    yield engine
    engine.stop()


def listens(pid: int, port: int) -> bool:
    connections = psutil.Process(pid).net_connections("tcp")
    return any(one.status == psutil.CONN_LISTEN and one.laddr.port == port for one in connections)


def test_a_restart_under_load_loses_no_request_and_no_row(house: TestHouse, endless: SilentEngine) -> None:
    old = house._processes.pop("relay")
    load = Load(house)
    body: dict[str, Any] = {"model": "endless", "messages": [{"role": "user", "content": "x"}], "stream": True}
    with house.client() as client, client.stream("POST", CHAT, json=body) as stuck:
        pieces = stuck.iter_raw()
        next(pieces)
        load.start()
        house.start("relay")  # beside it
        wait_until(lambda: listens(house.pid("relay"), house.relay_port), "the new relay listens")
        asked = len(load.request_ids)
        wait_until(lambda: len(load.request_ids) >= asked + 50, "both are under load")
        begun = time.monotonic()
        os.kill(old.pid, signal.SIGTERM)
        last = b"".join(pieces)
        assert json.loads(last.rpartition(b"data: ")[2])["error"]["code"] == "draining"
        assert 3.0 <= time.monotonic() - begun < 8.0  # notice and deadline were given
    assert old.wait(timeout=10) == 0
    asked = len(load.request_ids)
    wait_until(lambda: len(load.request_ids) >= asked + 50, "the new one carries on")
    load.stop()
    assert load.faults == []
    wait_until(
        lambda: UsageRecord.objects.filter(pk__in=load.request_ids, outcome="success").count() == len(load.request_ids),
        "every request has its row",
        seconds=30,
    )
    row = house.ledger_row(stuck.headers["x-request-id"])
    assert (row.outcome, row.error_code) == ("truncated", "draining")
