"""Fixtures for all tests; the servers behind them are started by tests.embedded."""

import fcntl
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import psycopg
import pytest
import redis
from asgiref.sync import SyncToAsync
from django.core.management import call_command
from django.db import connections
from django.db.backends.postgresql.operations import DatabaseOperations
from django.utils import translation
from hypothesis import HealthCheck, settings
from psycopg import sql
from pytest_django import DjangoDbBlocker

# The same examples in every run, however slow the machine is just then; `make drill` looks for new ones.
settings.register_profile("run", deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("drill", deadline=None, suppress_health_check=[HealthCheck.too_slow], print_blob=True)
settings.load_profile("run")

_TEMPLATE = "gatehouse_template"


@dataclass(frozen=True, slots=True)
class TestServer:
    """Where a server of this test run listens."""

    __test__ = False

    url: str


@pytest.fixture(scope="session")
def django_db_setup(django_db_blocker: DjangoDbBlocker) -> Iterator[None]:
    """This worker's database, copied from one that was migrated once for the whole run."""
    url = os.environ["DATABASE_URL"]
    server, _, name = url.rpartition("/")
    with django_db_blocker.unblock(), psycopg.connect(f"{server}/postgres", autocommit=True) as admin:
        with _run_lock():
            if not _exists(admin, _TEMPLATE):
                _make_template(admin)
            admin.execute(
                sql.SQL("CREATE DATABASE {} TEMPLATE {}").format(sql.Identifier(name), sql.Identifier(_TEMPLATE))
            )
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(DatabaseOperations, "sql_flush", _sql_flush)
            # What listens to it makes content types and permissions anew, and those we leave.
            patch.setattr("django.core.management.commands.flush.emit_post_migrate_signal", lambda *_, **__: None)
            yield
        for connection in connections.all(initialized_only=True):
            connection.close()


_EMPTIED_BY_TRUNCATION: Final = DatabaseOperations.sql_flush
_MADE_BY_MIGRATION: Final = {"django_content_type", "auth_permission"}


def _sql_flush(
    self: DatabaseOperations,
    style: Any,
    tables: list[str],
    *,
    reset_sequences: bool = False,
    allow_cascade: bool = False,
) -> list[str]:
    """Empty what a transactional test has left: few of our hundred tables have rows, and each costs files to truncate.

    Without triggers: those that forbid it are not meant for tests, and in what order tables are emptied is all one.
    """
    if reset_sequences:
        return _EMPTIED_BY_TRUNCATION(self, style, tables, reset_sequences=reset_sequences, allow_cascade=allow_cascade)
    names = [self.quote_name(table) for table in tables if table not in _MADE_BY_MIGRATION]
    looks = [f"SELECT '{name}' WHERE EXISTS (SELECT FROM {name})" for name in names]
    with self.connection.cursor() as cursor:
        cursor.execute(" UNION ALL ".join(looks))
        filled = [str(row[0]) for row in cursor.fetchall()]
    if not filled:
        return []
    return [
        "SET LOCAL session_replication_role = replica",
        *(f"DELETE FROM {name}" for name in filled),
        "SET LOCAL session_replication_role = DEFAULT",
    ]


@pytest.fixture(autouse=True)
def _no_language() -> None:
    """No test speaks the language of the last page that one before it has asked for: a thread keeps that."""
    translation.deactivate()


@pytest.fixture(autouse=True)
def _living_connections() -> None:
    """No test inherits a connection that another one has cut off.

    What runs by `sync_to_async` outside a request has one thread for the whole run, which keeps its connection.
    """
    SyncToAsync.single_thread_executor.submit(_close_dead_connections).result(timeout=60)


def _close_dead_connections() -> None:
    for connection in connections.all(initialized_only=True):
        if connection.connection is not None and not connection.is_usable():
            connection.close()


def _exists(admin: "psycopg.Connection[tuple[object, ...]]", name: str) -> bool:
    return admin.execute("SELECT 1 FROM pg_database WHERE datname = %s", [name]).fetchone() is not None


def _make_template(admin: "psycopg.Connection[tuple[object, ...]]") -> None:
    """Migrate into a fresh database; it gets its name only when whole, so that a failure is not kept."""
    draft = sql.Identifier(_TEMPLATE + "_draft")
    admin.execute(sql.SQL("DROP DATABASE IF EXISTS {}").format(draft))
    admin.execute(sql.SQL("CREATE DATABASE {}").format(draft))
    connection = connections["default"]
    own_name = connection.settings_dict["NAME"]
    connection.close()
    connection.settings_dict["NAME"] = _TEMPLATE + "_draft"
    try:
        call_command("migrate", verbosity=0, interactive=False)
        with connection.cursor() as cursor:  # transactional tests empty the tables afterwards
            cursor.execute("ALTER TABLE tenants_auditevent DISABLE TRIGGER tenants_audit_no_truncate")
    finally:
        connection.close()
        connection.settings_dict["NAME"] = own_name
    admin.execute(sql.SQL("ALTER DATABASE {} RENAME TO {}").format(draft, sql.Identifier(_TEMPLATE)))


class _run_lock:
    """One worker at a time, across the run's processes."""

    def __enter__(self) -> None:
        folder = os.environ["GATEHOUSE_TEST_SERVERS"].split(" ")[0]
        self._file = (Path(folder) / "template.lock").open("w")
        fcntl.flock(self._file, fcntl.LOCK_EX)

    def __exit__(self, *_: object) -> None:
        self._file.close()


@pytest.fixture(scope="session")
def embedded_postgres_url(django_db_setup: None) -> str:
    """Address of this worker's migrated database: the one that Django's `db` fixture uses too.

    For code with connections of its own; take `transactional_db` beside it, which empties the tables after.
    """
    return os.environ["DATABASE_URL"]


@pytest.fixture(scope="session")
def valkey_server() -> TestServer:
    """This worker's own numbered database on the run's Valkey; what other tests left in it is still there."""
    return TestServer(os.environ["VALKEY_STATE_URL"])


@pytest.fixture
def valkey_url(valkey_server: TestServer) -> str:
    """The same, emptied; `VALKEY_SCRATCH_URL`'s database too."""
    for url in (valkey_server.url, os.environ["VALKEY_SCRATCH_URL"]):
        with redis.Redis.from_url(url) as client:
            client.flushdb()
    return valkey_server.url


@pytest.fixture(scope="module")
def house_more() -> dict[str, str]:
    """What the processes of `tests.house.house` are told besides; a module that tells more has its own of this name."""
    return {}


@pytest.fixture(scope="session")
def tiny_model() -> Path:
    """A llama of random weights (572 KB, vocabulary 512): ready in under a second, its text means nothing."""
    return Path(__file__).parent / "data" / "tiny512.gguf"
