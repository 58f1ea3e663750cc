"""Limits, prices, bills and tenants' places by the control API: who may, what is refused, what races."""

import csv
import io
from datetime import timedelta
from typing import Any
from uuid import uuid4

import pytest
from django.utils import timezone
from rest_framework.test import APIClient

from core.ids import uuid7_from
from gpupool.models import ModelVersion
from tenants.actor import SYSTEM
from tenants.models import Adjustment, GpuShare, Grant, GrantEffect, Limit, PlatformRole, Price, Tenant, TenantRole
from tenants.policies.pricing import PriceTag
from tenants.services.grants import grant_model
from tenants.services.ledger import record_usage
from tenants.services.prices import set_price
from tenants.standing import Standing
from tests.factories import make_key, make_member, make_model, make_tenant, make_user, make_version
from tests.tenants.usage_rows import usage_row
from tests.waiting import stay_within_a_day

pytestmark = pytest.mark.django_db

PROCESS = uuid4()
MINUTE = {"metric": "requests", "window": "minute", "amount": 60}
_numbers = iter(range(1, 1_000_000))


def _client(user: Any) -> APIClient:
    client = APIClient()
    client.force_authenticate(user)
    return client


@pytest.fixture
def acme() -> Tenant:
    return make_tenant("acme")


@pytest.fixture
def operator() -> APIClient:
    return _client(make_user(platform_role=PlatformRole.OPERATOR))


def _member(tenant: Tenant, role: TenantRole) -> APIClient:
    return _client(make_member(tenant, role=role))


def _use(tenant: Tenant, *, seconds_ago: float = 60, **more: Any) -> None:
    at, number = timezone.now().timestamp() - seconds_ago, next(_numbers)
    row = usage_row(
        PROCESS, number, id=uuid7_from(int(at * 1000), 0, number), tenant_id=tenant.pk, started_at=at, **more
    )
    record_usage([row])


def test_an_operator_makes_changes_and_deletes_a_limit(operator: APIClient, acme: Tenant) -> None:
    made = operator.post("/api/tenants/acme/limits/", MINUTE)
    assert made.status_code == 201
    limit = made.json()
    assert (limit["tenant"], limit["amount"]) == ("acme", 60)
    address = f"/api/tenants/acme/limits/{limit['id']}/"
    assert operator.get(address)["ETag"] == made["ETag"]
    changed = operator.patch(address, {"amount": 30, "note": "less"}, HTTP_IF_MATCH=made["ETag"])
    assert (changed.status_code, changed.json()["amount"]) == (200, 30)
    boost = {"amount": 90, "until": (timezone.now() + timedelta(hours=1)).isoformat()}
    boosted = operator.put(address + "boost/", boost, HTTP_IF_MATCH=changed["ETag"])
    assert (boosted.status_code, boosted.json()["boost_amount"]) == (200, 90)
    ended = operator.delete(address + "boost/", HTTP_IF_MATCH=boosted["ETag"])
    assert (ended.status_code, ended.json()["boost_amount"]) == (200, None)
    assert operator.delete(address, HTTP_IF_MATCH=ended["ETag"]).status_code == 204
    assert operator.get(address).status_code == 404


def test_of_two_who_edit_one_limit_the_second_is_told(operator: APIClient, acme: Tenant) -> None:
    made = operator.post("/api/tenants/acme/limits/", MINUTE)
    address = f"/api/tenants/acme/limits/{made.json()['id']}/"
    assert operator.patch(address, {"amount": 1}, HTTP_IF_MATCH=made["ETag"]).status_code == 200
    assert operator.patch(address, {"amount": 2}, HTTP_IF_MATCH=made["ETag"]).status_code == 412
    assert operator.patch(address, {"amount": 2}).status_code == 428
    assert operator.delete(address, HTTP_IF_MATCH=made["ETag"]).status_code == 412
    assert Limit.objects.get().amount == 1


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({**MINUTE, "amount": 0}, "amount"),
        ({**MINUTE, "amount": -1}, "amount"),
        ({**MINUTE, "amount": 2**53 + 1}, "amount"),
        ({**MINUTE, "amount": 1.5}, "amount"),
        ({**MINUTE, "amount": "many"}, "amount"),
        ({**MINUTE, "window": "bucket"}, "refill_per_second"),
        ({**MINUTE, "metric": "money"}, "window"),
        ({**MINUTE, "metric": "x"}, "metric"),
        ({**MINUTE, "key": str(uuid4())}, "key"),
        ({**MINUTE, "alert_shares": [50]}, "alert_shares"),
        ({**MINUTE, "alert_shares": [101]}, "alert_shares"),
        ({}, "amount"),
    ],
)
def test_absurd_limits_are_refused_by_field(
    operator: APIClient, acme: Tenant, body: dict[str, Any], field: str
) -> None:
    refused = operator.post("/api/tenants/acme/limits/", body)
    assert (refused.status_code, refused["content-type"]) == (400, "application/problem+json")
    assert field in refused.json()["errors"]
    assert not Limit.objects.exists()


