"""Processes run as a role that owns nothing: it reads and writes rows, and cannot empty or unguard the audit log."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import psycopg
import pytest
from django.core.management import call_command
from django.db import connection
from psycopg import sql
from pytest_django import DjangoDbBlocker, Settings

from config.database import database_setting
from config.database_roles import may_empty_audit_log
from core.embedded.postgres import PostgresServer
from core.embedded.roles import OWNER, RUNTIME
from tenants.models import AuditEvent, ConfigurationChange
from tenants.services import ensure_partitions
from tests.factories import make_tenant

_DATABASE = "gatehouse"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PostgresServer]:
    folder = tmp_path_factory.mktemp("roles")
    made = PostgresServer(folder / "postgres", log=folder / "postgres.log", durable=False, memory_mb=32)
    made.start()
    made.ensure_database(_DATABASE)
    yield made
    made.stop()


@pytest.fixture(scope="module")
def earlier(server: PostgresServer, django_db_blocker: DjangoDbBlocker) -> Iterator[PostgresServer]:
    """A database as an earlier version left it: everything is the superuser's, up to the last release's migrations."""
    before = connection.settings_dict.copy()
    with django_db_blocker.unblock():
        try:
            _connect_as(server.url(_DATABASE))
            call_command("migrate", "tenants", "0006", verbosity=0)
            yield server
        finally:
            connection.close()
            connection.settings_dict.update(before)


def _connect_as(url: str) -> None:
    connection.close()
    connection.settings_dict.update(database_setting(url, statement_timeout_ms=60_000))


@pytest.fixture(scope="module")
def upgraded(earlier: PostgresServer) -> PostgresServer:
    """As `up` and `prepare` do it."""
    from django.conf import settings

    earlier.ensure_roles(_DATABASE)
    earlier.ensure_roles(_DATABASE)
    _connect_as(earlier.url(_DATABASE, role=RUNTIME))
    given = settings.GATEHOUSE
    settings.GATEHOUSE = replace(given, owner_database_url=earlier.url(_DATABASE, role=OWNER))
    try:
        call_command("migrate", verbosity=0)
        call_command("migrate", verbosity=0)
    finally:
        settings.GATEHOUSE = given
    return earlier


@pytest.fixture
def as_runtime(upgraded: PostgresServer) -> Iterator[psycopg.Connection[Any]]:
    with psycopg.connect(upgraded.url(_DATABASE, role=RUNTIME), autocommit=True) as made:
        yield made


def test_ownership_moves_with_an_upgrade(upgraded: PostgresServer) -> None:
    with psycopg.connect(upgraded.url(_DATABASE)) as admin:
        owners = admin.execute(
            "SELECT DISTINCT relowner::regrole::text FROM pg_class WHERE relnamespace = 'public'::regnamespace "
            "UNION SELECT proowner::regrole::text FROM pg_proc WHERE pronamespace = 'public'::regnamespace"
        ).fetchall()
    assert owners == [(OWNER,)]


def test_services_work_as_the_runtime_role(upgraded: PostgresServer) -> None:
    assert connection.settings_dict["USER"] == RUNTIME
    tenant = make_tenant("runtime")
    assert AuditEvent.objects.filter(tenant_id=tenant.pk).count() == 1
    assert ConfigurationChange.objects.filter(tenant_id=tenant.pk).count() == 1
    assert len(ensure_partitions()) == 3
    assert ensure_partitions() == []
    assert not may_empty_audit_log()


@pytest.mark.parametrize(
    "command",
    [
        "TRUNCATE tenants_auditevent",
        "UPDATE tenants_auditevent SET action = ''",
        "DELETE FROM tenants_auditevent",
        "ALTER TABLE tenants_auditevent DISABLE TRIGGER ALL",
        "DROP TABLE tenants_auditevent",
        'INSERT INTO tenants_configurationchange (at, transaction, "table", object_id) '
        "VALUES (now(), 1, '', gen_random_uuid())",
        "CREATE TABLE mine (id int)",
        "CREATE TEMPORARY TABLE tenants_tenant (id int)",
        "TRUNCATE tenants_tenant",
        "DELETE FROM django_migrations",
        "SET ROLE " + OWNER,
        "SET session_replication_role = replica",
        "SELECT tenants_make_partition(1000, 1)",
    ],
)
def test_what_the_runtime_role_may_not_do(as_runtime: psycopg.Connection[Any], command: str) -> None:
    with pytest.raises(psycopg.Error, match=r"permission denied|must be owner|no ledger of the year"):
        as_runtime.execute(command)


# What the trigger's function tells of a row goes through casts, which a role can make for types of its own.
_MASQUERADE = """
CREATE TYPE pg_temp.bait AS (name text);
CREATE FUNCTION pg_temp.sprung(pg_temp.bait) RETURNS json LANGUAGE plpgsql AS
    $$ BEGIN INSERT INTO public.django_migrations (app, name, applied) VALUES (current_user, 'taken', now());
    RETURN '{}'; END $$;
