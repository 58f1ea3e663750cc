"""Answers of the DRF door that nobody reads: a client may leave between the view and the server."""

import gc
import json
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

import pytest
from django.http import StreamingHttpResponse

from core.clock import SystemClock
from core.ids import uuid7
from gateway.api.http import CLIENT_LEFT, open_response
from gateway.relay.deadlines import Deadlines
from gateway.relay.exchange import Exchange
from gateway.relay.plan import Api, Outcome, Ready, Settlement, SlimRequest, Work
from gateway.relay.splice import parse_body
from gateway.relay.upstream import UpstreamClient
from tests.doubles.engine import EngineDouble, Wire, chunk, streams
from tests.gateway.relay.door.house import PRINCIPAL, FirstPicker, NotedTicket, chat, endpoint, until


@dataclass
class Forwarding:
    """One admitted request for a stream that begins and does not end."""

    engine: EngineDouble
    exchange: Exchange
    picker: FirstPicker
    settlements: list[Settlement] = field(default_factory=list)

    async def ends_cancelled(self) -> None:
        """The engine is left, and the ledger has it as cancelled."""
        await until(lambda: self.engine.open == 0)
        assert [settlement.outcome for settlement in self.settlements] == [Outcome.CANCELLED]
        assert self.picker.in_flight == 0


@pytest.fixture
async def forwarding() -> AsyncIterator[Forwarding]:
    async with EngineDouble(streams(chunk("A"), then=Wire.stall)) as engine:
        client, clock = UpstreamClient(), SystemClock()
        body = json.dumps(chat(stream=True)).encode()
        request = SlimRequest(uuid7(), Api.CHAT, "/v1/chat/completions", [], body, clock.monotonic())
        picker, settlements = FirstPicker([endpoint(engine.port)]), list[Settlement]()
        work = Work(Api.CHAT, request.path, body, parse_body(Api.CHAT, body))
        ready = Ready(request, PRINCIPAL, work, picker, NotedTicket(settlements))
        yield Forwarding(engine, Exchange(ready, client, clock, Deadlines()), picker, settlements)
        await client.aclose()


async def test_an_answer_that_is_never_read_is_closed_and_settled(forwarding: Forwarding) -> None:
    response = await open_response(forwarding.exchange)
    assert forwarding.picker.in_flight == 1
    del response
    gc.collect()
    await forwarding.ends_cancelled()


@pytest.mark.shows("G6")
async def test_a_client_that_left_before_the_engine_was_asked_reaches_none(forwarding: Forwarding) -> None:
    """It left while the view was between two awaits: nothing there could be cancelled."""
    await open_response(forwarding.exchange, {CLIENT_LEFT: True})
    assert forwarding.engine.received == []
    await forwarding.ends_cancelled()


@pytest.mark.shows("G6")
async def test_a_client_that_left_before_the_first_bytes_were_sent_holds_no_engine(forwarding: Forwarding) -> None:
    scope: dict[str, Any] = {}
    response = await open_response(forwarding.exchange, scope)
    assert isinstance(response, StreamingHttpResponse)
    scope[CLIENT_LEFT] = True
    assert [piece async for piece in response] == []
    await forwarding.ends_cancelled()
