"""The nearest type of instance for requests of a shape, of those that can carry it."""

import pytest

from gpupool.policies.nearest import TYPES, Nearest, NoneFeasible, Shape, distance, nearest_type, type_of

GIB = 1 << 30


@pytest.mark.shows("R96")
@pytest.mark.parametrize(
    ("shape", "memory_gib", "name"),
    [
        (Shape(64, 2048), 16, "A10"),
        (Shape(48, 1500), 16, "A10"),
        (Shape(256, 4096, "bf16"), 60, "A100"),
        (Shape(128, 2048), 16, "V100"),
        (Shape(64, 2048), 40, "A100"),  # the nearest has too little memory
        (Shape(64, 2048, "fp32"), 16, "V100"),  # twice the bytes: too much for what it is at 16 bits
        (Shape(128, 2048, "bf16"), 16, "A100"),  # a V100 does not compute in it
    ],
)
def test_the_nearest_that_can_carry_it(shape: Shape, memory_gib: int, name: str) -> None:
    found = nearest_type(shape, memory_bytes=memory_gib * GIB)
    assert isinstance(found, Nearest)
    assert found.type.name == name


def test_a_nearer_one_that_is_too_small_is_named() -> None:
    found = nearest_type(Shape(64, 2048), memory_bytes=40 * GIB)
    assert isinstance(found, Nearest)
    assert "an A10 has 24.0 GiB, and 40.0 GiB are needed" in found.passed_over


def test_what_no_type_can_carry_says_why_for_each() -> None:
    found = nearest_type(Shape(512, 8192))
    assert isinstance(found, NoneFeasible)
    assert len(found.reasons) == len(TYPES)


def test_distance_counts_doublings() -> None:
    a10 = next(one for one in TYPES if one.name == "A10")
    assert distance(Shape(64, 2048), a10) == 0
    assert distance(Shape(128, 2048), a10) == 1
    assert distance(Shape(64, 2048, "fp32"), a10) == pytest.approx(2**0.5)  # memory twice, speed half


@pytest.mark.parametrize(
    ("name", "tags", "kind"),
    [
        ("NVIDIA A100-SXM4-40GB", (), "A100"),
        ("NVIDIA A10", (), "A10"),
        ("NVIDIA A10G", (), None),
        ("Tesla V100-PCIE-32GB", (), "V100"),
        ("a card", ("A100-40GB",), "A100"),
    ],
)
def test_the_type_of_a_device(name: str, tags: tuple[str, ...], kind: str | None) -> None:
    found = type_of(name, tags)
    assert (found.name if found else None) == kind
