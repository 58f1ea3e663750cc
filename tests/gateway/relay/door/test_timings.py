"""Where a request's time goes, as the door measures it: queue, connection, first token, first decode."""

from collections.abc import Awaitable, Callable

import pytest

from tests.doubles.engine import EngineDouble, answers, chat_stream, completion, die, streams
from tests.gateway.relay.door.house import DoorHouse, chat

OpenDoor = Callable[..., Awaitable[DoorHouse]]
MEASURED = 0.001  # two readings of a clock, and sums of floats


@pytest.mark.shows("R91")
async def test_stages_of_a_streamed_answer_follow_each_other_and_stay_within_it(open_door: OpenDoor) -> None:
    async with EngineDouble(streams(*chat_stream("a", "b", "c", "d"))) as engine:
        house = await open_door(engine.port)
        for _ in range(2):
            await house.ask(chat(stream=True))
        first, second = await house.settled(2)
    for told in (first, second):
        assert told.queue_seconds is not None
        assert told.connect_seconds is not None
        assert told.ttft_seconds is not None
        assert told.first_decode_seconds is not None
        assert min(told.queue_seconds, told.connect_seconds, told.first_decode_seconds) >= 0
        assert told.queue_seconds + told.connect_seconds <= told.ttft_seconds + MEASURED
        assert told.ttft_seconds + told.first_decode_seconds <= told.duration_seconds + MEASURED


async def test_a_whole_answer_has_no_first_token_and_an_open_connection_takes_no_time(open_door: OpenDoor) -> None:
    async with EngineDouble(answers(completion())) as engine:
        house = await open_door(engine.port)
        for _ in range(2):
            await house.ask(chat())
        first, second = await house.settled(2)
    assert first.connect_seconds is not None
    assert first.connect_seconds > 0
    assert second.connect_seconds == 0
    for told in (first, second):
        assert told.queue_seconds is not None
        assert told.queue_seconds + (told.connect_seconds or 0) <= told.duration_seconds + MEASURED
        assert (told.ttft_seconds, told.first_decode_seconds) == (None, None)


async def test_a_stream_of_one_piece_has_no_first_decode(open_door: OpenDoor) -> None:
    async with EngineDouble(streams(*chat_stream("only"))) as engine:
        house = await open_door(engine.port)
        await house.ask(chat(stream=True))
        (told,) = await house.settled()
    assert told.ttft_seconds is not None
    assert told.first_decode_seconds is None


async def test_time_that_a_failed_attempt_took_is_queue_and_what_never_connected_has_no_connection(
    open_door: OpenDoor,
) -> None:
    async with EngineDouble(die) as dead, EngineDouble(streams(*chat_stream("a", "b"))) as engine:
        house = await open_door(dead.port, engine.port)
        await house.ask(chat(stream=True))
        (told,) = await house.settled()
    assert told.attempts == 2
    assert told.queue_seconds is not None
    assert told.queue_seconds > 0
    assert told.connect_seconds is not None
    house = await open_door(1)  # nobody listens there
    await house.ask(chat())
    (told,) = await house.settled()
    assert told.queue_seconds is not None
    assert (told.connect_seconds, told.ttft_seconds, told.first_decode_seconds) == (None, None, None)
