"""Everything that is held about a tenant or a person, row by row, in pages of the database's: never all at once."""

import json
from collections.abc import Iterator
from datetime import datetime
from typing import Any, Final
from uuid import UUID

from allauth.account.models import EmailAddress
from django.core.serializers.json import DjangoJSONEncoder
from django.db import models

from tenants.erasure import Held, all_held
from tenants.models import Tenant, User

FORMAT: Final = 1
MEDIA_TYPE: Final = "application/x-ndjson"
_ROWS_A_READ: Final = 1_000
_BULKY_ROWS_A_READ: Final = 20
_CHUNK_BYTES: Final = 64 * 1024


def export_tenant(tenant: Tenant, *, at: datetime) -> Iterator[bytes]:
    """JSON lines: a head, a line for each row (`table`, `row`), and a last one with their number.

    Without a last line it was cut off. Secrets and their digests are in none.
    """
    return _lines({"tenant": str(tenant.pk), "at": at}, _rows_of_tenant(tenant.pk))


def export_person(person: User, *, at: datetime) -> Iterator[bytes]:
    """The same of a person, in whatever tenant; of others whom they invited no address is told."""
    return _lines({"person": str(person.pk), "at": at}, _rows_of_person(person))


def _rows_of_tenant(tenant_id: UUID) -> Iterator[tuple[str, dict[str, Any]]]:
    for held in reversed(all_held()):
        if held.tenant:
            names = _columns(held)
            if held.seen_by_tenant is not None:
                names = [name for name in names if name in held.seen_by_tenant]
            yield from _paged(held, held.of_tenant(tenant_id), names)


def _rows_of_person(person: User) -> Iterator[tuple[str, dict[str, Any]]]:
    addresses = EmailAddress.objects.filter(user=person).values_list("email", flat=True)
    own = {address.lower() for address in (person.email, *addresses)}
    for held in reversed(all_held()):
        if held.people or held.addresses:
            for label, row in _paged(held, held.of_person(person.pk, person.email), _columns(held)):
                anothers = [name for name in held.addresses if str(row[name]).lower() not in own]
                yield label, row | dict.fromkeys(anothers)


def _columns(held: Held) -> list[str]:
    return [
        column.attname
        for column in held.model._meta.concrete_fields
        if column.name not in held.secret and not isinstance(column, models.BinaryField)
    ]


def _paged(held: Held, rows: "models.QuerySet[models.Model]", names: list[str]) -> Iterator[tuple[str, dict[str, Any]]]:
    key = held.model._meta.pk.attname
    told = [*dict.fromkeys([key, *names])]
    size = _BULKY_ROWS_A_READ if held.bulky else _ROWS_A_READ
    after: Any = None
    while True:
        page = rows.order_by("pk") if after is None else rows.filter(pk__gt=after).order_by("pk")
        found = [*page.values(*told)[:size]]
        for row in found:
            yield held.model._meta.label, row
        if len(found) < size:
            return
        after = found[-1][key]


def _lines(head: dict[str, Any], rows: Iterator[tuple[str, dict[str, Any]]]) -> Iterator[bytes]:
    lines, size, count = [_line({"format": FORMAT, **head})], 0, 0
    for label, row in rows:
        count += 1
        lines.append(_line({"table": label, "row": row}))
        size += len(lines[-1])
        if size > _CHUNK_BYTES:
            yield b"".join(lines)
            lines, size = [], 0
    yield b"".join([*lines, _line({"rows": count})])


def _line(value: dict[str, Any]) -> bytes:
    return json.dumps(value, cls=DjangoJSONEncoder, ensure_ascii=False).encode() + b"\n"
