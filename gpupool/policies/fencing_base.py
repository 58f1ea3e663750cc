"""Tokens that only grow, whatever store their revisions come from. Pure.

A token is a base and a revision of the lease store. A store that was wiped, exchanged or restored from a backup
counts from lower revisions: the base is then raised above every token that was ever given out.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class KnownBase:
    """What the database has: the store whose revisions are counted, and how far they are known to have come."""

    store_id: str
    base: int
    newest_revision: int


def is_still_good(known: KnownBase | None, *, store_id: str, revision: int) -> bool:
    """May the known base go on being used with a store that is `store_id` and has come to `revision`?

    `known` must have been read before the store was: a store's revisions only grow, so one that is behind what
    was known of it before has gone back. The other way round, who is merely late would take itself for first.
    """
    return known is not None and known.store_id == store_id and revision >= known.newest_revision


def base_above(highest_token: int) -> int:
    """A base under which every revision gives a token above `highest_token`."""
    return max(0, highest_token)
