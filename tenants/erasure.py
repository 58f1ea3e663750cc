"""What is held about tenants and people, and who knows of it: for exports and erasure.

Every app says of its own models whose rows they are (`hold`), what of a tenant is still under way (`watch`), and what
the processes are to be told when a tenant's rows are gone (`publish`), when Django starts. So this app need not know
those that stand above it, and a model that nobody spoke of is found by a test.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from uuid import UUID

from django.db import models
from django.db.models import Q

from core.epochs import Section

Watcher = Callable[[UUID], Sequence[str]]
"""What stands in the way of a tenant's erasure, a sentence each."""
Publisher = Callable[[UUID], Sequence[tuple[Section, UUID]]]
"""Whom to tell; asked before the rows are deleted, in the same transaction."""

Sweeper = Callable[[UUID], None]
"""Removes what is kept outside the database; called before the rows go, perhaps more than once. Raises Conflict where
something stays: the tenant stays marked then, and is tried again."""


@dataclass(frozen=True, slots=True)
class Held:
    """One model's rows about tenants or people.

    `tenant`: the lookup that leads to a tenant's id, "" for none; `also`: others, any of which does. `people`: lookups
    that lead to a person's id, and `addresses` to their mail address. `secret`: columns that no export tells; binary
    ones never are. `seen_by_tenant`: the columns that a tenant's export tells, where that is not all of them. `kept`:
    why the rows outlive whom they tell of, "" where they are deleted. `bulky`: content, which may be much.
    """

    model: type[models.Model]
    tenant: str = ""
    also: tuple[str, ...] = ()
    people: tuple[str, ...] = ()
    addresses: tuple[str, ...] = ()
    secret: frozenset[str] = frozenset()
    seen_by_tenant: frozenset[str] | None = None
    kept: str = ""
    bulky: bool = False

    def of_tenant(self, tenant_id: UUID) -> "models.QuerySet[models.Model]":
        """No rows where none are any tenant's."""
        rows = self.model._base_manager.all()
        chosen = Q()
        for lookup in (self.tenant, *self.also) if self.tenant else ():
            chosen |= Q(**{lookup: tenant_id})
        return rows.filter(chosen) if chosen else rows.none()

    def of_person(self, person_id: UUID, email: str) -> "models.QuerySet[models.Model]":
        """No rows where none are anybody's."""
        chosen = Q()
        for lookup in self.people:
            chosen |= Q(**{lookup: person_id})
        for lookup in self.addresses:
            chosen |= Q(**{f"{lookup}__iexact": email})
        rows = self.model._base_manager.all()
        return rows.filter(chosen) if chosen else rows.none()


_held: dict[str, Held] = {}
_watchers: list[Watcher] = []
_publishers: list[Publisher] = []
_sweepers: list[Sweeper] = []


def hold(*held: Held) -> None:
    """Rows of these models are held; those that others stand on come first, and are deleted last.

    Of apps the upper ones are ready first.
    """
    for one in reversed(held):
        _held[one.model._meta.label] = one


def watch(watcher: Watcher) -> None:
    if watcher not in _watchers:
        _watchers.append(watcher)


def publish(publisher: Publisher) -> None:
    if publisher not in _publishers:
        _publishers.append(publisher)


def sweep_with(sweeper: Sweeper) -> None:
    if sweeper not in _sweepers:
        _sweepers.append(sweeper)


def all_held() -> Sequence[Held]:
    """In the order in which rows may be deleted."""
    return [*_held.values()]


def blockers(tenant_id: UUID) -> Iterator[str]:
    """Everything that stands in the way."""
    for watcher in _watchers:
        yield from watcher(tenant_id)


def news(tenant_id: UUID) -> Iterator[tuple[Section, UUID]]:
    """Everything that is to be published."""
    for publisher in _publishers:
        yield from publisher(tenant_id)


def sweep(tenant_id: UUID) -> None:
    """Remove everything that is outside the database."""
    for sweeper in _sweepers:
        sweeper(tenant_id)
