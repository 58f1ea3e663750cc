"""What no database can hold is found wherever it stands."""

from typing import Any

import pytest

from core.storable import why_unfit


@pytest.mark.parametrize(
    ("value", "why"),
    [
        ({"a": ["plain", 1, 1.5, None, True, {"b": "日本 \N{ROCKET}"}]}, None),
        ("a\0b", "no text"),
        (["\ud800"], "no text"),
        ({"a": {"\udfff": 1}}, "no text"),
        ({"a": [float("inf")]}, "larger than any"),
        ({"a": float("nan")}, "larger than any"),
    ],
)
def test_what_cannot_be_kept_says_why(value: Any, why: str | None) -> None:
    found = why_unfit(value)
    assert found is None if why is None else found is not None and why in found


def test_what_is_nested_without_end_is_unfit() -> None:
    deep: list[Any] = []
    for _ in range(100_000):
        deep = [deep]
    assert "nested more than" in (why_unfit(deep) or "")
