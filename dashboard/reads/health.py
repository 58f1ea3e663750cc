"""How the installation itself is: each part asked with a short deadline; None is unknown, never zero."""

import json
import platform
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from functools import cache as remembered
from importlib.metadata import PackageNotFoundError, version
from itertools import islice
from pathlib import Path
from typing import Final

import psutil
import redis
from asgiref.sync import async_to_sync
from django.conf import settings
from django.core.cache import cache
from django.db import connection
from django.db.migrations.loader import MigrationLoader
from django.db.models import Max
from django.db.models.functions import Now

from core.tasks import BATCH_MARK
from dashboard.reads.process_settings import without_password
from gateway.api.runtime import installed_runtime
from gateway.relay.limiting import layout
from gateway.relay.spool import DRAFT_PREFIX
from gpupool.leases.base import StoreUnavailable
from gpupool.leases.default import open_store
from gpupool.leases.leader import leader_key
from gpupool.models import StoreEntry, StoreRevision
from tenants.models import DeadLetter
from tenants.usage import GROUP, STREAM

DEADLINE_SECONDS: Final = 0.25
MOST_LETTERS: Final = 1_000
_LIVING_READER_MS: Final = 30_000
"""A drain asks for rows each second, or is writing some: one that has not for so long has left its name behind."""

_MOST_SPOOLS: Final = 500
_PACKAGES: Final = (
    "Django", "djangorestframework", "channels", "celery", "uvicorn", "psycopg", "redis", "prometheus-client",
    "opentelemetry-sdk", "msgspec",
)  # fmt: skip
_ERRORS: Final = (redis.RedisError, OSError)


@dataclass(frozen=True, slots=True)
class Schema:
    """Whether the tables are this code's, and the ledger's are made ahead."""

    months_ahead: int  # partitions of the ledger for months to come; -1: not even this month's
    default_rows: bool  # the default partition holds rows: some came before their partition
    unapplied: Sequence[str]  # migrations of this code that the database lacks


@dataclass(frozen=True, slots=True)
class Postgres:
    version: str
    size_bytes: int
    connections: int
    most_connections: int
    schema: Schema


@dataclass(frozen=True, slots=True)
class Valkey:
    """`error` is a sentence where it does not answer; `configured` False: there is none."""

    role: str  # state, scratch
    configured: bool
    version: str = ""
    used_bytes: int | None = None
    most_bytes: int | None = None  # what it may use; None: whatever the machine has
    policy: str = ""
    persistent: bool | None = None
    error: str = ""


@dataclass(frozen=True, slots=True)
class Ledger:
    waiting: int | None  # rows in the stream
    lag_seconds: float | None  # age of the oldest of them; 0.0 without any
    readers: int | None  # drains that live; None where nothing has ever been read or written
    dead_letters: int
    newest_letter: datetime | None
    spools: int | None  # folders on this machine
    fullest_spool_bytes: int | None
    spool_cap_bytes: int  # of each


@dataclass(frozen=True, slots=True)
class Leader:
    """Who leads; "" for nobody, None where nobody can tell."""

    name: str
    holder: str | None


@dataclass(frozen=True, slots=True)
class LeaseStore:
    kind: str  # postgresql, etcd
    revision: int | None
    leaders: Sequence[Leader]
    error: str = ""


@dataclass(frozen=True, slots=True)
class Process:
    """One of those that `up` started on this machine."""

    name: str
    alive: bool
    failures: int


@dataclass(frozen=True, slots=True)
class BatchWord:
    """How long ago beat sent, and a worker did, a task; None: they `never` did, or nobody can tell."""

    age_seconds: float | None
    never: bool = False


@dataclass(frozen=True, slots=True)
class Processes:
    """`doors`: relay and web processes that count limits, on all machines. `local`: None without `up` here."""

    doors: int | None
    counters: str | None  # ready, rebuilding, lost
    local: Sequence[Process] | None
    batch: BatchWord
    serves: str | None  # why this process does not serve inference; "" when it does; None: no runtime


def read_postgres(now: datetime) -> Postgres:
    """Raises what the database raises."""
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT current_setting('server_version'), pg_database_size(current_database()),"
            " (SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'client backend'),"
            " current_setting('max_connections')::int"
        )
        told, size, connections, most = cursor.fetchone()
    return Postgres(
        version=told, size_bytes=size, connections=connections, most_connections=most, schema=read_schema(now)
    )