CREATE CAST (pg_temp.bait AS json) WITH FUNCTION pg_temp.sprung(pg_temp.bait);
CREATE TEMPORARY TABLE tenants_grant (id uuid, tenant_id uuid, bait pg_temp.bait);
CREATE TRIGGER history AFTER INSERT ON pg_temp.tenants_grant FOR EACH ROW EXECUTE FUNCTION tenants_keep_history();
INSERT INTO pg_temp.tenants_grant VALUES (gen_random_uuid(), gen_random_uuid(), ROW('x'));
"""


def test_the_trigger_of_the_history_lends_nobody_its_owners_rights(upgraded: PostgresServer) -> None:
    """In a database that is not ours everyone may have temporary tables, with triggers on them."""
    with psycopg.connect(upgraded.url(_DATABASE), autocommit=True) as admin:
        admin.execute(f"GRANT TEMPORARY ON DATABASE {_DATABASE} TO {RUNTIME}")
        try:
            with (
                psycopg.connect(upgraded.url(_DATABASE, role=RUNTIME)) as runtime,
                pytest.raises(psycopg.errors.InsufficientPrivilege, match="function tenants_keep_history"),
            ):
                runtime.execute(_MASQUERADE)
        finally:
            admin.execute(f"REVOKE TEMPORARY ON DATABASE {_DATABASE} FROM {RUNTIME}")
        taken = admin.execute("SELECT app FROM django_migrations WHERE name = 'taken'").fetchall()
    assert taken == []


def test_tables_of_later_migrations_and_new_partitions_can_be_used(
    upgraded: PostgresServer, as_runtime: psycopg.Connection[Any]
) -> None:
    with psycopg.connect(upgraded.url(_DATABASE, role=OWNER)) as owner:
        owner.execute("CREATE TABLE later (id bigserial PRIMARY KEY)")
    as_runtime.execute("INSERT INTO later DEFAULT VALUES")
    assert connection.settings_dict["USER"] == RUNTIME
    ensure_partitions()
    names = as_runtime.execute(
        "SELECT relname FROM pg_class WHERE relkind = 'r' AND relname LIKE 'tenants_usagerecord_2%'"
    ).fetchall()
    assert names
    for (name,) in names:
        as_runtime.execute(sql.SQL("SELECT count(*) FROM {}").format(sql.Identifier(name)))


def test_passwords_of_the_roles_are_their_own(upgraded: PostgresServer) -> None:
    urls = {upgraded.url(_DATABASE, role=role) for role in (OWNER, RUNTIME, None)}
    assert len({url.split(":")[2] for url in urls}) == 3
    with pytest.raises(psycopg.OperationalError, match="password authentication failed"):
        psycopg.connect(upgraded.url(_DATABASE, role=RUNTIME).replace(RUNTIME, OWNER))


def test_a_single_role_is_warned_of(settings: Settings, db: None) -> None:
    assert settings.GATEHOUSE.owner_database_url is None
    assert may_empty_audit_log()
