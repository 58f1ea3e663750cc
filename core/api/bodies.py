"""Bodies as they are meant: JSON has types, and a number where a text is declared is a mistake of its sender's.

DRF's fields take what can be turned into what they want, as forms need it: 3 for "3", "no" for false.
"""

from collections.abc import Iterator, Mapping
from typing import Any, Final

from rest_framework import serializers
from rest_framework.exceptions import ParseError, ValidationError
from rest_framework.parsers import JSONParser

from core.storable import can_be_stored, why_unfit

_TYPES: Final[tuple[tuple[type[serializers.Field[Any, Any, Any, Any]], tuple[type, ...], str], ...]] = (
    (serializers.BooleanField, (bool,), "true or false."),
    (serializers.IntegerField, (int,), "A whole number."),
    (serializers.FloatField, (int, float), "A number."),
    (serializers.CharField, (str,), "A text."),
)


class JsonBodyParser(JSONParser):
    """DRF's own, which fails on brackets within brackets without end."""

    def parse(self, stream: Any, media_type: str | None = None, parser_context: Any = None) -> Any:
        """Raises ParseError."""
        try:
            return super().parse(stream, media_type, parser_context)
        except RecursionError as error:
            raise ParseError("The body is nested too deep.") from error


def parse_body(serializer: type[serializers.Serializer[Any]], data: Any, *, partial: bool = False) -> dict[str, Any]:
    """The body's values. Raises ValidationError naming each wrong field."""
    parser = serializer(data=data, partial=partial)
    if isinstance(data, Mapping) and (wrong := dict(_wrong_types(parser, data)) | dict(_unfit(data))):
        raise ValidationError(wrong)
    parser.is_valid(raise_exception=True)
    values: dict[str, Any] = parser.validated_data
    return values


def _wrong_types(parser: serializers.Serializer[Any], data: Mapping[str, Any]) -> Iterator[tuple[str, list[str]]]:
    for name, field in parser.fields.items():
        value = data.get(name)
        kind: Any = field
        values: list[Any] = [value]
        if isinstance(field, serializers.ListField) and isinstance(value, list):
            kind, values = field.child, value
        for declared, types, sentence in _TYPES:
            if isinstance(kind, declared):
                if any(not _is(part, types) for part in values if part is not None):
                    yield name, [sentence]
                break


def _unfit(data: Mapping[str, Any]) -> Iterator[tuple[str, list[str]]]:
    """What JSON can say and nothing here can hold; names of members, too, which no field looks at."""
    for name, value in data.items():
        if not can_be_stored(str(name)):  # it cannot be told, either
            yield "non_field_errors", ["A member's name has a character that is no text."]
            continue
        if (why := why_unfit(value)) is not None:
            yield name, [why]


def _is(value: Any, types: tuple[type, ...]) -> bool:
    return isinstance(value, types) and (bool in types or not isinstance(value, bool))
