"""PostgreSQL goes away for longer than any time to live: engines go on, and nothing is moved when it is back."""

import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest

from core.embedded.postgres import PostgresServer
from tests.gpupool.processes import ROOT, Pool, eventually

pytestmark = pytest.mark.slow

# Pool's settings: a node is unreachable after 5 s without its key, a leader after 1.5 s.
OUTAGE_SECONDS = 8.0


@pytest.fixture
def server(tmp_path: Path) -> Iterator[PostgresServer]:
    """A server of this test's own, to be stopped and started."""
    tmp_path.chmod(0o755)
    running = PostgresServer(tmp_path / "postgres", log=tmp_path / "postgres-server.log", durable=False)
    running.start()
    running.ensure_database("gatehouse")
    yield running
    running.stop()


@pytest.fixture
def pool(tmp_path: Path, server: PostgresServer) -> Iterator[Pool]:
    running = Pool(tmp_path, server.url())
    try:
        yield running
    finally:
        running.close()


def _row(url: str, statement: str) -> Any:
    try:
        with psycopg.connect(url, connect_timeout=30) as connection:
            return connection.execute(statement).fetchone()
    except psycopg.OperationalError:
        return None


_READY = "SELECT id, pid, host, port FROM gpupool_instance WHERE state = 'ready' AND pid IS NOT NULL"
_MOVES = "SELECT count(*) FROM tenants_auditevent WHERE action LIKE 'instance.%' OR action LIKE 'lease.%'"


def _answers(host: str, port: int) -> bool:
    with urllib.request.urlopen(f"http://{host}:{port}/health", timeout=30) as answer:
        return bool(answer.status == 200)


@pytest.mark.shows("P13")
def test_engines_outlive_the_database_and_nothing_moves_when_it_is_back(
    pool: Pool, server: PostgresServer, tiny_model: Path
) -> None:
    seeded = subprocess.run(
        [sys.executable, "-m", "tests.gpupool.seed", "node-1", tiny_model.as_uri()],
        cwd=ROOT,
        env=pool.environ,
        check=True,
        capture_output=True,
        text=True,
    )
    pool.start_web()
    controller = pool.start_controller()
    agent = pool.start_agent("node-1", seeded.stdout.split()[-1])
    instance, pid, host, port = eventually(lambda: _row(server.url(), _READY), seconds=60, say=pool.logs)
    before = _row(server.url(), _MOVES)

    stopped_port = server.port
    server.stop()
    until = time.monotonic() + OUTAGE_SECONDS
    while time.monotonic() < until:
        assert _answers(host, port)
        assert controller.poll() is None
        assert agent.poll() is None
        time.sleep(0.2)  # an outage has a length; nothing is waited for here
    server.start(port=stopped_port)

    heard = "SELECT 1 FROM gpupool_node WHERE state = 'online' AND last_seen_at > now() - interval '1 second'"
    eventually(lambda: _row(server.url(), heard), seconds=60, say=pool.logs)
    leads = "SELECT 1 FROM gpupool_storeentry WHERE key = '/leader/controller'"
    eventually(lambda: _row(server.url(), leads), say=pool.logs)
    assert _row(server.url(), _READY) == (instance, pid, host, port)
    assert _answers(host, port)
    # No instance was taken for unknown, stopped or asked for, no claim let go. (The node itself may have been
    # called unreachable: its agent's wait before the next attempt can be longer than this test's time to live.)
    assert _row(server.url(), _MOVES) == before
