"""A row of every model that holds something of a tenant or a person, with a word in each of its texts.

Models are found by themselves: one that comes later is filled, or the test that fills it fails and wants a value.
"""

from collections.abc import Callable, Iterator, Mapping
from datetime import timedelta
from itertools import count
from typing import Any, Final

from django.apps import apps
from django.contrib.contenttypes.models import ContentType
from django.contrib.postgres.fields import ArrayField
from django.contrib.sessions.models import Session
from django.db import connection, models
from django.utils import timezone

from core.ids import uuid7
from tenants.erasure import Held, all_held
from tenants.models import Tenant, User

SECRET: Final = "sealed5c1e"
"""In every column that no export may tell."""

_PEOPLE: Final = frozenset({"created_by", "person_id", "actor_id"})
_MADE_BY_WRITES: Final = frozenset(
    {"tenants.Tenant", "tenants.User", "tenants.AuditEvent", "tenants.ConfigurationChange"}
)
_SET: Final[Mapping[str, dict[str, Any]]] = {
    "tenants.Adjustment": {"amount_micros": -1, "kind": "credit"},
    "gpupool.Instance": {"state": "stopped"},
    "gpupool.FineTuningJob": {"state": "succeeded", "runner_live": False},
    "gpupool.Lease": {"released_at": timezone.now()},
    "admin.LogEntry": {"action_flag": 2},
}


class Filler:
    """`word` stands in what is the tenant's or the person's; rows that are nobody's have none."""

    def __init__(self, word: str, tenant: Tenant, person: User) -> None:
        self.word, self.tenant, self.person = word, tenant, person
        self._made: dict[str, models.Model] = {"tenants.Tenant": tenant, "tenants.User": person}
        self._made["tenants.Membership"] = tenant.memberships.get(user=person)
        self._held = {held.model._meta.label: held for held in all_held()}
        self._number = 0

    def fill(self) -> None:
        """One row of each."""
        for held in reversed(all_held()):
            if held.model._meta.label not in _MADE_BY_WRITES:
                self.row(held.model)

    def row(self, model: type[models.Model]) -> models.Model:
        label = model._meta.label
        if label not in self._made:
            held = self._held.get(label)
            values = {field.attname: self._value(field, held) for field in model._meta.concrete_fields}
            values = {name: value for name, value in values.items() if value is not _DEFAULT} | _SET.get(label, {})
            self._made[label] = model._base_manager.create(**values)
        return self._made[label]

    def _value(self, field: Any, held: Held | None) -> Any:
        if isinstance(field, models.ForeignKey):
            target = field.related_model
            if target is ContentType:
                return ContentType.objects.get_for_model(Tenant).pk
            return None if target is field.model else self.row(target).pk
        if field.name == "tenant_id":
            return self.tenant.pk
        if field.name in _PEOPLE:
            return self.person.pk
        if field.name == "object_id":
            return str(self.tenant.pk)
        if field.primary_key and not isinstance(field, models.UUIDField | models.CharField):
            return _DEFAULT
        for kind, make in _MAKERS:
            if isinstance(field, kind):
                return make(self, field, held)
        return _DEFAULT

    def text(self, field: Any, held: Held | None) -> str:
        self._number += 1
        if held is None or (held.kept and held.model is not User):
            word = f"neutral-{self.tenant.pk.hex}-{self._number}"
        else:
            word = f"{SECRET}-{self.word}" if field.name in held.secret else f"{self.word}-{self._number}"
        return word if field.max_length is None else word[: field.max_length]


_numbers = count(1)


class _Default:
    pass


_DEFAULT: Final = _Default()


def _text(filler: Filler, field: Any, held: Held | None) -> Any:
    return field.choices[0][0] if field.choices else filler.text(field, held)


def _json(filler: Filler, field: Any, held: Held | None) -> Any:
    word = filler.text(field, held)
    return [word] if field.default is list else {"text": word}


_MAKERS: Final[tuple[tuple[Any, Callable[[Filler, Any, Held | None], Any]], ...]] = (
    (models.EmailField, lambda filler, field, held: f"{filler.text(field, held)}@example.test"),
    (models.CharField | models.TextField, _text),
    (models.JSONField, _json),
    (models.BinaryField, lambda filler, field, held: filler.text(field, held).encode()),
    (ArrayField, lambda filler, field, held: [next(_numbers)]),
    (models.UUIDField, lambda filler, field, held: uuid7()),
    (models.DateTimeField, lambda filler, field, held: timezone.now() + timedelta(hours=1)),
    (models.BooleanField, lambda filler, field, held: False),
    (models.FloatField, lambda filler, field, held: 0.5),
    (models.IntegerField, lambda filler, field, held: next(_numbers) if field.choices is None else field.choices[0][0]),
)


def holding_models() -> Iterator[type[models.Model]]:
    """Every model that names a tenant or a person in one of its columns."""
    for model in apps.get_models():
        for field in model._meta.concrete_fields:
            if field.name in {"tenant_id", *_PEOPLE} or getattr(field, "related_model", None) in (Tenant, User):
                yield model
                break


def places_of(word: str) -> set[str]:
    """Every table that has the word in any column, as text or as bytes; found in the database's own catalogue."""
    found: set[str] = set()
    patterns = [f"%{word}%", f"%{word.encode().hex()}%"]
    with connection.cursor() as cursor:
        cursor.execute("SELECT relname FROM pg_class WHERE relkind = 'r' AND relnamespace = 'public'::regnamespace")
        for (table,) in cursor.fetchall():
            cursor.execute(f'SELECT EXISTS (SELECT FROM "{table}" t WHERE t::text ILIKE ANY(%s))', [patterns])
            if cursor.fetchone()[0]:
                found.add(table)
    if any(word in str(session.get_decoded()) for session in Session.objects.all()):
        found.add("sessions, decoded")
    return found
