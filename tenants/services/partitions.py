"""Monthly partitions of the ledger, made ahead of time; the default one catches what comes early."""

from datetime import UTC, datetime

from django.db import connection, transaction
from django.utils import timezone
from psycopg import sql

from core.ids import uuid7_from

_LOCK = 0x6761_7465  # one maker at a time, any process


def _month_start(year: int, month: int) -> datetime:
    years, zero_based = divmod(year * 12 + month - 1, 12)
    return datetime(years, zero_based + 1, 1, tzinfo=UTC)


def _bound(moment: datetime) -> str:
    return str(uuid7_from(int(moment.timestamp() * 1000)))


@transaction.atomic
def ensure_partitions(*, now: datetime | None = None, months_ahead: int = 2) -> list[str]:
    """Make the partitions of this month and the next ones; returns those made. Safe to run twice.

    Rows of such a month that the default partition already holds move into the new one.
    """
    moment = (now or timezone.now()).astimezone(UTC)
    made: list[str] = []
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_advisory_xact_lock(%s)", [_LOCK])
        for offset in range(months_ahead + 1):
            start = _month_start(moment.year, moment.month + offset)
            end = _month_start(moment.year, moment.month + offset + 1)
            name = f"tenants_usagerecord_{start:%Y%m}"
            cursor.execute("SELECT to_regclass(%s) IS NOT NULL", [name])
            if cursor.fetchone()[0]:
                continue
            low, high = _bound(start), _bound(end)
            table = sql.Identifier(name)
            cursor.execute(
                sql.SQL("CREATE TABLE {} (LIKE tenants_usagerecord INCLUDING DEFAULTS INCLUDING CONSTRAINTS)").format(
                    table
                )
            )
            cursor.execute(
                sql.SQL(
                    "WITH moved AS (DELETE FROM tenants_usagerecord_default WHERE id >= %s AND id < %s RETURNING *) "
                    "INSERT INTO {} SELECT * FROM moved"
                ).format(table),
                [low, high],
            )
            cursor.execute(
                sql.SQL("ALTER TABLE tenants_usagerecord ATTACH PARTITION {} FOR VALUES FROM ({}) TO ({})").format(
                    table, sql.Literal(low), sql.Literal(high)
                )
            )
            made.append(name)
    return made
