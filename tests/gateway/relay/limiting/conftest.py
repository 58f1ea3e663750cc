"""A Valkey server for each module, which its tests may freeze, and counters under a prefix of their own."""

from collections.abc import Iterator

import pytest

from core.embedded.valkey import ValkeyServer
from tests.gateway.relay.limiting.valkey import Counters
from tests.waiting import stay_within_a_day


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ValkeyServer]:
    folder = tmp_path_factory.mktemp("valkey")
    server = ValkeyServer(folder / "data", log=folder / "log", durable=False)
    server.start()
    yield server
    server.stop()


@pytest.fixture
def counters(server: ValkeyServer) -> Iterator[Counters]:
    stay_within_a_day()
    counters = Counters(server.database_url(0))
    counters.begin()
    yield counters
    counters.client.close()
