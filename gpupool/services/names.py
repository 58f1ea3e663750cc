"""Names at the door: a model's and an alias's are of one kind, and no two are alike."""

from typing import Final

from django.db import connection

from gpupool.models import Model, ModelAlias
from tenants.services import InvalidInput

_LOCK: Final = 0x6E61_6D65  # "name", beside other advisory locks
_LONGEST: Final = 200
_PATTERN_CHARACTERS: Final = frozenset("*?[]")  # mean something in grants


def take_name(name: str) -> str:
    """The name as it is kept, which is nobody's until the transaction ends. Raises InvalidInput naming `name`."""
    name = name.strip()
    if not 0 < len(name) <= _LONGEST or not name.isprintable() or set(name) & _PATTERN_CHARACTERS:
        raise InvalidInput("name", "A model needs a name of 1 to 200 printable characters, without * ? [ ].")
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_advisory_xact_lock(%s)", [_LOCK])  # neither table alone can say that it is free
    if Model.objects.filter(name=name).exists():
        raise InvalidInput("name", f"There is a model {name!r} already.")
    if ModelAlias.objects.filter(name=name).exists():
        raise InvalidInput("name", f"{name!r} is another name of a model already.")
    return name