def test_the_same_limit_twice_is_a_conflict_and_the_same_request_twice_is_done_once(
    operator: APIClient, acme: Tenant
) -> None:
    first = operator.post("/api/tenants/acme/limits/", MINUTE, HTTP_IDEMPOTENCY_KEY="a")
    again = operator.post("/api/tenants/acme/limits/", MINUTE, HTTP_IDEMPOTENCY_KEY="a")
    assert (again.status_code, again.json()["id"]) == (201, first.json()["id"])
    assert operator.post("/api/tenants/acme/limits/", MINUTE).status_code == 409
    assert Limit.objects.count() == 1


@pytest.mark.parametrize("role", [*TenantRole, None])
def test_members_see_their_tenants_limits_and_change_none(
    operator: APIClient, acme: Tenant, role: TenantRole | None
) -> None:
    made = operator.post("/api/tenants/acme/limits/", MINUTE)
    operator.post("/api/tenants/acme/limits/", {**MINUTE, "window": "day"})
    address = f"/api/tenants/acme/limits/{made.json()['id']}/"
    client = _member(acme, role) if role else _client(make_user())
    seen, refused = (200, 403) if role else (404, 404)
    assert client.get("/api/tenants/acme/limits/").status_code == seen
    assert client.get(address).status_code == seen
    assert client.post("/api/tenants/acme/limits/", MINUTE).status_code == refused
    assert client.patch(address, {"amount": 999}, HTTP_IF_MATCH="*").status_code == refused
    assert client.delete(address, HTTP_IF_MATCH="*").status_code == refused
    assert client.get("/api/limits/").status_code == 403
    if role:
        found = client.get("/api/tenants/acme/limits/?window=minute").json()["results"]
        assert [limit["id"] for limit in found] == [made.json()["id"]]
        assert client.get("/api/tenants/acme/limits/?colour=red").status_code == 400


def test_another_tenants_limit_is_not_found_under_ones_own_address(operator: APIClient, acme: Tenant) -> None:
    make_tenant("bank")
    made = operator.post("/api/tenants/bank/limits/", MINUTE).json()
    assert operator.get(f"/api/tenants/acme/limits/{made['id']}/").status_code == 404
    assert operator.delete(f"/api/tenants/acme/limits/{made['id']}/", HTTP_IF_MATCH="*").status_code == 404


def test_limits_of_the_platform_are_the_operators(operator: APIClient, acme: Tenant) -> None:
    made = operator.post("/api/limits/", {**MINUTE, "model": "qwen"})
    assert (made.status_code, made.json()["tenant"]) == (201, None)
    operator.post("/api/tenants/acme/limits/", MINUTE)
    reader = _client(make_user(platform_role=PlatformRole.READ_ONLY))
    assert len(reader.get("/api/limits/").json()["results"]) == 2
    assert [one["tenant"] for one in reader.get("/api/limits/?tenant=acme").json()["results"]] == ["acme"]
    assert [one["tenant"] for one in reader.get("/api/limits/?platform=true").json()["results"]] == [None]
    assert reader.post("/api/limits/", MINUTE).status_code == 403
    address = f"/api/limits/{made.json()['id']}/"
    assert reader.get(address).status_code == 200
    assert reader.patch(address, {"amount": 1}, HTTP_IF_MATCH="*").status_code == 403
    assert operator.patch(address, {"amount": 1}, HTTP_IF_MATCH="*").json()["amount"] == 1


