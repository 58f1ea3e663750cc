"""Monthly partitions of the ledger, made ahead of time; the default one catches what comes early."""

from datetime import UTC, datetime

from django.db import connection, transaction
from django.utils import timezone


@transaction.atomic
def ensure_partitions(*, now: datetime | None = None, months_ahead: int = 2) -> list[str]:
    """Make the partitions of this month and the next ones; returns those made. Safe to run twice.

    Rows of such a month that the default partition already holds move into the new one. The work is done by a function
    of the database that runs as its owner (migration 0014): the role of the processes may make no tables.
    """
    moment = (now or timezone.now()).astimezone(UTC)
    made: list[str] = []
    with connection.cursor() as cursor:
        for offset in range(months_ahead + 1):
            years, zero_based = divmod(moment.year * 12 + moment.month - 1 + offset, 12)
            cursor.execute("SELECT tenants_make_partition(%s, %s)", [years, zero_based + 1])
            name = cursor.fetchone()[0]
            if name is not None:
                made.append(name)
    return made
