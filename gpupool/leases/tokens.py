"""Where fencing tokens come from: the lease store's revisions, above every token that another store ever gave."""

from typing import Final

import structlog
from asgiref.sync import sync_to_async
from django.db import close_old_connections, connection, transaction
from django.db.models import Max

from core.ids import uuid7
from gpupool.leases.base import IsAbsent, LeaseStore, Put, StoreUnavailable
from gpupool.models import FencingBase, Instance, Lease, StoreEntry
from gpupool.policies.fencing_base import KnownBase, base_above, is_still_good

logger = structlog.get_logger(__name__)

_STORE_KEY: Final = "/gpu/store"
_FENCES: Final = "fence:"
_ATTEMPTS: Final = 10


async def settle_base(store: LeaseStore) -> int:
    """What this store's revisions are added to, so that tokens grow over an exchange of stores and a restore.

    Raises StoreUnavailable; django.db.Error while the database is away.
    """
    for _ in range(_ATTEMPTS):
        known = await sync_to_async(_read)()
        store_id, revision = await _identify(store)
        if known is not None and is_still_good(known, store_id=store_id, revision=revision):
            return known.base
        if (base := await sync_to_async(_replace)(known, store_id, revision)) is not None:
            logger.warning("fencing_base_raised", base=base, store=store_id, revision=revision)
            return base
    raise StoreUnavailable("two controllers with different lease stores write at the same time")


def note_revision(token: int) -> None:
    """In the transaction that records `token`: the store has come so far. Another base's tokens are lower and pass."""
    with connection.cursor() as cursor:
        cursor.execute(
            "UPDATE gpupool_fencingbase SET newest_revision = %s - base WHERE newest_revision < %s - base",
            [token, token],
        )


def known_base() -> int:
    """The base in use, 0 before there was a leader."""
    return FencingBase.objects.values_list("base", flat=True).first() or 0


async def _identify(store: LeaseStore) -> tuple[str, int]:
    """The store's own name, given to it by who comes first, and how far its revisions have come."""
    await store.transact([IsAbsent(_STORE_KEY)], [Put(_STORE_KEY, str(uuid7()).encode())])
    snapshot = await store.range(_STORE_KEY)
    return snapshot.entries[0].value.decode(), snapshot.revision


def _read() -> KnownBase | None:
    close_old_connections()
    row = FencingBase.objects.first()
    return None if row is None else KnownBase(row.store_id, row.base, row.newest_revision)


@transaction.atomic
def _replace(known: KnownBase | None, store_id: str, revision: int) -> int | None:
    """The new base, None where somebody else has changed it since `known` was read."""
    row = FencingBase.objects.select_for_update().first()
    if (None if row is None else KnownBase(row.store_id, row.base, row.newest_revision)) != known:
        return None
    base = base_above(_highest_token(known))
    values = {"store_id": store_id, "base": base, "newest_revision": revision}
    if row is None:
        _, created = FencingBase.objects.get_or_create(singleton=True, defaults=values)
        return base if created else None
    FencingBase.objects.update(**values)
    return base


def _highest_token(known: KnownBase | None) -> int:
    """Of all that was ever given out: to leaders, to claims, by claims that are erased by now."""
    fences = StoreEntry.objects.filter(key__startswith=_FENCES).aggregate(newest=Max("mod_revision"))["newest"]
    claims = Lease.objects.aggregate(newest=Max("fencing_token"))["newest"]
    instances = Instance.objects.aggregate(newest=Max("fencing_token"))["newest"]
    noted = 0 if known is None else known.base + known.newest_revision
    return max(fences or 0, claims or 0, instances or 0, noted)
