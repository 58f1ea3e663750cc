"""Every operation of the control API as its OpenAPI schema tells it, with bodies and queries made of given ids."""

import re
from collections.abc import Mapping
from datetime import timedelta
from functools import cache
from typing import Any, Final
from uuid import uuid4

from django.utils import timezone
from drf_spectacular.generators import SchemaGenerator

METHODS: Final = ("get", "post", "put", "patch", "delete")
WRITING: Final = frozenset({"post", "put", "patch", "delete"})
_PARAMETER: Final = re.compile(r"\{(\w+)\}")


@cache
def schema() -> dict[str, Any]:
    generator = SchemaGenerator()  # type: ignore[no-untyped-call]  # spectacular has no types
    told: dict[str, Any] = generator.get_schema(request=None, public=True)  # type: ignore[no-untyped-call]  # the same
    return told


def operations() -> list[tuple[str, str]]:
    """(method, path) of every operation of the control API."""
    return sorted(
        (method, path)
        for path, item in schema()["paths"].items()
        for method in item
        if method in METHODS and path.startswith("/api/")
    )


def filled(path: str, known: Mapping[str, str]) -> str:
    """The path with `known` ids; others get ids that nothing has."""
    return _PARAMETER.sub(lambda found: known.get(found.group(1), str(uuid4())), path)


def queries_of(method: str, path: str, known: Mapping[str, str]) -> list[dict[str, Any]]:
    """Queries of every parameter, `known` values where there are any: of all at once, and of each alone.

    Of all at once some exclude each other, so that nothing is found whether or not rows are cut to the tenant.
    """
    told = schema()["paths"][path][method].get("parameters", [])
    asked = (one for one in told if one["in"] == "query" and one["name"] != "cursor")
    whole = {one["name"]: known.get(one["name"]) or _value(one["schema"], one["name"], known) for one in asked}
    return [whole, *({name: value} for name, value in whole.items())]


def bodies_of(method: str, path: str, ids: Mapping[str, str]) -> list[Any]:
    """Bodies that the operation knows, ids where they are asked for: with every member, and with no more than it needs.

    Of all members some exclude each other, so that a body of the first kind may be refused for that alone.
    """
    content = schema()["paths"][path][method].get("requestBody", {}).get("content", {})
    told = content.get("application/json", {}).get("schema")
    if told is None:
        return [{}]
    whole = _value(told, "", ids)
    needed = _found(told).get("required", [])
    return [whole, {name: whole[name] for name in needed}] if isinstance(whole, dict) else [whole]


def _found(told: dict[str, Any]) -> dict[str, Any]:
    """What a reference stands for."""
    if "$ref" not in told:
        return told
    found: dict[str, Any] = schema()["components"]["schemas"][told["$ref"].rpartition("/")[2]]
    return found


def _value(told: dict[str, Any], name: str, ids: Mapping[str, str]) -> Any:
    told = _found(told)
    for choice in ("oneOf", "anyOf", "allOf"):
        if choice in told:
            return _value(told[choice][0], name, ids)
    if "enum" in told:
        return next(one for one in told["enum"] if one)
    kinds = told.get("type")
    kind = next(one for one in kinds if one != "null") if isinstance(kinds, list) else kinds
    match kind:
        case "string":
            return _text(told.get("format", ""), name, ids)
        case "integer":
            return max(1, told.get("minimum", 1))
        case "number":
            return max(0.9, told.get("minimum", 0.9))
        case "boolean":
            return True
        case "array":
            return [_value(told["items"], name, ids)]
        case "object":
            return {key: _value(part, key, ids) for key, part in told.get("properties", {}).items()}
    return None


def _text(kind: str, name: str, ids: Mapping[str, str]) -> str:
    if kind == "uuid":
        return ids.get(name) or ids.get(f"{name}_id") or str(uuid4())
    if kind == "date-time":
        soon = timedelta(hours=1) if name.startswith(("start", "since")) else timedelta(days=1)
        return (timezone.now() + soon).isoformat()
    slug = ids.get("slug", "")
    known = {"tenant": slug, "parent": slug, "url": "https://hooks.invalid/x", "scopes": "infer"}
    return known.get(name) or ("someone@example.org" if "email" in name else "abc")
