"""Resources in the words of a container's manifest."""

import pytest

from gpupool.policies.resources import Asked, ResourcesRefused, parse_quantity, parse_resources

GIB = 1 << 30


@pytest.mark.shows("R22")
@pytest.mark.parametrize(
    ("text", "count"),
    [("2g", 2 * GIB), ("2Gi", 2 * GIB), ("2G", 2_000_000_000), ("512m", 512 << 20), ("1.5Gi", 3 * GIB // 2), ("7", 7)],
)
def test_amounts_of_memory(text: str, count: int) -> None:
    assert parse_quantity(text) == count


@pytest.mark.parametrize("text", ["", "g", "-2g", "2x", "2 g b", "1e9", "2ii", "0x10"])
def test_what_is_no_amount(text: str) -> None:
    with pytest.raises(ResourcesRefused, match="no amount of memory"):
        parse_quantity(text)


def test_memory_and_counts() -> None:
    assert parse_resources({"nvidia.com/gpu-memory": "2g"}) == Asked(None, 2 * GIB)
    assert parse_resources({"amd.com/gpu": "4"}) == Asked(4, None)
    assert parse_resources({}) == Asked()


@pytest.mark.parametrize(
    ("asked", "reason"),
    [
        ({"cpu": "2"}, "'cpu' is no resource"),
        ({"nvidia.com/gpu": "0"}, "from 1 to 64"),
        ({"nvidia.com/gpu": True}, "from 1 to 64"),
        ({"nvidia.com/gpu": 1, "amd.com/gpu": 1}, "of one vendor"),
        ({"nvidia.com/gpu-memory": "0"}, "more than nothing"),
    ],
)
def test_what_is_not_understood_is_named(asked: dict[str, object], reason: str) -> None:
    with pytest.raises(ResourcesRefused, match=reason):
        parse_resources(asked)
