"""Fencing: a write carries the revision of the leadership it acts under, and a superseded one is refused.

The highest revision that ever acted is kept beside the rows it protects, whichever store the leadership
itself lives in: a lock that expired and was handed over cannot be used by its old holder.
"""

from dataclasses import dataclass

from django.db import connection, transaction

from gpupool.leases.tokens import note_revision

# Outside the store's own keys, which begin with a slash: no range, watch or expiry ever meets it.
_KEY_PREFIX = "fence:"


class Superseded(Exception):
    """A newer holder has acted: this process must stop writing."""


@dataclass(frozen=True, slots=True)
class Fence:
    """Leadership of `name`, won at the store's `revision`."""

    name: str
    revision: int


def check_fence(fence: Fence | None) -> None:
    """Let this transaction go on only while nobody newer has acted; holds other writers off until it ends.

    None is for writers that are not fenced (people, agents). Raises Superseded; RuntimeError outside a
    transaction, where the check would be over before the write.
    """
    if fence is None:
        return
    if not connection.in_atomic_block:
        raise RuntimeError("check_fence outside a transaction protects nothing")
    with connection.cursor() as cursor:
        cursor.execute(
            "INSERT INTO gpupool_storeentry (key, value, create_revision, mod_revision, version) "
            "VALUES (%s, '', %s, %s, 1) ON CONFLICT (key) DO UPDATE "
            "SET mod_revision = GREATEST(gpupool_storeentry.mod_revision, EXCLUDED.mod_revision) "
            "RETURNING mod_revision",
            [_KEY_PREFIX + fence.name, fence.revision, fence.revision],
        )
        highest = int(cursor.fetchone()[0])
    if highest > fence.revision:
        raise Superseded(f"{fence.name}: revision {fence.revision} was superseded by {highest}")


@transaction.atomic
def raise_fence(fence: Fence) -> None:
    """Refuse all earlier holders from now on; a new holder does this before it looks at anything. Raises Superseded."""
    check_fence(fence)
    note_revision(fence.revision)
