"""A tenant's tree: whatever others do within their claims, it looks the same."""

from dataclasses import replace
from datetime import UTC, datetime
from uuid import UUID

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from gpupool.policies.memory_history import samples_of, shown_to
from gpupool.policies.memory_summary import summarise, table_of
from gpupool.policies.memory_tree import MemoryTree, build_tree
from gpupool.policies.memory_view import for_tenant
from gpupool.policies.memory_wire import MemoryEncoder, MemoryReplay
from tests.gpupool.policies.test_memory_tree import ACME, GIB, OTHER_GPU, RIVAL, WHO, a_claim, a_device, an_instance

OWN = an_instance(
    0x51, tenant_id=ACME, weights=5 * GIB, kv_capacity=2 * GIB, kv_used=0.5, model="acme-model", state="ready"
)
share = st.one_of(st.none(), st.floats(0, 1))
use = st.one_of(st.none(), st.integers(0, 40 * GIB))


def whole(
    *, theirs: int | None = 20 * GIB, kv: float | None = 0.5, common: int | None = GIB, used: int | None = 60 * GIB,
    weights: int | None = 10 * GIB, state: str = "ready",
) -> MemoryTree:  # fmt: skip
    """One device where Acme, a rival and everybody have claims, and one where the rival alone has."""
    rival = an_instance(
        0x52, tenant_id=RIVAL, model="secret-model", weights=weights, kv_capacity=4 * GIB, kv_used=kv, state=state
    )
    everybody = an_instance(0x53, model="common-model", weights=common, kv_capacity=GIB, kv_used=kv)
    apart = an_instance(0x54, tenant_id=RIVAL, model="secret-model")
    instances = {one.instance_id: one for one in (OWN, rival, everybody, apart)}
    by = {str(OWN.instance_id): 8 * GIB, str(rival.instance_id): theirs, str(everybody.instance_id): common}
    devices = [a_device(by_instance=by, used=used), a_device(device_id=OTHER_GPU, index=1, used=used)]
    claims = [a_claim(OWN, 10), a_claim(rival, 30), a_claim(everybody, 20), a_claim(apart, 70, on=OTHER_GPU)]
    return build_tree(devices, claims, instances, WHO, fitted=False)


def acmes(tree: MemoryTree) -> MemoryTree:
    return for_tenant(tree, str(ACME), scope="tenant:acme", label="Acme")


def test_a_tenant_sees_its_own_and_how_much_others_have_claimed() -> None:
    tree = acmes(whole())
    assert [(row.tenant, row.segment, row.mib) for row in table_of(tree)] == [
        ("Acme", "weights", 5120), ("Acme", "kv_used", 1024), ("Acme", "kv_free", 1024), ("Acme", "activations", 1024),
        ("Acme", "unused", 2048), ("", "reserved", 50 * 1024), ("", "free", 20 * 1024),
    ]  # fmt: skip
    assert tree.scope == "tenant:acme"
    gpu = next(at for at, node in enumerate(tree.nodes) if node[1] == "gpu")
    assert dict(tree.figures[gpu]) == {"reserved": 60 * 1024, "used": 8 * 1024, "schedulable": 20 * 1024}
    assert summarise(tree).tightest[0].model == "acme-model"


@given(theirs=use, kv=share, common=use, used=use, weights=use, state=st.sampled_from(["ready", "asleep", "failed"]))
def test_nothing_of_it_depends_on_what_others_use(
    theirs: int | None, kv: float | None, common: int | None, used: int | None, weights: int | None, state: str
) -> None:
    """Not by subtraction either: the frames are the same to the byte."""
    other = acmes(whole(theirs=theirs, kv=kv, common=common, used=used, weights=weights, state=state))
    assert other == acmes(whole())


def test_its_own_use_is_told_wherever_its_processes_are_measured() -> None:
    """An engine that says nothing of what it has: all that its processes have is unknown, and in use."""
    silent = replace(OWN, weights=None, kv_capacity=None)
    for by, used in ((8 * GIB, 8 * 1024), (None, None)):
        device = a_device(by_instance={str(silent.instance_id): by})
        tree = build_tree([device], [a_claim(silent, 10)], {silent.instance_id: silent}, WHO, fitted=False)
        assert [told["used"] for told in acmes(tree).figures.values() if "used" in told] == [used]


def test_names_of_others_are_nowhere_in_it() -> None:
    text = msgspec.json.encode(acmes(whole())).decode()
    assert "acme-model" in text
    for word in ("secret", "Rival", "rival", str(RIVAL), "common-model", str(UUID(int=0x52)), str(OTHER_GPU)):
        assert word not in text


def test_who_has_no_claim_sees_no_device() -> None:
    nobody = for_tenant(whole(), str(UUID(int=0xC)), scope="tenant:nobody", label="Nobody")
    assert nobody.nodes == ((-1, "cluster", "tenant:nobody", "Nobody", {}),)
    assert nobody.values == ()
    assert summarise(nobody).hole is None


MORE_THAN_CLAIMED = st.integers(0, 96 * GIB)


@given(own=MORE_THAN_CLAIMED, theirs=MORE_THAN_CLAIMED, used=use, told=st.booleans())
def test_what_a_device_is_too_full_for_tells_nothing_of_others_either(
    own: int, theirs: int, used: int | None, told: bool
) -> None:
    """Live, in a frame that is read back, and in a sample: where all together have more than the device."""

    def views(theirs: int, used: int | None) -> tuple[MemoryTree, MemoryTree, object]:
        mine = an_instance(0x51, tenant_id=ACME, weights=5 * GIB, kv_capacity=2 * GIB if told else None, kv_used=0.5)
        silent = an_instance(0x55, tenant_id=ACME, weights=None if told else GIB)
        rival = an_instance(0x52, tenant_id=RIVAL, weights=GIB)
        by: dict[str, int | None] = {str(mine.instance_id): own, str(rival.instance_id): theirs}
        instances = {one.instance_id: one for one in (mine, silent, rival)}
        claims = [a_claim(mine, 10), a_claim(silent, 10), a_claim(rival, 60)]
        tree = build_tree([a_device(by_instance=by, used=used)], claims, instances, WHO, fitted=False)
        replay = MemoryReplay(MemoryEncoder().keyframe(tree, epoch=1, seq=1, at=datetime(2026, 3, 1, tzinfo=UTC)))
        return acmes(tree), acmes(replay.tree()), shown_to(str(ACME), next(samples_of(tree)))

    assert views(theirs, used) == views(20 * GIB, 60 * GIB)
    assert sum(views(theirs, used)[0].values) == 80 * 1024
