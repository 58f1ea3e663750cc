"""The relay's door as a real server, in the test's own event loop (uvloop, as in production)."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import uvloop

from tests.gateway.relay.door.house import DoorHouse


def pytest_asyncio_loop_factories(
    config: pytest.Config, item: pytest.Item
) -> Mapping[str, Callable[[], asyncio.AbstractEventLoop]]:
    return {"uvloop": uvloop.new_event_loop}


@pytest.fixture
async def open_door(tmp_path: Path) -> AsyncIterator[Callable[..., Any]]:
    """A function that starts a door in front of engines; see `DoorHouse.start`. All are stopped at the end."""
    async with contextlib.AsyncExitStack() as stack:

        async def start(*engine_ports: int, **options: Any) -> DoorHouse:
            house = await DoorHouse.start(tmp_path, engine_ports, **options)
            stack.push_async_callback(house.stop)
            return house

        yield start
