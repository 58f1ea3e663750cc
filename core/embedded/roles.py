"""Two roles in an embedded PostgreSQL: one owns everything, the other is what processes run as.

A process that may not change the schema cannot drop the triggers that guard the audit log, nor empty it: TRUNCATE is
for owners. Which rights the second one has is for those who know the tables (config.database_roles).
"""

import hashlib
import hmac
from typing import Final

import psycopg
from psycopg import sql

OWNER: Final = "gatehouse_owner"
RUNTIME: Final = "gatehouse_runtime"

_MOVE: Final = """
DO $$
DECLARE
    thing record;
BEGIN
    FOR thing IN
        SELECT format('ALTER %s %s OWNER TO {owner}',
            CASE c.relkind WHEN 'v' THEN 'VIEW' WHEN 'm' THEN 'MATERIALIZED VIEW' WHEN 'S' THEN 'SEQUENCE'
                ELSE 'TABLE' END, c.oid::regclass) AS command
        FROM pg_class c
        WHERE c.relnamespace = 'public'::regnamespace AND c.relkind IN ('r', 'p', 'v', 'm', 'S')
            AND c.relowner <> '{owner}'::regrole
            -- A sequence of a column goes with its table.
            AND NOT EXISTS (
                SELECT FROM pg_depend d WHERE d.objid = c.oid AND c.relkind = 'S' AND d.deptype IN ('a', 'i'))
        UNION ALL
        SELECT format('ALTER FUNCTION %s OWNER TO {owner}', p.oid::regprocedure)
        FROM pg_proc p WHERE p.pronamespace = 'public'::regnamespace AND p.proowner <> '{owner}'::regrole
    LOOP
        EXECUTE thing.command;
    END LOOP;
END $$;
"""


def derived_password(admin_password: str, role: str) -> str:
    """A role's own password, made of the administrator's, which cannot be told from it."""
    return hmac.new(admin_password.encode(), role.encode(), hashlib.sha256).hexdigest()[:48]


def ensure_roles(admin_url: str, *, admin_password: str) -> None:
    """Make both roles, and everything in the database the owner's: also what an earlier version left the administrator.

    `admin_url` is the database's, as superuser. Safe to run twice.
    """
    with psycopg.connect(admin_url) as connection:
        for role in (OWNER, RUNTIME):
            if connection.execute("SELECT FROM pg_roles WHERE rolname = %s", [role]).fetchone() is None:
                connection.execute(sql.SQL("CREATE ROLE {}").format(sql.Identifier(role)))
            connection.execute(
                sql.SQL("ALTER ROLE {} LOGIN NOSUPERUSER NOCREATEDB NOCREATEROLE NOREPLICATION PASSWORD {}").format(
                    sql.Identifier(role), sql.Literal(derived_password(admin_password, role))
                )
            )
        owner, runtime = sql.Identifier(OWNER), sql.Identifier(RUNTIME)
        database = sql.Identifier(connection.info.dbname)
        for command in (
            "ALTER DATABASE {database} OWNER TO {owner}",
            "ALTER SCHEMA public OWNER TO {owner}",
            "REVOKE ALL ON DATABASE {database} FROM PUBLIC",
            "REVOKE CREATE ON SCHEMA public FROM PUBLIC",
            "GRANT CONNECT ON DATABASE {database} TO {runtime}",
        ):
            connection.execute(sql.SQL(command).format(database=database, owner=owner, runtime=runtime))
        connection.execute(_MOVE.replace("{owner}", OWNER))