def read_schema(now: datetime) -> Schema:
    """One query. Raises what the database raises."""
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT ARRAY(SELECT c.relname FROM pg_inherits i JOIN pg_class c ON c.oid = i.inhrelid"
            " WHERE i.inhparent = 'tenants_usagerecord'::regclass)::text[],"
            " EXISTS (SELECT 1 FROM tenants_usagerecord_default),"
            " ARRAY(SELECT app || '.' || name FROM django_migrations)"
        )
        partitions, default_rows, applied = cursor.fetchone()
    return Schema(
        months_ahead=_months_ahead({name.rpartition("_")[2] for name in partitions}, now),
        default_rows=default_rows,
        unapplied=sorted(_migrations() - set(applied)),
    )


def _months_ahead(months: set[str], now: datetime) -> int:
    ahead = -1
    year, zero_based = now.year, now.month - 1
    while f"{year}{zero_based + 1:02}" in months:
        ahead += 1
        years, zero_based = divmod(zero_based + 1, 12)
        year += years
    return ahead


@remembered
def _migrations() -> frozenset[str]:
    """Of this code, which does not change while it runs."""
    return frozenset(f"{app}.{name}" for app, name in MigrationLoader(None).disk_migrations or ())


def read_valkey(role: str, url: str | None) -> Valkey:
    if not url:
        return Valkey(role, configured=False)
    try:
        with _client(url) as client:
            info = client.info()
    except _ERRORS as error:
        return Valkey(role, configured=True, error=f"{type(error).__name__}: {without_password(str(error))[:160]}")
    return Valkey(
        role,
        configured=True,
        version=str(info.get("valkey_version") or info.get("redis_version") or ""),
        used_bytes=info.get("used_memory"),
        most_bytes=info.get("maxmemory") or None,
        policy=str(info.get("maxmemory_policy", "")),
        persistent=bool(info["aof_enabled"]) if "aof_enabled" in info else None,
    )


def read_ledger(now: datetime) -> Ledger:
    """The stream's state is unknown while Valkey is away; rows wait in spools then."""
    waiting = lag = readers = None
    url, prefix = settings.GATEHOUSE.valkey_state_url, settings.GATEHOUSE.valkey_prefix
    if url:
        try:
            with _client(url) as client:
                waiting, lag, readers = _stream(client, prefix + STREAM, now)
        except _ERRORS:
            waiting = lag = readers = None
    letters = DeadLetter.objects.all()
    dead = letters[:MOST_LETTERS].count()
    spools = _spools(settings.GATEHOUSE.var_dir / "spool")
    return Ledger(
        waiting=waiting,
        lag_seconds=lag,
        readers=readers,
        dead_letters=dead,
        newest_letter=letters.aggregate(at=Max("at"))["at"] if dead else None,
        spools=None if spools is None else spools[0],
        fullest_spool_bytes=None if spools is None else spools[1],
        spool_cap_bytes=settings.GATEHOUSE.spool_cap_bytes,
    )


def _stream(client: "redis.Redis", name: str, now: datetime) -> tuple[int, float, int | None]:
    pipeline = client.pipeline(transaction=False)
    pipeline.xlen(name)
    pipeline.xrange(name, count=1)
    pipeline.exists(name)
    waiting, oldest, exists = pipeline.execute()
    lag = max(0.0, now.timestamp() - int(oldest[0][0].split(b"-")[0]) / 1000) if oldest else 0.0
    return waiting, lag, _readers(client, name) if exists else None


def _readers(client: "redis.Redis", name: str) -> int:
    """Drains that live: those that died stay in the group for a while."""
    if all(group["name"] != GROUP.encode() for group in client.xinfo_groups(name)):
        return 0
    consumers = client.xinfo_consumers(name, GROUP)
    # Before Valkey 7.2 `idle` is since they were last given a row, which says nothing where there are none.
    return sum(one["idle"] < _LIVING_READER_MS or "inactive" not in one for one in consumers)


def _spools(folder: Path) -> tuple[int, int] | None:
    """How many there are, and the bytes of the fullest; None where this machine has none to look at."""
    try:
        found = [one for one in islice(folder.iterdir(), _MOST_SPOOLS) if not one.name.startswith(DRAFT_PREFIX)]
    except OSError:
        return None
    return len(found), max(map(_bytes_in, found), default=0)


