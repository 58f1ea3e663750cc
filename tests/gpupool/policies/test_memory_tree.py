"""The tree of the devices' memory: what engines tell, the measured rest, and never more than there is."""

from itertools import product
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpupool.policies.memory_history import samples_of, shown_to
from gpupool.policies.memory_parts import Held, parts_of
from gpupool.policies.memory_summary import summarise, table_of
from gpupool.policies.memory_tree import MIB, Claim, Device, Instance, MemoryTree, Who, build_tree
from gpupool.policies.memory_view import fitted, for_tenant

GIB = 1 << 30
NODE, GPU, OTHER_GPU = UUID(int=1), UUID(int=2), UUID(int=3)
ACME, RIVAL = UUID(int=0xA), UUID(int=0xB)
WHO = {ACME: Who("acme", "Acme"), RIVAL: Who("rival", "Rival Labs")}


def a_device(**more: Any) -> Device:
    given: dict[str, Any] = {
        "device_id": GPU, "node_id": NODE, "node": "node-1", "kind": "gpu", "name": "H100", "index": 0,
        "size": 80 * GIB, "used": 40 * GIB, "health": "ok", "stale": False, "simulated": False, "takes_new": True,
        "by_instance": {},
    }  # fmt: skip
    return Device(**(given | more))


def an_instance(number: int, **more: Any) -> Instance:
    given: dict[str, Any] = {
        "instance_id": UUID(int=number), "tenant_id": None, "model": f"model-{number}", "version": "v1",
        "state": "ready", "engine": "vllm", "device_kind": "gpu", "has_process": True,
    }  # fmt: skip
    return Instance(**(given | more))


def a_claim(instance: Instance, gib: int, *, on: UUID = GPU, **more: Any) -> Claim:
    holder = f"instance:{instance.instance_id}"
    return Claim(on, holder, instance.instance_id, instance.tenant_id, gib * GIB, **more)


def grown(devices: list[Device], claims: list[tuple[Instance, int]]) -> MemoryTree:
    instances = {one.instance_id: one for one, _ in claims}
    return build_tree(devices, [a_claim(*one) for one in claims], instances, WHO)


def segments(tree: MemoryTree, model: str = "") -> list[tuple[str, int]]:
    """Of one model's instances, or of everything, in MiB."""
    return [(row.segment, row.mib) for row in table_of(tree) if not model or row.model == model]


def of(parts: list[tuple[str, int, str]]) -> dict[str, int]:
    return {of or name: mib for name, mib, of in parts}


WHOLE = Held(10 * GIB, used=9 * GIB, weights=6 * GIB, kv_capacity=2 * GIB, kv_used=0.25)


@pytest.mark.parametrize(
    ("held", "parts"),
    [
        (WHOLE, {"weights": 6144, "kv_used": 512, "kv_free": 1536, "activations": 1024, "unused": 1024}),
        # An engine that takes its cache as it needs it: what is not taken yet is its cache all the same.
        (Held(10 * GIB, used=6 * GIB, weights=6 * GIB, kv_capacity=2 * GIB, kv_used=0.0),
         {"weights": 6144, "kv_used": 0, "kv_free": 2048, "activations": 0, "unused": 2048}),
        # More in use than claimed
        (Held(8 * GIB, used=9 * GIB, weights=6 * GIB, kv_capacity=2 * GIB, kv_used=1.0),
         {"weights": 6144, "kv_used": 2048, "kv_free": 0, "activations": 1024, "unused": 0}),
        # While it loads
        (Held(10 * GIB, used=2 * GIB, weights=6 * GIB), {"weights": 2048, "unused": 8192}),
        (Held(10 * GIB, used=9 * GIB, weights=6 * GIB, kv_capacity=2 * GIB, kv_used=0.25, adapters=GIB),
         {"weights": 6144, "kv_used": 512, "kv_free": 1536, "activations": 0, "lora": 1024, "unused": 1024}),
        # What nobody tells
        (Held(10 * GIB), {"unknown": 10240}),
        (Held(10 * GIB, used=4 * GIB), {"unknown": 4096, "unused": 6144}),
        (Held(10 * GIB, used=9 * GIB, weights=6 * GIB, kv_capacity=2 * GIB),
         {"weights": 6144, "kv": 2048, "activations": 1024, "unused": 1024}),
        (Held(10 * GIB, weights=6 * GIB, kv_capacity=2 * GIB, kv_used=0.5, compute=GIB),
         {"weights": 6144, "kv_used": 1024, "kv_free": 1024, "activations": 1024, "unknown": 1024}),
        # At rest
        (Held(10 * GIB, has_process=False), {"unused": 10240}),
        (Held(10 * GIB, used=GIB, weights=6 * GIB, awake=False), {"activations": 1024, "unused": 9216}),
        (Held(8 * GIB, used=7 * GIB, weights=6 * GIB, awake=False, beside=True),
         {"weights": 6144, "activations": 1024, "unused": 1024}),
        (Held(8 * GIB, used=GIB, weights=6 * GIB, beside=True), {"activations": 1024, "unused": 7168}),
    ],
)  # fmt: skip
def test_an_instances_parts(held: Held, parts: dict[str, int]) -> None:
    assert of(parts_of(held)) == parts


