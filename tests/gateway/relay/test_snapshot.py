"""The snapshot: what lookups find after loads, deltas and evictions."""

import sys
import threading
from uuid import UUID, uuid4

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from gateway.relay.plan import Endpoint
from gateway.relay.rows import (
    ENDPOINTS,
    GRANTS,
    KEYS,
    LIMITS,
    MODELS,
    PRICES,
    EndpointRow,
    KeyRow,
    LimitRow,
    ModelRow,
    PriceRow,
    TenantRow,
)
from gateway.relay.snapshot import Snapshot, digest_credential
from tenants.policies.pricing import PriceTag


def a_key(digest: str, key_id: UUID | None = None, *, revoked: bool = False) -> KeyRow:
    return KeyRow(key_id or uuid4(), digest, uuid4(), frozenset({"infer"}), (), None, None, revoked)


def an_endpoint(model_id: UUID, instance_id: UUID | None = None, *, port: int = 1) -> EndpointRow:
    instance_id = instance_id or uuid4()
    endpoint = Endpoint(instance_id, uuid4(), "vllm", "127.0.0.1", port, "", "tiny")
    return EndpointRow(instance_id, model_id, endpoint)


def test_a_key_is_known_once_resolved_found_or_not() -> None:
    snapshot = Snapshot()
    assert not snapshot.knows("a")
    row = a_key("a")
    snapshot.add_resolved("a", row)
    snapshot.add_resolved("b", None)
    assert snapshot.knows("a")
    assert snapshot.knows("b")
    assert (snapshot.key("a"), snapshot.key("b")) == (row, None)


def test_any_change_of_keys_forgets_what_was_unknown() -> None:
    snapshot = Snapshot()
    snapshot.add_resolved("late", None)
    snapshot.apply(KEYS, [uuid4()], [], through=1)
    assert not snapshot.knows("late")


def test_a_changed_key_is_replaced_and_a_deleted_one_forgotten() -> None:
    snapshot = Snapshot()
    row = a_key("a")
    snapshot.add_resolved("a", row)
    snapshot.apply(KEYS, [row.id], [a_key("a", row.id, revoked=True)], through=1)
    found = snapshot.key("a")
    assert found is not None
    assert found.revoked
    snapshot.apply(KEYS, [row.id], [], through=2)
    assert not snapshot.knows("a")


@given(st.lists(st.integers(0, 9), max_size=60))
def test_the_caches_of_keys_are_bounded_and_keep_the_latest(asked: list[int]) -> None:
    snapshot = Snapshot(key_capacity=3, unknown_capacity=2)
    recent: list[int] = []
    for number in asked:
        digest = str(number)
        if not snapshot.knows(digest):
            snapshot.add_resolved(digest, a_key(digest))
        assert snapshot.key(digest) is not None
        recent = [n for n in recent if n != number] + [number]
        snapshot.add_resolved(f"no {number}", None)
    for number in range(10):
        assert snapshot.knows(str(number)) == (number in recent[-3:])
    assert sum(snapshot.knows(f"no {number}") for number in range(10)) <= 2
    assert len(snapshot._keys) == len(snapshot._digests)


def test_a_renamed_model_is_found_by_its_new_name_only() -> None:
    snapshot = Snapshot()
    model_id = uuid4()
    snapshot.apply(MODELS, [model_id], [ModelRow(model_id, "old", None, 1)], through=1)
    snapshot.apply(MODELS, [model_id], [ModelRow(model_id, "new", None, 1)], through=2)
    assert snapshot.model("old") is None
    assert [row.name for row in snapshot.models()] == ["new"]


def test_two_models_that_change_names_in_one_delta_are_both_found() -> None:
    snapshot = Snapshot()
    one, two = uuid4(), uuid4()
    snapshot.apply(MODELS, [one, two], [ModelRow(one, "a", None, 1), ModelRow(two, "b", None, 1)], through=1)
    snapshot.apply(MODELS, [one, two], [ModelRow(one, "b", None, 1), ModelRow(two, "a", None, 1)], through=2)
    assert {row.name: row.id for row in snapshot.models()} == {"b": one, "a": two}


@given(st.lists(st.tuples(st.integers(0, 4), st.integers(0, 2), st.booleans()), max_size=40))
def test_endpoints_of_a_model_are_those_that_stand(changes: list[tuple[int, int, bool]]) -> None:
    instances = [UUID(int=n + 1) for n in range(5)]
    models = [UUID(int=n + 100) for n in range(3)]
    snapshot = Snapshot()
    standing: dict[UUID, UUID] = {}
    for instance, model, ready in changes:
        instance_id, model_id = instances[instance], models[model]
        rows = [an_endpoint(model_id, instance_id)] if ready else []
        snapshot.apply(ENDPOINTS, [instance_id], rows)
        if ready:
            standing[instance_id] = model_id
        else:
            standing.pop(instance_id, None)
    for model_id in models:
        found = sorted(endpoint.instance_id for endpoint in snapshot.endpoints(model_id))
        assert found == sorted(i for i, m in standing.items() if m == model_id)


