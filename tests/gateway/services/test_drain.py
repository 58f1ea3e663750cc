"""The way from a process's spool to the ledger, on real Valkey and PostgreSQL that fail on the way."""

import asyncio
import os
import threading
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import psycopg
import pytest
import redis
from django.db import connection

from core.clock import SystemClock
from core.embedded.valkey import ValkeyServer
from core.ids import uuid7
from gateway.models import EndedSpool
from gateway.relay.adopt import Adopter, ValkeyNotes
from gateway.relay.outbox import Outbox
from gateway.relay.plan import Api, Outcome, ParsedBody, Settlement, SlimRequest, Usage, UsageSource
from gateway.relay.rows import SourceUnavailable
from gateway.relay.settle import Settler
from gateway.relay.spool import Spool
from gateway.relay.valkey import ValkeyClient, ValkeyUnavailable
from gateway.services.drain import LedgerDrain
from tenants.models import DeadLetter, LedgerMark, UsageMinute, UsageRecord
from tenants.principal import Principal
from tenants.usage import GROUP, STREAM, encode_row, mark_key
from tests.tenants.usage_rows import usage_row
from tests.waiting import wait_until

pytestmark = pytest.mark.django_db(transaction=True)

PREFIX = "drain:"
PRINCIPAL = Principal(uuid4(), "acme", uuid4(), frozenset({"infer"}), (), None)
PARSED = ParsedBody("tiny", False, False, 1, None, {})


@pytest.fixture
def valkey(tmp_path: Path) -> Iterator[ValkeyServer]:
    """A server of this test's own, to be stopped and emptied."""
    server = ValkeyServer(tmp_path / "valkey", log=tmp_path / "valkey.log", durable=True)
    server.start()
    yield server
    server.stop()


@pytest.fixture
def client(valkey: ValkeyServer) -> Iterator["redis.Redis"]:
    with redis.Redis.from_url(valkey.database_url(0)) as client:
        yield client


class RunningDrain:
    """A drain on a thread of its own, as its process has one."""

    def __init__(self, url: str, spools: Path) -> None:
        self._stop = threading.Event()
        client = redis.Redis.from_url(url, socket_timeout=5.0)
        self.drain = LedgerDrain(client, prefix=PREFIX, spools=spools, stop=self._stop)
        self._thread = threading.Thread(target=self.drain.run)

    def __enter__(self) -> "RunningDrain":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join(timeout=60)
        assert not self._thread.is_alive()


class Door:
    """What a relay process has for its ledger."""

    def __init__(self, spools: Path, url: str) -> None:
        self.spools = spools
        self.spool = Spool.create(spools, uuid7(), cap_bytes=1 << 20)
        self.outbox: Outbox | None = None
        self.settler = Settler(self.spool, door="relay", clock=SystemClock(), on_row=self._added)
        self._client = ValkeyClient(url, deadline_seconds=0.5)
        self._task: asyncio.Task[None] | None = None
        self.marks: list[int] = []
        """What limits were told that the ledger has."""

    def _added(self) -> None:
        if self.outbox is not None:
            self.outbox.wake()

    def start(self) -> None:
        self.outbox = Outbox(
            self.settler,
            self._client,
            prefix=PREFIX,
            clock=SystemClock(),
            read_mark=self._read_mark,
            on_mark=self.marks.append,
        )
        self._task = asyncio.get_running_loop().create_task(self.outbox.run())

    async def _read_mark(self, process_id: UUID) -> int:
        try:
            return await asyncio.to_thread(_mark, process_id)
        except psycopg.OperationalError as error:
            raise SourceUnavailable(str(error)) from error

    def open(self) -> Any:
        return self.settler.open(SlimRequest(uuid7(), Api.CHAT, "/", [], b"", 0.0), PRINCIPAL, PARSED)

    async def serve(self, count: int) -> None:
        for _ in range(count):
            self.open().settle(
                Settlement(Outcome.SUCCESS, 200, Usage(1, None, 2, UsageSource.ENGINE), 0.1, ttft_seconds=0.01)
            )

    async def all_in(self, seconds: float = 60.0) -> None:
        assert self.outbox is not None
        await self.outbox.flush(seconds)
        assert self.spool.unacknowledged == 0

    async def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        await self._client.close()


def _mark(process_id: UUID) -> int:
    with psycopg.connect(os.environ["DATABASE_URL"]) as own:
        row = own.execute("SELECT sequence FROM tenants_ledgermark WHERE process_id = %s", [process_id]).fetchone()
        return row[0] if row else 0


@pytest.fixture
async def door(tmp_path: Path, valkey: ValkeyServer) -> AsyncIterator[Door]:
    door = Door(tmp_path / "spool", valkey.database_url(0))
    yield door
    await door.stop()
    await door.settler.close()


def _count() -> int:
    return UsageRecord.objects.count()


async def count() -> int:
    return await asyncio.to_thread(_closing, _count)


