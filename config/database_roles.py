"""What the role that processes run as may do in the database: read and write rows, and not all of those.

Migrations run as the owner (GATEHOUSE_OWNER_DATABASE_URL); where there is no such role, as DATABASE_URL's.
"""

import contextlib
from collections.abc import Iterator
from typing import Any, Final

from django.conf import settings
from django.db import connection
from psycopg import sql

from config.database import database_setting

_RIGHTS: Final = "SELECT, INSERT, UPDATE, DELETE"
_FEWER_RIGHTS: Final = {
    "tenants_auditevent": "SELECT, INSERT",
    "tenants_configurationchange": "SELECT, DELETE",  # a trigger writes it; erasure and age take out
    "django_migrations": "SELECT",
}
_FUNCTIONS: Final = ("tenants_make_partition(integer, integer)",)
_MIGRATION_TIMEOUT_MS: Final = 3_600_000  # an index over a large table takes as long as it takes


@contextlib.contextmanager
def as_owner() -> Iterator[bool]:
    """Django's connection is the owner's while this lasts; False where no owner is set, and nothing changes."""
    url = settings.GATEHOUSE.owner_database_url
    if not url:
        yield False
        return
    before = connection.settings_dict.copy()
    connection.close()
    connection.settings_dict.update(database_setting(url, statement_timeout_ms=_MIGRATION_TIMEOUT_MS))
    try:
        yield True
    finally:
        connection.close()
        connection.settings_dict.update(before)


def grant_runtime(role: str) -> None:
    """Give `role` its rights on what is there and on what comes (partitions, tables of later migrations).

    To be run as the owner, after migrations; safe to run twice.
    """
    name = sql.Identifier(role)
    with connection.cursor() as cursor:
        cursor.execute("SELECT current_user, current_schema()")
        current, schema_name = cursor.fetchone()
        if current == role:
            return
        schema = sql.Identifier(schema_name)
        for command in (
            "GRANT USAGE ON SCHEMA {schema} TO {role}",
            f"GRANT {_RIGHTS} ON ALL TABLES IN SCHEMA {{schema}} TO {{role}}",
            "GRANT USAGE, SELECT ON ALL SEQUENCES IN SCHEMA {schema} TO {role}",
            f"ALTER DEFAULT PRIVILEGES IN SCHEMA {{schema}} GRANT {_RIGHTS} ON TABLES TO {{role}}",
            "ALTER DEFAULT PRIVILEGES IN SCHEMA {schema} GRANT USAGE, SELECT ON SEQUENCES TO {role}",
        ):
            _execute(cursor, command, schema=schema, role=name)
        for table, rights in _FEWER_RIGHTS.items():
            _execute(cursor, "REVOKE ALL ON {table} FROM {role}", table=sql.Identifier(table), role=name)
            _execute(cursor, f"GRANT {rights} ON {{table}} TO {{role}}", table=sql.Identifier(table), role=name)
        # Also of triggers': a table of one's own with such a trigger would run casts of one's own as the owner.
        cursor.execute(
            "SELECT oid::regprocedure::text FROM pg_proc "
            "WHERE prosecdef AND pronamespace = current_schema()::regnamespace"
        )
        for (function,) in cursor.fetchall():
            _execute(cursor, f"REVOKE ALL ON FUNCTION {function} FROM PUBLIC")
        for function in _FUNCTIONS:
            _execute(cursor, f"GRANT EXECUTE ON FUNCTION {function} TO {{role}}", role=name)


def may_empty_audit_log() -> bool:
    """Whether the role that Django is connected as has the right to TRUNCATE the audit log."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT has_table_privilege('tenants_auditevent', 'TRUNCATE')")
        return bool(cursor.fetchone()[0])


def _execute(cursor: Any, command: str, **parts: sql.Composable) -> None:
    cursor.execute(sql.SQL(command).format(**parts))