def test_a_reload_replaces_a_section_and_leaves_the_others() -> None:
    snapshot = Snapshot()
    gone, kept = uuid4(), uuid4()
    snapshot.apply(GRANTS, [gone], [TenantRow(gone, "gone", True, ())], through=3)
    snapshot.apply(MODELS, [kept], [ModelRow(kept, "kept", None, 1)], through=2)
    fresh = snapshot.begin_section(GRANTS)
    fresh.apply(GRANTS, [], [TenantRow(kept, "here", True, ())])
    snapshot.adopt_section(GRANTS, fresh, 9)
    assert snapshot.tenant(gone) is None
    assert snapshot.tenant(kept) is not None
    assert snapshot.model("kept") is not None
    assert snapshot.applied == {GRANTS: 9, MODELS: 2}


def test_a_credential_of_any_characters_has_a_digest() -> None:
    assert digest_credential("é\udcff") != digest_credential("é")


def test_a_model_is_found_by_its_other_names_as_long_as_it_has_them() -> None:
    snapshot = Snapshot()
    one, two = uuid4(), uuid4()
    snapshot.apply(MODELS, [one], [ModelRow(one, "a", None, 1, aliases=("latest", "best"))])
    found = snapshot.model("latest")
    assert found is not None
    assert found.name == "a"
    assert [row.name for row in snapshot.models()] == ["a"]
    moved = [ModelRow(two, "b", None, 1, aliases=("latest",)), ModelRow(one, "a", None, 1, aliases=("best",))]
    for rows in (moved, moved[::-1]):
        snapshot.apply(MODELS, [one, two], rows)
        assert {name: row.name for name in ("latest", "best") if (row := snapshot.model(name))} == {
            "latest": "b",
            "best": "a",
        }
    snapshot.apply(MODELS, [one, two], [])
    assert [snapshot.model(name) for name in ("a", "b", "latest", "best")] == [None] * 4


@given(st.lists(st.tuples(st.integers(0, 4), st.integers(0, 1), st.sampled_from([None, 1, 2])), max_size=30))
def test_an_endpoint_of_one_tenant_stands_for_that_tenant_alone(changes: list[tuple[int, int, int | None]]) -> None:
    snapshot, model_ids = Snapshot(), [UUID(int=100), UUID(int=101)]
    standing: dict[int, tuple[int, int | None]] = {}
    for number, model, tenant in changes:
        row = an_endpoint(model_ids[model], UUID(int=number + 1))
        bound = msgspec.structs.replace(row.endpoint, tenant_id=None if tenant is None else UUID(int=tenant))
        snapshot.apply(ENDPOINTS, [row.id], [msgspec.structs.replace(row, endpoint=bound)])
        standing[number] = (model, tenant)
    for model in (0, 1):
        for asking in (None, 1, 2):
            found = {
                e.instance_id.int - 1
                for e in snapshot.endpoints(model_ids[model], None if asking is None else UUID(int=asking))
            }
            assert found == {n for n, (m, tenant) in standing.items() if m == model and tenant in (None, asking)}


def test_who_looks_from_another_thread_never_misses_what_only_changes() -> None:
    snapshot, model_id, tenant_id = Snapshot(), uuid4(), uuid4()
    model = ModelRow(model_id, "m", None, 1, aliases=("other",))
    old, new = an_endpoint(model_id), an_endpoint(model_id)
    limit = LimitRow(uuid4(), tenant_id, False, None, "", "tokens", "day", 1, None, None, None, 0.0, "UTC")
    price = PriceRow(uuid4(), "m", None, 0.0, PriceTag(output_micros=1))
    snapshot.apply(MODELS, [], [model])
    snapshot.apply(ENDPOINTS, [], [old])
    snapshot.apply(LIMITS, [], [limit])
    snapshot.apply(PRICES, [], [price])
    over = threading.Event()
    missed: set[str] = set()

    def look() -> None:
        while not over.is_set():
            found = {
                "model": snapshot.model("m"),
                "alias": snapshot.model("other"),
                "endpoint": snapshot.endpoints(model_id),
                "limit": snapshot.limits(tenant_id, None, "m"),
                "price": snapshot.prices("m", 1.0),
            }
            missed.update(name for name, one in found.items() if not one)

    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    looker = threading.Thread(target=look)
    looker.start()
    try:
        for _ in range(2_000):
            snapshot.apply(MODELS, [model_id], [msgspec.structs.replace(model)])
            snapshot.apply(ENDPOINTS, [old.id, new.id], [new])  # a switch
            snapshot.apply(ENDPOINTS, [new.id], [msgspec.structs.replace(new)])
            snapshot.apply(ENDPOINTS, [old.id, new.id], [old])
            snapshot.apply(LIMITS, [limit.id], [msgspec.structs.replace(limit)])
            snapshot.apply(PRICES, [price.id], [msgspec.structs.replace(price)])
    finally:
        over.set()
        looker.join()
        sys.setswitchinterval(before)
    assert missed == set()
