"""Answers of the DRF door that nobody reads: a client may leave between the view and the server."""

import gc
import json

from core.clock import SystemClock
from core.ids import uuid7
from gateway.api.http import open_response
from gateway.relay.exchange import Deadlines, Exchange
from gateway.relay.plan import Api, Outcome, Ready, Settlement, SlimRequest, Work
from gateway.relay.splice import parse_body
from gateway.relay.upstream import UpstreamClient
from tests.doubles.engine import EngineDouble, Wire, chunk, streams
from tests.gateway.relay.door.house import PRINCIPAL, FirstPicker, NotedTicket, chat, endpoint, until


async def test_an_answer_that_is_never_read_is_closed_and_settled() -> None:
    settlements: list[Settlement] = []
    async with EngineDouble(streams(chunk("A"), then=Wire.stall)) as engine:
        client, clock = UpstreamClient(), SystemClock()
        body = json.dumps(chat(stream=True)).encode()
        request = SlimRequest(uuid7(), Api.CHAT, "/v1/chat/completions", [], body, clock.monotonic())
        picker = FirstPicker([endpoint(engine.port)])
        work = Work(Api.CHAT, request.path, body, parse_body(Api.CHAT, body))
        ready = Ready(request, PRINCIPAL, work, picker, NotedTicket(settlements))
        response = await open_response(Exchange(ready, client, clock, Deadlines()))
        assert picker.in_flight == 1
        del response
        gc.collect()
        await until(lambda: engine.open == 0)
        assert [settlement.outcome for settlement in settlements] == [Outcome.CANCELLED]
        assert picker.in_flight == 0
        await client.aclose()
