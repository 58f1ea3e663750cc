"""What a test asks PostgreSQL about locks."""

from django.db import connection

# Other workers' databases are on the same server. What is waited for often names no database (a transaction does
# not), but whoever waits holds locks on tables, which do.
_WAITS = """
SELECT count(*) FROM pg_locks AS wanted
WHERE NOT granted AND EXISTS (
    SELECT FROM pg_locks AS held JOIN pg_database ON pg_database.oid = held.database
    WHERE held.pid = wanted.pid AND datname = current_database()
)
"""


def somebody_waits() -> bool:
    """Whether any connection to this test's database waits for a lock."""
    with connection.cursor() as cursor:
        cursor.execute(_WAITS)
        return bool(cursor.fetchone()[0])
