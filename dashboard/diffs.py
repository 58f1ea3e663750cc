"""What a change changed, field by field, as `components/diff.html` shows it."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Change:
    """One field; `before` and `after` are texts, "" where there was no such field."""

    field: str
    before: str
    after: str

    @property
    def changed(self) -> bool:
        return self.before != self.after


def changes_of(before: Mapping[str, Any] | None, after: Mapping[str, Any] | None) -> list[Change]:
    """Fields of both, those that changed first, each group by name; members of nested objects are named a.b."""
    old, new = _flat(before or {}), _flat(after or {})
    found = [Change(field, old.get(field, ""), new.get(field, "")) for field in sorted(old.keys() | new.keys())]
    return sorted(found, key=lambda change: not change.changed)


def _flat(values: Mapping[str, Any], prefix: str = "") -> dict[str, str]:
    flat: dict[str, str] = {}
    for name, value in values.items():
        if isinstance(value, Mapping) and value:
            flat |= _flat(value, f"{prefix}{name}.")
        else:
            flat[f"{prefix}{name}"] = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return flat