def _bytes_in(folder: Path) -> int:
    """Of its files; those that are drained away meanwhile are none any more."""
    total = 0
    with suppress(OSError):
        for file in folder.iterdir():
            with suppress(OSError):
                total += file.stat().st_size
    return total


def read_lease_store(names: Sequence[str]) -> LeaseStore:
    if settings.GATEHOUSE.etcd_url:
        return _etcd(names)
    if settings.GATEHOUSE.lease_database_url:
        return _asked(names, kind="postgresql")
    keys = [leader_key(name) for name in names]
    # Whoever died still stands there until somebody comes by and sweeps.
    held = {entry.key: entry for entry in StoreEntry.objects.filter(key__in=keys, lease__expires_at__gt=Now())}
    revision = StoreRevision.objects.values_list("revision", flat=True).first()
    leaders = []
    for name in names:
        entry = held.get(leader_key(name))
        holder = bytes(entry.value).decode(errors="replace") if entry else ""
        leaders.append(Leader(name, holder))
    return LeaseStore("postgresql", revision, leaders)


def _etcd(names: Sequence[str]) -> LeaseStore:
    return _asked(names, kind="etcd")


def _asked(names: Sequence[str], *, kind: str) -> LeaseStore:
    """By the store's own client, which answers or gives up within its deadline."""

    async def ask() -> list[Leader]:
        store = open_store()
        try:
            found = [await store.get(leader_key(name)) for name in names]
        finally:
            await store.close()
        return [
            Leader(name, entry.value.decode(errors="replace") if entry else "")
            for name, entry in zip(names, found, strict=True)
        ]

    try:
        return LeaseStore(kind, None, async_to_sync(ask)())
    except (StoreUnavailable, OSError, RuntimeError) as error:
        return LeaseStore(kind, None, [Leader(name, None) for name in names], error=without_password(str(error))[:200])


def read_counters(now: datetime) -> tuple[int | None, str | None]:
    """Processes that count limits, and the counters' state: ready, rebuilding or lost. None where nobody can tell."""
    url = settings.GATEHOUSE.valkey_state_url
    if not url:
        return None, None
    area = layout.area(settings.GATEHOUSE.valkey_prefix)
    try:
        with _client(url) as client:
            pipeline = client.pipeline(transaction=False)
            pipeline.zcount(area + layout.PROCESSES, now.timestamp(), "+inf")
            pipeline.hget(area + layout.GENERATION, "state")
            doors, state = pipeline.execute()
    except _ERRORS:
        return None, None
    return doors, state.decode() if state else "lost"


def read_processes(now: datetime) -> Processes:
    doors, counters = read_counters(now)
    runtime = installed_runtime()
    return Processes(
        doors=doors,
        counters=counters,
        local=_local(settings.GATEHOUSE.var_dir / "run" / "processes.json"),
        batch=read_batch_word(now),
        serves=None if runtime is None else runtime.ready() or "",
    )


def _local(state_file: Path) -> list[Process] | None:
    """What `up` wrote down of the processes that it looks after on this machine."""
    try:
        told = json.loads(state_file.read_text())
        return [Process(one["name"], _lives(one["pid"], one["created"]), one["failures"]) for one in told]
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _lives(pid: int | None, created: float | None) -> bool:
    try:
        return pid is not None and created is not None and abs(psutil.Process(pid).create_time() - created) < 1.0
    except psutil.Error:
        return False


def read_batch_word(now: datetime) -> BatchWord:
    try:
        mark = cache.get(BATCH_MARK)
    except _ERRORS:
        return BatchWord(None)
    return BatchWord(max(0.0, now.timestamp() - mark)) if isinstance(mark, float) else BatchWord(None, never=True)


def read_run_seconds(now: datetime) -> float:
    """How long this process has run."""
    return max(0.0, now.timestamp() - psutil.Process().create_time())


@remembered
def read_versions() -> tuple[tuple[str, str], ...]:
    """Of what this process runs on."""
    found = [("Python", platform.python_version())]
    for name in _PACKAGES:
        try:
            found.append((name, version(name)))
        except PackageNotFoundError:
            continue
    return tuple(found)


def _client(url: str) -> "redis.Redis":
    return redis.Redis.from_url(url, socket_timeout=DEADLINE_SECONDS, socket_connect_timeout=DEADLINE_SECONDS)
