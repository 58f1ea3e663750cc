"""Requests with something in them that nobody would write: any value of JSON in the place of any other."""

from typing import Any

from hypothesis import strategies as st

_odd: st.SearchStrategy[Any] = st.sampled_from(
    [None, True, 0, -1, 1.5, 10**30, "", "x", "\0", "auto", [], [None], [[]], ["x"], [1], {}, {"type": "x"}, {"a": []}]
)


def _places(value: Any, at: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    found = [at] if at else []
    inside = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, each in inside:
        found += _places(each, (*at, key))
    return found


def _with(value: Any, at: tuple[Any, ...], odd: Any) -> Any:
    if not at:
        return odd
    copy = dict(value) if isinstance(value, dict) else list(value)
    copy[at[0]] = _with(copy[at[0]], at[1:], odd)
    return copy


@st.composite
def broken(draw: st.DrawFn, whole: dict[str, Any]) -> dict[str, Any]:
    """`whole` with one or two of its values, at any depth, replaced."""
    for _ in range(draw(st.integers(1, 2))):
        whole = _with(whole, draw(st.sampled_from(_places(whole))), draw(_odd))
        if not _places(whole):
            break
    return whole