def _closing(call: Any) -> Any:
    try:
        return call()
    finally:
        connection.close()


async def test_rows_arrive_and_the_spool_lets_go(door: Door, valkey: ValkeyServer, client: "redis.Redis") -> None:
    door.start()
    with RunningDrain(valkey.database_url(0), door.spools):
        await door.serve(50)
        await door.all_in()
    assert await count() == 50
    assert door.marks == sorted(door.marks)
    assert door.marks[-1] == 50
    assert client.xlen(PREFIX + STREAM) == 0
    assert await door.settler.close()
    assert list(door.spools.iterdir()) == []


async def test_an_emptied_valkey_loses_no_row(door: Door, valkey: ValkeyServer, client: "redis.Redis") -> None:
    door.start()
    await door.serve(20)
    await asyncio.to_thread(wait_until, lambda: client.xlen(PREFIX + STREAM) == 20, "all are sent")
    client.flushall()
    with RunningDrain(valkey.database_url(0), door.spools):
        await door.serve(5)
        await door.all_in()
        client.flushall()
        await door.serve(5)
        await door.all_in()
    assert await count() == 30


async def test_a_restarted_valkey_loses_no_row(door: Door, valkey: ValkeyServer) -> None:
    door.start()
    with RunningDrain(valkey.database_url(0), door.spools):
        await door.serve(10)
        await door.all_in()
        valkey.stop()
        await door.serve(10)
        valkey.start(port=valkey.port)
        await door.serve(10)
        await door.all_in()
    assert await count() == 30


async def test_a_database_that_drops_connections_loses_no_row(door: Door, valkey: ValkeyServer) -> None:
    door.start()
    with RunningDrain(valkey.database_url(0), door.spools):
        for _ in range(5):
            await door.serve(10)
            await asyncio.to_thread(_drop_connections)
        await door.all_in()
    assert await count() == 50
    assert await asyncio.to_thread(_closing, UsageMinute.objects.count) >= 1


def _drop_connections() -> None:
    with psycopg.connect(os.environ["DATABASE_URL"], autocommit=True) as own:
        own.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
            "WHERE datname = current_database() AND pid <> pg_backend_pid()"
        )


async def test_a_dead_process_is_taken_over_by_the_drain(door: Door, valkey: ValkeyServer) -> None:
    await door.serve(3)
    running = door.open()
    door.spool.release()
    with RunningDrain(valkey.database_url(0), door.spools):
        await asyncio.to_thread(_closing, lambda: wait_until(lambda: _count() == 4, "four rows"))
    lost = await asyncio.to_thread(_closing, lambda: UsageRecord.objects.get(outcome="lost"))
    assert (lost.id, lost.status, lost.usage_source, lost.output_tokens) == (running._opened.id, 0, "none", None)
    assert list(door.spools.iterdir()) == []
    ended = await asyncio.to_thread(_closing, EndedSpool.objects.get)
    assert (ended.process_id, ended.sequence) == (door.spool.process_id, 4)


async def test_a_dead_process_is_taken_over_by_a_living_one(tmp_path: Path, door: Door, valkey: ValkeyServer) -> None:
    dead = Door(door.spools, valkey.database_url(0))
    await dead.serve(3)
    dead.open()
    dead.spool.release()
    door.start()
    await door.serve(2)
    own = door.settler.spool.process_id
    notes = ValkeyNotes(ValkeyClient(valkey.database_url(0), deadline_seconds=5.0), prefix=PREFIX, process_id=own)
    assert await Adopter(door.settler, door.spools, notes=notes).adopt_all() == 4
    with redis.Redis.from_url(valkey.database_url(0), decode_responses=True) as client:
        assert client.hgetall(f"{PREFIX}lim:adopted") == {dead.spool.process_id.hex: f"{own.hex}:3:6"}
    assert [path.name for path in door.spools.iterdir()] == [str(door.spool.process_id)]
    with RunningDrain(valkey.database_url(0), tmp_path / "elsewhere"):
        await door.all_in()
    assert await count() == 6


async def test_nothing_is_taken_over_that_limits_could_not_be_told_of(door: Door, valkey: ValkeyServer) -> None:
    dead = Door(door.spools, valkey.database_url(0))
    await dead.serve(1)
    dead.spool.release()
    valkey.stop()
    client = ValkeyClient(valkey.database_url(0), deadline_seconds=0.5)
    notes = ValkeyNotes(client, prefix=PREFIX, process_id=door.spool.process_id)
    with pytest.raises(ValkeyUnavailable):
        await Adopter(door.settler, door.spools, notes=notes).adopt_all()
    assert door.spool.last_sequence == 0
    assert len(list(door.spools.iterdir())) == 2


def _turns(drain: LedgerDrain, client: "redis.Redis") -> None:
    for _ in range(10):
        drain.turn()
        if client.xlen(PREFIX + STREAM) == 0:
            return
    raise AssertionError("the stream is not drained")


