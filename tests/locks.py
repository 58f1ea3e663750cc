"""What a test asks PostgreSQL about locks."""

from django.db import connection


def somebody_waits() -> bool:
    """Whether any connection waits for a lock."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT count(*) FROM pg_locks WHERE NOT granted")
        return bool(cursor.fetchone()[0])
