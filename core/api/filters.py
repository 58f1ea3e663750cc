"""Query parameters: declared with types, and refused where they are not declared.

A misspelt filter that is ignored answers with everything, and whoever asked believes it.
"""

from collections.abc import Collection
from typing import Any

from django.http import QueryDict
from rest_framework import serializers
from rest_framework.exceptions import ValidationError


class Query(serializers.Serializer[Any]):
    """Base of a view's query parameters, one serializer field each; all should be `required=False`."""


def parse_query(declared: type[Query] | None, given: QueryDict, *, also: Collection[str] = ()) -> dict[str, Any]:
    """The values of the declared parameters; `also` are names that something else reads (pages).

    Raises ValidationError naming each parameter that is unknown, has a wrong value, or is said twice where one is
    meant.
    """
    parser = declared() if declared is not None else Query()
    errors: dict[str, list[str]] = {
        name: ["There is no such parameter here."] for name in given if name not in parser.fields and name not in also
    }
    values: dict[str, Any] = {}
    for name, said in given.lists():
        field = parser.fields.get(name)
        if isinstance(field, serializers.ListField):
            values[name] = said
        elif len(said) > 1:
            errors[name] = ["Say it once."]
        elif field is not None:
            values[name] = said[0]
    parser = type(parser)(data=values)  # a dict, not the QueryDict: a form's missing tick would be False
    if not parser.is_valid():
        errors = {**parser.errors, **errors}
    if errors:
        raise ValidationError(errors)
    parsed: dict[str, Any] = parser.validated_data
    return parsed