size_of = st.one_of(st.none(), st.integers(0, 96 * GIB))
held_of = st.builds(
    Held, st.integers(1, 96 * GIB), size_of, size_of, size_of, st.one_of(st.none(), st.floats(0, 1)), size_of, size_of,
    st.booleans(), st.booleans(), st.booleans(),
)  # fmt: skip


@given(held_of)
def test_parts_are_what_is_claimed_or_in_use_where_that_is_more(held: Held) -> None:
    parts = parts_of(held)
    assert all(mib >= 0 for _, mib, _ in parts)
    used = held.used if held.used is not None and held.has_process else 0
    assert sum(mib for _, mib, _ in parts) == max(held.claimed // MIB, used // MIB)


@given(
    st.lists(st.tuples(st.integers(1, 40), size_of, size_of, st.sampled_from([None, ACME, RIVAL])), max_size=6),
    st.integers(0, 80 * GIB),
    st.one_of(st.none(), st.integers(0, 80 * GIB)),
)
def test_segments_never_add_up_to_more_than_the_device(
    held: list[tuple[int, int | None, int | None, UUID | None]], size: int, used: int | None
) -> None:
    claims = [
        (an_instance(100 + at, weights=weights, tenant_id=tenant), gib)
        for at, (gib, _, weights, tenant) in enumerate(held)
    ]
    by = {str(UUID(int=100 + at)): own for at, (_, own, _, _) in enumerate(held)}
    devices = [a_device(size=size, used=used, by_instance=by)]
    given, instances = [a_claim(*one) for one in claims], {one.instance_id: one for one, _ in claims}
    tree = build_tree(devices, given, instances, WHO)
    assert all(value >= 0 for value in tree.values)
    assert sum(tree.values) == size // MIB
    raw = build_tree(devices, given, instances, WHO, fitted=False)
    assert fitted(raw).values == tree.values
    own = for_tenant(raw, str(ACME), scope="tenant:acme", label="Acme")
    assert all(value >= 0 for value in own.values)
    assert sum(own.values) == (size // MIB if any(tenant == ACME for *_, tenant in held) else 0)
    for sample, to in product(samples_of(raw), (None, str(ACME))):
        told = shown_to(to, sample)
        assert told is None or sum(told.values()) == size // MIB


def test_a_tree_has_a_stable_order() -> None:
    devices = [
        a_device(device_id=UUID(int=9), node_id=UUID(int=8), node="b", index=0),
        a_device(device_id=OTHER_GPU, index=10),
        a_device(device_id=UUID(int=4), index=2),
        a_device(device_id=UUID(int=5), kind="cpu", index=0),
    ]
    late, soon = an_instance(0x22, tenant_id=RIVAL), an_instance(0x11, tenant_id=RIVAL)
    own, everybodys = an_instance(0x33, tenant_id=ACME), an_instance(0x44)
    instances = {one.instance_id: one for one in (late, soon, own, everybodys)}
    claims = [a_claim(one, 4, on=OTHER_GPU) for one in instances.values()]
    one_way = build_tree(devices, claims, instances, WHO)
    other_way = build_tree(reversed(devices), reversed(claims), dict(reversed(instances.items())), WHO)
    assert one_way == other_way
    shown = [(kind, label) for _, kind, _, label, _ in one_way.nodes if kind not in ("segment", "cluster")]
    assert shown == [
        ("node", "b"), ("gpu", "b/0"), ("node", "node-1"), ("gpu", "node-1/2"), ("gpu", "node-1/10"),
        ("tenant", "Acme"), ("instance", "model-51"),
        ("tenant", "Rival Labs"), ("instance", "model-17"), ("instance", "model-34"),
        ("tenant", "shared"), ("instance", "model-68"), ("gpu", "node-1/cpu"),
    ]  # fmt: skip


def test_what_is_in_use_beside_claims_is_told_and_what_nobody_tells_is_unknown() -> None:
    instance = an_instance(7, weights=8 * GIB, kv_capacity=2 * GIB, kv_used=0.5)
    by = {str(instance.instance_id): 11 * GIB}
    told = grown([a_device(by_instance=by, used=14 * GIB)], [(instance, 12)])
    assert segments(told)[-2:] == [("other", 3072), ("free", (80 - 12 - 3) * 1024)]
    # An instance that does not tell its use: of what is in use, as much may be beside it as the driver says.
    for used, unsure in ((14, 14), (78, 68)):
        untold = grown([a_device(used=used * GIB)], [(an_instance(7), 12)])
        assert segments(untold) == [
            ("unknown", 12 * 1024), ("unknown", unsure * 1024), ("free", (68 - unsure) * 1024),
        ]  # fmt: skip
    silent = grown([a_device(used=None)], [(instance, 12)])
    assert segments(silent)[-1] == ("unknown", 68 * 1024)
    stale = grown([a_device(by_instance=by, stale=True)], [(instance, 12)])
    assert segments(stale) == [("unknown", 12 * 1024), ("unknown", 68 * 1024)]
    assert stale.nodes[2][4]["health"] == "unknown"
    assert stale.figures[2]["used"] is None
    sizeless = grown([a_device(size=None, by_instance=by, used=14 * GIB)], [(instance, 12)])
    assert "free" not in dict(segments(sizeless))
    assert sizeless.figures[2]["schedulable"] is None


def test_what_an_engine_tells_of_one_device_or_of_all() -> None:
    """vLLM's ranks hold the same each; llama.cpp tells the sum."""
    two = [a_device(used=60 * GIB), a_device(device_id=OTHER_GPU, index=1, used=60 * GIB)]
    for engine, each in (("vllm", 20), ("llamacpp", 10)):
        one = an_instance(7, engine=engine, weights=20 * GIB, kv_capacity=4 * GIB, kv_used=0.5, device_bytes=80 * GIB)
        claims = [a_claim(one, 50), a_claim(one, 50, on=OTHER_GPU)]
        tree = build_tree(two, claims, {one.instance_id: one}, WHO)
        assert [mib for name, mib in segments(tree) if name == "weights"] == [each * 1024] * 2
        assert summarise(tree).instances == 1


@pytest.mark.shows("U5")
def test_allocated_used_and_schedulable_are_three_figures() -> None:
    idle, busy = an_instance(7, tenant_id=ACME), an_instance(8, weights=6 * GIB, kv_capacity=2 * GIB, kv_used=0.95)
    by = {str(idle.instance_id): GIB, str(busy.instance_id): 9 * GIB}
    devices = [
        a_device(by_instance=by, used=11 * GIB),
        a_device(device_id=OTHER_GPU, index=1, used=2 * GIB, takes_new=False),
        a_device(device_id=UUID(int=5), index=2, used=None),
        a_device(device_id=UUID(int=6), kind="cpu", size=500 * GIB),
    ]
    summary = summarise(grown(devices, [(idle, 20), (busy, 10)]))
    assert (summary.devices, summary.instances, summary.size_mib) == (3, 2, 240 * 1024)
    assert (summary.allocated_mib, summary.used_mib, summary.schedulable_mib) == (30 * 1024, 13 * 1024, 130 * 1024)
    assert summary.untold == 1
    assert (summary.weights_mib, summary.kv_reserved_mib, summary.kv_used_mib) == (6144, 2048, 1946)
    assert summary.hole is not None
    assert (summary.hole.device, summary.hole.mib) == ("node-1/2", 80 * 1024)
    assert summary.pressed == 1
    assert [(one.model, one.used, one.free_mib) for one in summary.tightest] == [("model-8", 0.95, 102)]


def test_what_nobody_tells_is_no_figure_of_nothing() -> None:
    summary = summarise(grown([a_device(size=None, used=None)], [(an_instance(7), 12)]))
    assert (summary.schedulable_mib, summary.used_mib) == (None, None)
    assert (summary.weights_mib, summary.kv_reserved_mib, summary.kv_used_mib) == (None, None, None)
    assert summarise(grown([], [])).schedulable_mib == 0


def test_a_device_claimed_whole_takes_nothing_more() -> None:
    one = an_instance(7)
    tree = build_tree([a_device()], [a_claim(one, 10, whole=True)], {one.instance_id: one}, WHO)
    assert tree.figures[2]["schedulable"] == 0


def test_figures_are_of_processors_where_there_is_no_gpu() -> None:
    one = an_instance(7, device_kind="cpu", engine="llamacpp", rss=GIB, weights=GIB // 2, kv_capacity=GIB // 4)
    tree = grown([a_device(kind="cpu", size=16 * GIB, used=5 * GIB)], [(one, 2)])
    assert segments(tree) == [
        ("weights", 512), ("unknown", 256), ("activations", 256), ("unused", 1024), ("other", 4096),
        ("free", (16 - 2 - 4) * 1024),
    ]  # fmt: skip
    summary = summarise(tree)
    assert (summary.size_mib, summary.kv_reserved_mib, summary.kv_used_mib) == (16 * 1024, 256, None)
