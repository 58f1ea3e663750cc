"""What a table has: columns, what it can be sorted by, and what it can be filtered by."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from django.http import HttpRequest
from django.utils.functional import Promise

Words = str | Promise


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """One column.

    `order`: the field or annotation that it sorts by, which must never be null (use Coalesce); "": not sortable.
    `value`: what CSV writes for a row; None: not in the CSV. `numeric`: right-aligned. A column without `label`
    (of actions) is read out by `hidden_label`.
    """

    key: str
    label: Words = ""
    order: str = ""
    value: Callable[[Any], object] | None = None
    numeric: bool = False
    hidden_label: Words = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """A table's make. `sort` is a column's key, with "-" before it for descending."""

    name: str  # of the CSV file and of saved views, e.g. "console-tenants"
    columns: Sequence[Column]
    sort: str
    page_size: int = 50

    def column(self, key: str) -> Column | None:
        return next((column for column in self.columns if column.key == key), None)

    def chosen_sort(self, wanted: str) -> str:
        """`wanted` where it is a way to sort this table, the table's own else."""
        column = self.column(wanted.removeprefix("-"))
        return wanted if column is not None and column.order else self.sort


@dataclass(frozen=True, slots=True)
class Option:
    value: str
    label: Words


@dataclass(frozen=True, slots=True, kw_only=True)
class Facet:
    """One filter of a filter bar: a choice in the address under `key`; "" is all."""

    key: str
    label: Words
    options: Sequence[Option]
    chosen: str = ""
    all_label: Words = ""

    @staticmethod
    def read(
        request: HttpRequest,
        key: str,
        label: Words,
        options: Sequence[tuple[str, Words]],
        *,
        default: str = "",
        all_label: Words = "",
    ) -> "Facet":
        """With what the address chooses; anything else is `default`."""
        wanted = request.GET.get(key, default)
        known = {value for value, _ in options}
        return Facet(
            key=key,
            label=label,
            options=[Option(value, text) for value, text in options],
            chosen=wanted if wanted in known else default,
            all_label=all_label,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Heading:
    """A column's head as the template writes it."""

    key: str
    label: Words
    numeric: bool
    hidden_label: Words
    sort: str = ""  # what a click sorts by; "": not sortable
    direction: str = ""  # ascending, descending; "": the table is not sorted by it


@dataclass(frozen=True, slots=True, kw_only=True)
class Filtered:
    """What a filter bar shows: the words sought and the facets; `active` where anything is filtered."""

    search: str = ""
    placeholder: Words = ""
    facets: Sequence[Facet] = field(default_factory=tuple)

    @property
    def active(self) -> bool:
        return bool(self.search) or any(facet.chosen for facet in self.facets)