def _drain(client: "redis.Redis", tmp_path: Path) -> LedgerDrain:
    return LedgerDrain(client, prefix=PREFIX, spools=tmp_path / "spool", stop=threading.Event())


def _send(client: "redis.Redis", process_id: UUID, sequence: int, payload: bytes) -> None:
    client.xadd(PREFIX + STREAM, {"p": process_id.bytes, "s": sequence, "d": payload})


def test_an_entry_that_comes_twice_is_one_row(client: "redis.Redis", tmp_path: Path) -> None:
    process = uuid4()
    rows = [usage_row(process, n) for n in (1, 2, 3)]
    for row in [*rows, *rows, rows[0]]:
        _send(client, process, row.sequence, encode_row(row))
    _turns(_drain(client, tmp_path), client)
    assert UsageRecord.objects.count() == 3
    assert UsageMinute.objects.get().requests == 3
    assert client.get(mark_key(PREFIX, process)) == b"3"
    assert LedgerMark.objects.get().sequence == 3


def test_poison_is_kept_aside_and_holds_nothing_up(client: "redis.Redis", tmp_path: Path) -> None:
    process = uuid4()
    _send(client, process, 1, encode_row(usage_row(process, 1)))
    _send(client, process, 2, b"\xffnot a row")
    _send(client, process, 3, encode_row(usage_row(process, 3, model="m" * 300)))
    _send(client, process, 4, encode_row(usage_row(process, 4, started_at=float("nan"))))
    client.xadd(PREFIX + STREAM, {"x": "not ours"})
    _send(client, process, 5, encode_row(usage_row(process, 5)))
    _turns(_drain(client, tmp_path), client)
    assert sorted(UsageRecord.objects.values_list("sequence", flat=True)) == [1, 5]
    assert DeadLetter.objects.count() == 4
    assert client.get(mark_key(PREFIX, process)) == b"5"


def test_what_a_dead_drain_took_is_claimed(
    client: "redis.Redis", tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gateway.services.drain._CLAIM_IDLE_MS", 1)
    process = uuid4()
    for n in (1, 2):
        _send(client, process, n, encode_row(usage_row(process, n)))
    client.xgroup_create(PREFIX + STREAM, GROUP, id="0")
    client.xreadgroup(GROUP, "dead", {PREFIX + STREAM: ">"}, count=1)
    drain = _drain(client, tmp_path)
    wait_until(lambda: drain.turn() >= 0 and client.xlen(PREFIX + STREAM) == 0, "both are drained")
    assert UsageRecord.objects.count() == 2
    assert client.get(mark_key(PREFIX, process)) == b"2"


def test_a_gap_that_another_drain_closed_is_seen(client: "redis.Redis", tmp_path: Path) -> None:
    process = uuid4()
    one, two = _drain(client, tmp_path), _drain(client, tmp_path)
    for n in (2, 3):
        _send(client, process, n, encode_row(usage_row(process, n)))
    _turns(one, client)
    assert client.get(mark_key(PREFIX, process)) == b"0"
    _send(client, process, 1, encode_row(usage_row(process, 1)))
    _turns(two, client)
    assert client.get(mark_key(PREFIX, process)) == b"1"
    one.turn()
    assert client.get(mark_key(PREFIX, process)) == b"3"


def test_a_gap_is_waited_for(client: "redis.Redis", tmp_path: Path) -> None:
    process = uuid4()
    drain = _drain(client, tmp_path)
    for n in (1, 3, 4):
        _send(client, process, n, encode_row(usage_row(process, n)))
    _turns(drain, client)
    assert client.get(mark_key(PREFIX, process)) == b"1"
    _send(client, process, 2, encode_row(usage_row(process, 2)))
    _turns(drain, client)
    assert client.get(mark_key(PREFIX, process)) == b"4"


async def test_a_ledger_that_lost_its_marks_goes_on(door: Door, valkey: ValkeyServer, client: "redis.Redis") -> None:
    door.start()
    with RunningDrain(valkey.database_url(0), door.spools):
        await door.serve(10)
        await door.all_in()
        await asyncio.to_thread(_closing, LedgerMark.objects.all().delete)
        client.flushall()
        await door.serve(10)
        await door.all_in()
    assert await count() == 20


async def test_two_drains_share_the_stream(door: Door, valkey: ValkeyServer, client: "redis.Redis") -> None:
    door.start()
    url = valkey.database_url(0)
    with RunningDrain(url, door.spools), RunningDrain(url, door.spools):
        for _ in range(20):
            await door.serve(100)
            await asyncio.sleep(0)
        await door.all_in()
    assert await count() == 2000
    assert (
        sum(await asyncio.to_thread(_closing, lambda: list(UsageMinute.objects.values_list("requests", flat=True))))
        == 2000
    )
    assert client.xlen(PREFIX + STREAM) == 0
    assert client.xinfo_consumers(PREFIX + STREAM, GROUP) == []