def test_a_limit_says_how_it_stands_and_its_tag_does_not_change_with_it(
    operator: APIClient, acme: Tenant, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = operator.post("/api/tenants/acme/limits/", MINUTE)
    monkeypatch.setattr("tenants.standing._readers", [lambda ids: dict.fromkeys(ids, Standing(3, 4, 53, 60))])
    shown = operator.get(f"/api/tenants/acme/limits/{made.json()['id']}/")
    (listed,) = operator.get("/api/tenants/acme/limits/").json()["results"]
    assert shown.json()["standing"] == {"used": 3, "reserved": 4, "remaining": 53, "reset_seconds": 60}
    assert listed["standing"] == shown.json()["standing"]
    assert shown["ETag"] == made["ETag"]


def test_a_replay_tells_what_a_limit_would_have_blocked(operator: APIClient, acme: Tenant) -> None:
    for second in range(5):
        _use(acme, seconds_ago=1000 - second)
    _use(acme, seconds_ago=9 * 86_400)
    _use(make_tenant("bank"))
    viewer = _member(acme, TenantRole.VIEWER)
    body = {"tenant": "acme", "metric": "tokens", "window": "minute", "amount": 15}
    answer = viewer.post("/api/limits/replay/", body)
    assert answer.status_code == 200
    told = answer.json()
    assert (told["requests"], told["blocked"], told["blocked_share"]) == (5, 3, 0.6)
    assert (told["used"], told["blocked_amount"], told["through"], len(told["first_blocked"])) == (35, 21, None, 3)
    assert not Limit.objects.exists()
    everybody = {name: value for name, value in body.items() if name != "tenant"}
    assert viewer.post("/api/limits/replay/", everybody).status_code == 403
    assert operator.post("/api/limits/replay/", everybody).json()["requests"] == 6
    assert _client(make_user()).post("/api/limits/replay/", body).status_code == 404
    for more, field in (
        ({"metric": "gpus", "window": "standing"}, "metric"),
        ({"amount": 0}, "amount"),
        ({"since": "2026-01-02T00:00:00Z", "until": "2026-01-01T00:00:00Z"}, "until"),
        ({"since": "2020-01-02T00:00:00Z"}, "since"),
        ({"key": str(uuid4())}, "key"),
    ):
        refused = viewer.post("/api/limits/replay/", {**body, **more})
        assert (refused.status_code, [*refused.json()["errors"]]) == (400, [field])


def test_prices_are_taken_exactly_and_only_those_ahead_are_withdrawn(operator: APIClient, acme: Tenant) -> None:
    body = {"model": "qwen", "input": "0.15", "output": 0.6, "request": "0.000001"}
    made = operator.post("/api/prices/", body)
    assert made.status_code == 201
    price = Price.objects.get()
    assert (price.input_micros, price.cached_input_micros, price.output_micros, price.request_micros) == (
        150_000, 150_000, 600_000, 1,
    )  # fmt: skip
    assert (made.json()["input"], made.json()["request"], made.json()["currency"]) == ("0.15", "0.000001", "USD")
    assert operator.delete(f"/api/prices/{price.pk}/").status_code == 409
    ahead = {**body, "effective_from": (timezone.now() + timedelta(days=1)).isoformat()}
    second = operator.post("/api/prices/", ahead).json()
    assert operator.post("/api/prices/", ahead).status_code == 409
    assert [one["id"] for one in operator.get("/api/prices/?future=true").json()["results"]] == [second["id"]]
    assert operator.delete(f"/api/prices/{second['id']}/").status_code == 204
    assert operator.delete(f"/api/prices/{second['id']}/").status_code == 404
    assert operator.get("/api/prices/?model=other").json()["results"] == []


@pytest.mark.parametrize(
    ("more", "field"),
    [
        ({"input": "-0.1"}, "input"),
        ({"output": "1000000.1"}, "output"),
        ({"output": "1e30"}, "output"),
        ({"input": "0.0000001"}, "input"),
        ({"input": "NaN"}, "input"),
        ({"gpu_second": "x"}, "gpu_second"),
        ({"model": ""}, "model"),
        ({"effective_from": "2020-01-01T00:00:00Z"}, "effective_from"),
        ({"effective_from": "2099-01-01T00:00:00Z"}, "effective_from"),
    ],
)
def test_absurd_prices_are_refused_by_field(operator: APIClient, more: dict[str, Any], field: str) -> None:
    refused = operator.post("/api/prices/", {"model": "qwen", **more})
    assert (refused.status_code, [*refused.json()["errors"]]) == (400, [field])
    assert not Price.objects.exists()


def test_members_read_prices_and_nobody_else_but_operators_sets_them(acme: Tenant) -> None:
    set_price("qwen", PriceTag(1, 1, 1), actor=SYSTEM)
    grant_model(acme, model_pattern="q*", actor=SYSTEM)
    owner, stranger = _member(acme, TenantRole.OWNER), _client(make_user())
    assert len(owner.get("/api/prices/").json()["results"]) == 1
    assert stranger.get("/api/prices/").status_code == 403
    assert owner.post("/api/prices/", {"model": "x"}).status_code == 403


def test_what_a_version_costs_that_is_another_tenants_own_is_not_told(operator: APIClient, acme: Tenant) -> None:
    bank = make_tenant("bank")
    shared = make_model("qwen", granted_to=[acme, bank])
    versions = [make_version(shared) for _ in range(3)]
    for version, owner in zip(versions, (None, make_tenant("other").pk, acme.pk), strict=True):
        ModelVersion.objects.filter(pk=version.pk).update(tenant_id=owner)
        set_price("qwen", PriceTag(1, 1, 1), version_id=version.pk, actor=SYSTEM)
    set_price("qwen", PriceTag(1, 1, 1), actor=SYSTEM)

    def told(client: APIClient) -> set[str | None]:
        return {one["version_id"] for one in client.get("/api/prices/").json()["results"]}

    everybodys, others, own = (str(version.pk) for version in versions)
    assert told(operator) == {None, everybodys, others, own}
    assert told(_member(acme, TenantRole.OWNER)) == {None, everybodys, own}
    assert told(_member(bank, TenantRole.OWNER)) == {None, everybodys}


def test_members_see_prices_of_what_their_tenants_may_use_only(operator: APIClient, acme: Tenant) -> None:
    bank = make_tenant("bank")
    make_model("bank-secret", tenant_id=bank.pk)
    make_model("acme-own", tenant_id=acme.pk)
    for model in ("open", "bank-secret", "acme-own", "barred", "ended"):
        set_price(model, PriceTag(1, 1, 1), actor=SYSTEM)
    grant_model(bank, model_pattern="*", actor=SYSTEM)
    viewer = _member(acme, TenantRole.VIEWER)

    def seen(query: str = "") -> list[str]:
        return sorted(price["model"] for price in viewer.get(f"/api/prices/{query}").json()["results"])

    assert seen() == []
    grant_model(acme, model_pattern="*", actor=SYSTEM)
    assert seen() == ["acme-own", "barred", "ended", "open"]
    grant_model(acme, model_pattern="barred", actions=["*"], effect=GrantEffect.DENY, actor=SYSTEM)
    Grant.objects.filter(model_pattern="*", tenant=acme).update(expires_at=timezone.now())
    grant_model(acme, model_pattern="[!e]*", actor=SYSTEM)
    assert seen() == ["acme-own", "open"]
    assert seen("?model=bank-secret") == []
    assert len(operator.get("/api/prices/").json()["results"]) == 5


def test_a_statement_is_told_as_an_object_and_as_a_table(operator: APIClient) -> None:
    stay_within_a_day()
    acme = make_tenant("acme")
    key = make_key(acme).key
    _use(acme, seconds_ago=0, key_id=key.pk, cost_micros=2_500_000, model="=evil()")
    month = f"{timezone.now():%Y-%m}"
    credit = {"kind": "credit", "amount": "-0.5", "month": month, "reason": "+sorry"}
    assert operator.post("/api/tenants/acme/adjustments/", credit).status_code == 201
    billing = _member(acme, TenantRole.BILLING)
    assert billing.get("/api/tenants/acme/statements/").json() == {"results": [month]}
    told = billing.get(f"/api/tenants/acme/statements/{month}/").json()
    assert (told["total"], told["usage"], told["adjusted"], told["closed"]) == ("2.00", "2.50", "-0.50", False)
    assert (told["lines"][0]["key_name"], told["lines"][0]["cost"]) == (key.name, "2.50")
    table = billing.get(f"/api/tenants/acme/statements/{month}.csv")
    text = b"".join(table.streaming_content).decode()  # type: ignore[attr-defined]
    rows = list(csv.DictReader(io.StringIO(text)))
    assert [(row["kind"], row["amount"]) for row in rows] == [
        ("usage", "2.50"), ("credit", "-0.50"), ("total", "2.00"),
    ]  # fmt: skip
    assert (rows[0]["model"], rows[1]["note"]) == ("'=evil()", "'+sorry")
    for wrong in ("2099-01", "2026-13", "x"):
        assert billing.get(f"/api/tenants/acme/statements/{wrong}/").status_code == 404


@pytest.mark.parametrize("role", [*TenantRole])
def test_bills_are_for_those_who_pay(acme: Tenant, role: TenantRole) -> None:
    client = _member(acme, role)
    reads = 200 if role in (TenantRole.OWNER, TenantRole.ADMIN, TenantRole.BILLING) else 403
    month = f"{timezone.now():%Y-%m}"
    for address in (f"statements/{month}/", f"statements/{month}.csv", "statements/", "adjustments/"):
        assert client.get(f"/api/tenants/acme/{address}").status_code == reads, address
    body = {"kind": "credit", "amount": "-1", "month": month, "reason": "mine"}
    assert client.post("/api/tenants/acme/adjustments/", body).status_code == 403
    assert not Adjustment.objects.exists()


def test_shares_of_the_pools_time_are_for_platform_roles(operator: APIClient, acme: Tenant) -> None:
    hour = timezone.now().replace(minute=0, second=0, microsecond=0)
    for tenant_id, cost in ((acme.pk, 5), (None, 7)):
        GpuShare.objects.create(
            hour=hour, instance_id=uuid4(), tenant_id=tenant_id, model="m", gpus=2, busy_ms=9, cost_micros=cost
        )
    told = operator.get("/api/showback/").json()["results"]
    assert [(share["tenant_id"], share["cost"]) for share in told] == [(None, "0.000007"), (str(acme.pk), "0.000005")]
    assert _member(acme, TenantRole.OWNER).get("/api/showback/").status_code == 403


def test_owners_change_name_and_zone_and_operators_tier_and_parent(operator: APIClient, acme: Tenant) -> None:
    make_tenant("group")
    owner = _member(acme, TenantRole.OWNER)
    changed = owner.patch("/api/tenants/acme/", {"name": "New", "time_zone": "Asia/Tokyo"}, HTTP_IF_MATCH="*")
    assert (changed.status_code, changed.json()["name"], changed.json()["time_zone"]) == (200, "New", "Asia/Tokyo")
    for body in ({"sla_tier": "gold"}, {"parent": "group"}, {"parent": None}):
        assert owner.patch("/api/tenants/acme/", body, HTTP_IF_MATCH="*").status_code == 403
    moved = operator.patch("/api/tenants/acme/", {"sla_tier": "gold", "parent": "group"}, HTTP_IF_MATCH="*")
    assert (moved.json()["sla_tier"], moved.json()["parent"]) == ("gold", "group")
    assert [one["slug"] for one in operator.get("/api/tenants/?parent=group").json()["results"]] == ["acme"]
    circle = operator.patch("/api/tenants/group/", {"parent": "acme"}, HTTP_IF_MATCH="*")
    assert (circle.status_code, [*circle.json()["errors"]]) == (400, ["parent"])
    assert operator.patch("/api/tenants/acme/", {"parent": None}, HTTP_IF_MATCH="*").json()["parent"] is None
    assert owner.patch("/api/tenants/acme/", {"name": "x"}).status_code == 428


def test_the_zone_of_a_tenant_with_budgets_is_the_operators_to_change(operator: APIClient, acme: Tenant) -> None:
    operator.post("/api/tenants/acme/limits/", {"metric": "money", "window": "month", "amount": 1_000_000})
    owner = _member(acme, TenantRole.OWNER)
    zone = {"time_zone": "Asia/Tokyo"}
    assert owner.patch("/api/tenants/acme/", zone, HTTP_IF_MATCH="*").status_code == 403
    assert owner.patch("/api/tenants/acme/", {"time_zone": "UTC", "name": "n"}, HTTP_IF_MATCH="*").status_code == 200
    assert operator.patch("/api/tenants/acme/", zone, HTTP_IF_MATCH="*").status_code == 200


def test_a_department_is_made_below_its_parent_or_not_at_all(operator: APIClient, acme: Tenant) -> None:
    made = operator.post("/api/tenants/", {"slug": "lab", "name": "Lab", "parent": "acme"})
    assert (made.status_code, made.json()["parent"]) == (201, "acme")
    refused = operator.post("/api/tenants/", {"slug": "other", "name": "Other", "parent": "nobody"})
    assert refused.status_code == 400
    assert not Tenant.objects.filter(slug="other").exists()
