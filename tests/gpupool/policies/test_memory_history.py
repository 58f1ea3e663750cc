"""What is kept of a device each minute, and the series of it."""

import struct
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from gpupool.policies.memory_history import COLUMNS, Sample, samples_of, series_of, shown_to
from gpupool.policies.memory_tree import SEGMENTS
from gpupool.policies.memory_view import for_tenant
from gpupool.policies.memory_wire import MemoryEncoder, MemoryReplay
from tests.gpupool.policies.test_memory_tree import ACME, RIVAL
from tests.gpupool.policies.test_memory_view import acmes, whole

NOON = datetime(2026, 3, 1, 12, 0, tzinfo=UTC)
MINUTE = timedelta(minutes=1)


def test_every_segment_of_the_whole_tree_is_kept() -> None:
    assert set(COLUMNS) == {*SEGMENTS, "claimed"} - {"reserved"}


def test_samples_add_up_to_the_tree() -> None:
    tree = whole()
    first, second = samples_of(tree)
    assert first.parts[str(ACME)] == "10240,5120,1024,1024,1024,2048"
    assert set(first.parts) == {str(ACME), str(RIVAL), "shared", ""}
    told = shown_to(None, first)
    assert told is not None
    assert sum(told.values()) == 80 * 1024
    assert second.size_mib == 80 * 1024


def test_a_tenants_samples_are_those_of_its_own_tree() -> None:
    first, second = samples_of(whole())
    own = shown_to(str(ACME), first)
    (of_tree,) = samples_of(acmes(whole()))
    assert own is not None
    kept = {name: mib for name, mib in own.items() if mib}
    assert kept == {"weights": 5120, "kv_used": 1024, "kv_free": 1024, "activations": 1024, "unused": 2048,
                    "reserved": 50 * 1024, "free": 20 * 1024}  # fmt: skip
    assert of_tree.parts[str(ACME)] == "10240,5120,1024,1024,1024,2048"
    assert first.parts[str(ACME)] == of_tree.parts[str(ACME)]
    assert shown_to(str(ACME), second) is None
    for theirs in (None, 0, 1 << 30, 40 << 30):
        assert shown_to(str(ACME), next(samples_of(whole(theirs=theirs, used=theirs)))) == own


def test_a_series_has_means_and_gaps() -> None:
    given = [
        (NOON, {"weights": 10, "free": 5}),
        (NOON + MINUTE, {"weights": 20, "free": 5}),
        (NOON + 4 * MINUTE, {"weights": 30, "kv_used": 7}),
        (NOON + 5 * MINUTE, None),
        (NOON - MINUTE, {"lora": 1}),
        (NOON + 9 * MINUTE, {"lora": 1}),
    ]
    series = series_of(given, start=NOON, step=2 * MINUTE, steps=3)
    assert series.values == {"weights": [15, None, 30], "kv_used": [0, None, 7], "free": [5, None, 0]}
    assert list(series.values) == ["weights", "kv_used", "free"]


def test_old_samples_of_fewer_columns_are_read() -> None:
    assert shown_to(None, Sample("x", 5, {"": ""})) == {}
    assert shown_to("a", Sample("x", 5, {"a": "", "b": "3"})) == {"reserved": 3, "free": 2}


def test_what_was_recorded_is_put_together_again() -> None:
    encoder, seen = MemoryEncoder(), [whole(kv=share) for share in (0.1, 0.4, 0.9)]
    replay = MemoryReplay(encoder.keyframe(seen[0], epoch=1, seq=1, at=NOON))
    assert replay.tree() == seen[0]
    for seq, tree in enumerate(seen[1:], start=2):
        delta = encoder.delta(tree, epoch=1, seq=seq, at=NOON)
        assert delta is not None
        replay.feed(delta)
    again = replay.tree()
    assert (again.nodes, again.values) == (seen[2].nodes, seen[2].values)
    assert for_tenant(again, str(ACME), scope="tenant:acme", label="Acme") == acmes(seen[2])
    shares = [told["kv"] for told in again.figures.values() if told.get("kv") is not None]
    assert shares == [pytest.approx(told["kv"], abs=0.001) for told in seen[2].figures.values() if told.get("kv")]


def test_after_deltas_a_gpu_has_in_use_what_the_driver_said_and_what_has_changed_since() -> None:
    """Where instances do not tell, their segments add up to something else than the driver says."""
    encoder = MemoryEncoder()
    first, then = whole(theirs=None, used=70 << 30), whole(theirs=None, used=70 << 30, kv=0.9)
    grown = replace(then, values=(then.values[0] + 512, *then.values[1:]))
    replay = MemoryReplay(encoder.keyframe(first, epoch=1, seq=1, at=NOON))
    assert replay.feed(encoder.delta(grown, epoch=1, seq=2, at=NOON) or b"")
    used = [told["used"] for told in replay.tree().figures.values() if "used" in told]
    assert used == [70 * 1024 + 512, 70 * 1024]


def test_deltas_of_another_leader_or_after_a_gap_change_nothing() -> None:
    trees = [whole(kv=share) for share in (0.1, 0.4, 0.9)]
    encoder, other = MemoryEncoder(), MemoryEncoder()
    replay = MemoryReplay(encoder.keyframe(trees[0], epoch=7, seq=1, at=NOON))
    other.keyframe(trees[1], epoch=6, seq=1, at=NOON)
    foreign = other.delta(trees[2], epoch=6, seq=2, at=NOON)
    second, third = (encoder.delta(tree, epoch=7, seq=seq, at=NOON) for seq, tree in ((2, trees[1]), (3, trees[2])))
    assert foreign is not None
    assert second is not None
    assert third is not None
    assert [replay.feed(foreign), replay.feed(third)] == [False, False]
    assert replay.tree() == trees[0]
    assert [replay.feed(second), replay.feed(foreign), replay.feed(third)] == [True, False, True]
    assert replay.tree().values == trees[2].values


HEAD = struct.pack("<BIId", 1, 1, 2, 0.0)


@pytest.mark.parametrize("payload", [b"", b"\x01abc", b"\x00not deflate", b"\x02"])
def test_what_is_no_keyframe_is_refused(payload: bytes) -> None:
    with pytest.raises(ValueError, match="no keyframe"):
        MemoryReplay(payload)


@pytest.mark.parametrize("payload", [b"\x00", b"\x01short", HEAD + b"\xff\xff\x7f\x02", HEAD + b"\x81"])
def test_what_is_no_delta_of_it_is_refused(payload: bytes) -> None:
    replay = MemoryReplay(MemoryEncoder().keyframe(whole(), epoch=1, seq=1, at=NOON))
    with pytest.raises(ValueError, match="delta"):
        replay.feed(payload)
