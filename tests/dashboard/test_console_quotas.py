"""The console's pages of quotas, prices and what is asked for beyond them."""

from datetime import timedelta

import pytest
from django.test import Client
from django.utils import timezone

from tenants import services, standing
from tenants.actor import SYSTEM
from tenants.models import (
    AccessRequest,
    AuditEvent,
    Limit,
    Metric,
    Price,
    TenantRole,
    User,
)
from tests.dashboard.people import person, pool, tenant
from tests.dashboard.tenancy_rows import asked_by, limit, text_of

pytestmark = pytest.mark.django_db


def test_use_now_is_shown_in_the_limits_own_window_and_unknown_is_not_zero(
    operator: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    known, other = limit(tenant("acme")), limit(tenant("bank"))
    told = {known.pk: standing.Standing(used=800, reserved=50, remaining=150, reset_seconds=60)}
    monkeypatch.setattr(standing, "_readers", [lambda ids: {one: told[one] for one in ids if one in told}])
    rows = {row.limit.pk: row for row in operator.get("/console/quotas/").context["rows"]}
    assert (rows[known.pk].taken, rows[known.pk].tone) == (850, "used")
    assert rows[other.pk].taken is None
    assert "unknown" in text_of(operator.get("/console/quotas/?tenant=bank"))


def test_a_limit_is_made_changed_raised_and_deleted(operator: Client) -> None:
    tenant("acme")
    form = {"tenant": "acme", "metric": "money", "window": "month", "amount": "12.50", "alert_shares": "50, 80"}
    assert operator.post("/console/quotas/new/", form).headers["Location"] == "/console/quotas/?tenant=acme"
    made = Limit.objects.get()
    assert (made.amount, made.alert_shares) == (12_500_000, [50, 80])
    operator.post(f"/console/quotas/{made.pk}/", {"amount": "20", "alert_shares": "90", "note": "for the launch"})
    made.refresh_from_db()
    assert (made.amount, made.alert_shares, made.note) == (20_000_000, [90], "for the launch")
    operator.post(f"/console/quotas/{made.pk}/raise/", {"amount": "40", "hours": "24"})
    made.refresh_from_db()
    assert made.boost_amount == 40_000_000
    assert "raised from 20.00 USD" in text_of(operator.get("/console/quotas/?scope=raised"))
    operator.post(f"/console/quotas/{made.pk}/raise/", {"end": "1"})
    assert Limit.objects.get().boost_amount is None
    assert "holds nothing back any more" in text_of(operator.get(f"/console/quotas/{made.pk}/delete/"))
    operator.post(f"/console/quotas/{made.pk}/delete/")
    assert not Limit.objects.exists()
    actions = AuditEvent.objects.filter(subject_type="tenants.Limit").order_by("pk").values_list("action", flat=True)
    assert [*actions] == [
        "limit.created",
        "limit.changed",
        "limit.boosted",
        "limit.boost_ended",
        "limit.deleted",
    ]


def test_a_limit_of_one_key_and_of_gpu_memory(operator: Client) -> None:
    acme = tenant("acme")
    key = services.create_api_key(acme, name="batch jobs", actor=SYSTEM).key
    operator.post(
        "/console/quotas/new/",
        {"tenant": "acme", "key": "batch jobs", "metric": "requests", "window": "minute", "amount": "60"},
    )
    assert Limit.objects.get().key_id == key.pk
    operator.post(
        "/console/quotas/new/", {"tenant": "acme", "metric": "gpu_memory", "window": "standing", "amount": "1.5"}
    )
    assert Limit.objects.get(metric=Metric.GPU_MEMORY).amount == 3 * 2**29


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"window": "standing"}, "by bucket, day, minute, month"),
        ({"amount": "1.5"}, "whole number"),
        ({"amount": "0"}, "greater than or equal"),
        ({"tenant": "nobody"}, "no tenant of this address"),
        ({"key": "none"}, "no such key"),
        ({"tenant": "", "key": "x"}, "tenant too"),
        ({"alert_shares": "many"}, "percentages"),
    ],
)
def test_what_a_limit_cannot_be_is_told_with_the_form(operator: Client, values: dict[str, str], said: str) -> None:
    tenant("acme")
    form = {"tenant": "acme", "metric": "tokens", "window": "day", "amount": "100", **values}
    refused = operator.post("/console/quotas/new/", form)
    assert refused.status_code == 422
    assert said in text_of(refused)
    assert not Limit.objects.exists()


def test_a_price_is_added_and_one_to_come_taken_back(operator: Client) -> None:
    ahead = (timezone.now() + timedelta(days=9)).strftime("%Y-%m-%dT%H:%M")
    operator.post("/console/prices/new/", {"model": "qwen3-8b", "input": "0.5", "output": "1.5"})
    operator.post("/console/prices/new/", {"model": "qwen3-8b", "input": "0.4", "effective_from": ahead})
    assert [price.input_micros for price in Price.objects.order_by("effective_from")] == [500_000, 400_000]
    rows = operator.get("/console/prices/").context["rows"]
    assert [(row.standing, row.may_withdraw) for row in rows] == [("ahead", True), ("current", False)]
    assert len(operator.get("/console/prices/?when=current").context["rows"]) == 1
    operator.post(f"/console/prices/{rows[0].price.pk}/withdraw/")
    assert operator.post(f"/console/prices/{rows[1].price.pk}/withdraw/").status_code == 302
    assert Price.objects.count() == 1  # what is in effect stays in the book


@pytest.fixture
def asked() -> AccessRequest:
    acme = tenant("acme", ada=TenantRole.OWNER)
    limit(acme)
    pool()
    return asked_by(acme, User.objects.get(email="ada@example.com"))


def test_a_request_shows_its_impact_and_is_approved_with_a_note(operator: Client, asked: AccessRequest) -> None:
    assert operator.get("/console/approvals/").context["rows"] == [asked]
    page = operator.get(f"/console/approvals/{asked.pk}/")
    assert [one.load.model for one in page.context["impacts"]] == ["qwen3-8b"]
    assert "The launch is next week." in text_of(page)
    operator.post(f"/console/approvals/{asked.pk}/", {"decision": "approve", "answer": "Good luck.", "amount": "3000"})
    asked.refresh_from_db()
    assert (asked.state, asked.answer) == ("approved", "Good luck.")
    assert Limit.objects.get().amount == 3_000
    assert operator.get("/console/approvals/").context["rows"] == []
    assert operator.get("/console/approvals/?state=approved").context["rows"] == [asked]


def test_a_request_is_declined_and_nothing_changes(operator: Client, asked: AccessRequest) -> None:
    operator.post(f"/console/approvals/{asked.pk}/", {"decision": "decline", "answer": "Not this month."})
    asked.refresh_from_db()
    assert asked.state == "declined"
    assert Limit.objects.get().amount == 1_000
    again = operator.post(f"/console/approvals/{asked.pk}/", {"decision": "approve"})
    assert again.status_code == 422
    assert "declined already" in text_of(again)


def test_nobody_approves_their_own_request_while_somebody_else_can(client: Client) -> None:
    acme = tenant("acme")
    limit(acme)
    olga = person("olga", platform_role="operator")
    person("otto", platform_role="operator")
    own = asked_by(acme, olga)
    client.force_login(olga)
    assert "another operator approves it" in text_of(client.get(f"/console/approvals/{own.pk}/"))
    assert client.post(f"/console/approvals/{own.pk}/", {"decision": "approve"}).status_code == 422
    assert Limit.objects.get().amount == 1_000
