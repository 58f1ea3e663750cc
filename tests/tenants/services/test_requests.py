"""Requests for more: asked, decided in one transaction with what they grant, over by themselves."""

import threading
from datetime import datetime, timedelta
from typing import Any

import pytest
from django.db import connection
from django.utils import timezone

from core.refusals import Conflict, InvalidInput
from tenants.actor import SYSTEM, Actor, user_actor
from tenants.models import AccessRequest, AuditEvent, Grant, Limit, Notice, PlatformRole, Tenant
from tenants.policies.requests import ALLOWED, OPEN_SECONDS, RequestState
from tenants.services import requests
from tenants.services.endings import end_boosts
from tenants.services.grants import grant_model, remove_expired_grants
from tenants.services.limits import boost_limit, change_limit, create_limit
from tenants.services.requests import decide_request, expire_requests, request_limit, request_model, withdraw_request
from tests.factories import make_key, make_member, make_tenant, make_user

pytestmark = pytest.mark.django_db


def asker(tenant: Tenant) -> Actor:
    return user_actor(make_member(tenant).pk, request_id="r-1")


def approver() -> Actor:
    return user_actor(make_user(platform_role=PlatformRole.OPERATOR).pk)


def in_days(days: float) -> datetime:
    return timezone.now() + timedelta(days=days)


def for_model(tenant: Tenant, **more: Any) -> AccessRequest:
    asked: dict[str, Any] = {"model": "large", "reason": "A trial.", "actor": asker(tenant)}
    return request_model(tenant, **asked | more)


def for_limit(tenant: Tenant, **more: Any) -> AccessRequest:
    asked: dict[str, Any] = {"metric": "tokens", "window": "month", "amount": 2000, "reason": "More people."}
    return request_limit(tenant, **{**asked, "actor": asker(tenant), **more})


def test_an_approved_model_is_granted_until_then() -> None:
    tenant, until = make_tenant(), in_days(7)
    request = for_model(tenant, actions=("infer", "train"), until=until)
    decided = decide_request(request.pk, approved=True, answer="Yes.", actor=approver())
    grant = Grant.objects.get()
    assert decided.grant_id == grant.pk
    assert (grant.model_pattern, grant.actions, grant.expires_at) == ("large", ["infer", "train"], until)
    assert (decided.state, decided.answer) == ("approved", "Yes.")
    assert decided.decided_by_id is not None
    actions = list(AuditEvent.objects.filter(tenant_id=tenant.pk).order_by("id").values_list("action", flat=True))
    assert [one for one in actions if one in ("request.opened", "grant.set", "request.approved")] == [
        "request.opened",
        "grant.set",
        "request.approved",
    ]


def test_a_declined_request_grants_nothing() -> None:
    tenant = make_tenant()
    decided = decide_request(for_model(tenant).pk, approved=False, answer="No room.", actor=approver())
    assert decided.state == "declined"
    assert not Grant.objects.exists()


def test_an_approved_limit_is_raised_for_good_or_for_a_time() -> None:
    tenant = make_tenant()
    limit = create_limit(metric="tokens", window="month", amount=1000, tenant=tenant, actor=SYSTEM)
    until = in_days(3)
    decide_request(for_limit(tenant, until=until).pk, approved=True, actor=approver())
    limit.refresh_from_db()
    assert (limit.amount, limit.boost_amount, limit.boost_until) == (1000, 2000, until)
    decide_request(for_limit(tenant, amount=1500).pk, approved=True, amount=1200, actor=approver())
    limit.refresh_from_db()
    assert (limit.amount, limit.boost_amount) == (1200, 2000)


def test_an_approved_limit_that_is_not_there_yet_is_made() -> None:
    tenant = make_tenant()
    key = make_key(tenant).key
    request = for_limit(tenant, metric="requests", window="minute", amount=60, key=key, model="tiny")
    decided = decide_request(request.pk, approved=True, actor=approver())
    limit = Limit.objects.get()
    assert decided.limit_id == limit.pk
    assert (limit.key_id, limit.model, limit.metric, limit.amount) == (key.pk, "tiny", "requests", 60)


def test_what_is_approved_ends_by_itself_and_is_written_down() -> None:
    tenant, until = make_tenant(), in_days(1)
    create_limit(metric="tokens", window="month", amount=1000, tenant=tenant, actor=SYSTEM)
    for request in (for_limit(tenant, until=until), for_model(tenant, until=until), for_model(tenant, model="other")):
        decide_request(request.pk, approved=True, actor=approver())
    assert expire_requests(now=until - timedelta(seconds=1)) == 0
    assert (expire_requests(now=until), remove_expired_grants(until), end_boosts(now=until)) == (2, 1, 1)
    assert expire_requests(now=until) == 0
    states = list(AccessRequest.objects.order_by("id").values_list("state", flat=True))
    assert states == ["expired", "expired", "approved"]
    assert AuditEvent.objects.filter(action="request.expired").count() == 2


def test_a_request_that_nobody_decides_expires() -> None:
    request = for_model(make_tenant())
    assert expire_requests(now=request.created_at + timedelta(seconds=OPEN_SECONDS - 1)) == 0
    assert expire_requests(now=request.created_at + timedelta(seconds=OPEN_SECONDS)) == 1


@pytest.mark.parametrize("end", ["approved", "declined", "withdrawn"])
def test_what_is_decided_stays_so(end: str) -> None:
    tenant = make_tenant()
    request = for_model(tenant)
    if end == "withdrawn":
        withdraw_request(request.pk, actor=asker(tenant))
    else:
        decide_request(request.pk, approved=end == "approved", actor=approver())
    for decision in (True, False):
        with pytest.raises(Conflict):
            decide_request(request.pk, approved=decision, actor=approver())
    with pytest.raises(Conflict):
        withdraw_request(request.pk, actor=asker(tenant))
    request.refresh_from_db()
    assert request.state == end


def test_the_table_knows_every_state() -> None:
    assert set(ALLOWED) == set(RequestState)
    assert all(RequestState.OPEN not in after for after in ALLOWED.values())


@pytest.mark.django_db(transaction=True)
def test_of_two_who_decide_at_once_one_is_told_so() -> None:
    request = for_model(make_tenant())
    actors = [approver() for _ in range(4)]
    together = threading.Barrier(len(actors))
    told: list[str] = []

    def decide(actor: Actor) -> None:
        together.wait()
        try:
            told.append(decide_request(request.pk, approved=True, actor=actor).state)
        except Conflict:
            told.append("conflict")
        connection.close()

    threads = [threading.Thread(target=decide, args=(actor,)) for actor in actors]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(told) == ["approved", "conflict", "conflict", "conflict"]
    assert Grant.objects.count() == 1


def test_a_grant_that_fails_leaves_the_request_open() -> None:
    tenant = make_tenant()
    key = make_key(tenant).key
    request = for_limit(tenant, metric="requests", window="minute", amount=60, key=key)
    key.delete()
    with pytest.raises(Conflict):
        decide_request(request.pk, approved=True, actor=approver())
    request.refresh_from_db()
    assert request.state == "open"
    assert not Notice.objects.filter(kind="request_decided").exists()


def test_approval_takes_nothing_away_that_is_there() -> None:
    tenant = make_tenant()
    grant_model(tenant, model_pattern="large", actions=["infer"], actor=SYSTEM)
    with pytest.raises(Conflict):  # one grant cannot say infer for good and train for a week
        decide_request(for_model(tenant, actions=("train",), until=in_days(7)).pk, approved=True, actor=approver())
    with pytest.raises(Conflict):  # it is there already
        decide_request(for_model(tenant, actions=("infer",)).pk, approved=True, actor=approver())
    decide_request(for_model(tenant, actions=("embed",)).pk, approved=True, actor=approver())
    grant = Grant.objects.get()
    assert (grant.actions, grant.expires_at) == (["embed", "infer"], None)


def test_both_sides_are_told() -> None:
    tenant = make_tenant()
    request = for_model(tenant, reason="Secret plans.")
    decide_request(request.pk, approved=True, actor=approver())
    opened, decided = Notice.objects.order_by("id")
    assert (opened.kind, opened.tenant_id, opened.payload["tenant_slug"]) == ("request_opened", None, tenant.slug)
    assert (decided.kind, decided.tenant_id, decided.payload["state"]) == ("request_decided", tenant.pk, "approved")
    assert "Secret" not in str([opened.payload, decided.payload])


@pytest.mark.parametrize(
    ("field", "more"),
    [
        ("model", {"model": ""}),
        ("model", {"model": "x" * 201}),
        ("model", {"model": "a\x00"}),
        ("actions", {"actions": ()}),
        ("actions", {"actions": ("fly",)}),
        ("reason", {"reason": "  "}),
        ("reason", {"reason": "x" * 2001}),
        ("until", {"until": datetime(2020, 1, 1).astimezone()}),
        ("until", {"until": datetime(9000, 1, 1).astimezone()}),
    ],
)
def test_requests_of_models_that_make_no_sense_are_refused(field: str, more: dict[str, Any]) -> None:
    with pytest.raises(InvalidInput) as refused:
        for_model(make_tenant(), **more)
    assert refused.value.field == field
    assert not AccessRequest.objects.exists()


@pytest.mark.parametrize(
    ("field", "more"),
    [
        ("metric", {"metric": "hope"}),
        ("window", {"window": "year"}),
        ("amount", {"amount": 0}),
        ("amount", {"amount": -5}),
        ("amount", {"amount": 2**63}),
        ("amount", {"amount": 1000}),
        ("window", {"window": "bucket"}),
        ("until", {"metric": "requests", "until": timezone.now() + timedelta(days=1)}),
    ],
)
def test_requests_of_limits_that_make_no_sense_are_refused(field: str, more: dict[str, Any]) -> None:
    tenant = make_tenant()
    create_limit(metric="tokens", window="month", amount=1000, tenant=tenant, actor=SYSTEM)
    with pytest.raises(InvalidInput) as refused:
        for_limit(tenant, **more)
    assert refused.value.field == field


def test_the_same_is_not_asked_twice_and_not_too_much_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    tenant = make_tenant()
    monkeypatch.setattr(requests, "MOST_OPEN", 2)
    for_model(tenant)
    with pytest.raises(Conflict):
        for_model(tenant)
    for_model(tenant, model="other")
    with pytest.raises(Conflict):
        for_model(tenant, model="third")
    for_model(make_tenant())


@pytest.mark.parametrize("role", [PlatformRole.OPERATOR, PlatformRole.SUPERUSER])
def test_nobody_approves_what_they_asked_for_while_another_can(role: str) -> None:
    tenant = make_tenant()
    both = user_actor(make_user(platform_role=PlatformRole.OPERATOR).pk)
    request = for_model(tenant, actor=both)
    other = make_user(platform_role=role)
    with pytest.raises(Conflict, match="another"):
        decide_request(request.pk, approved=True, actor=both)
    assert not Grant.objects.exists()
    assert decide_request(request.pk, approved=True, actor=user_actor(other.pk)).state == "approved"


def test_an_operator_who_is_the_only_one_approves_alone_and_declines_anyhow() -> None:
    tenant = make_tenant()
    both = user_actor(make_user(platform_role=PlatformRole.OPERATOR).pk)
    make_user(platform_role=PlatformRole.READ_ONLY)
    gone = make_user(platform_role=PlatformRole.OPERATOR)
    gone.is_active = False
    gone.save()
    assert decide_request(for_model(tenant, actor=both).pk, approved=True, actor=both).state == "approved"
    approver()
    assert decide_request(for_model(tenant, model="b", actor=both).pk, approved=False, actor=both).state == "declined"


def test_approval_never_lowers_what_was_raised_since() -> None:
    tenant, until = make_tenant(), in_days(2)
    limit = create_limit(metric="tokens", window="month", amount=1000, tenant=tenant, actor=SYSTEM)
    for_good, for_a_time = for_limit(tenant, amount=2000), for_limit(tenant, amount=3500, until=until)
    change_limit(limit.pk, amount=3000, actor=SYSTEM)
    boost_limit(limit.pk, amount=9000, until=in_days(5), actor=SYSTEM)
    for request in (for_good, for_a_time):
        with pytest.raises(Conflict):
            decide_request(request.pk, approved=True, actor=approver())
        request.refresh_from_db()
        assert request.state == "open"
    with pytest.raises(Conflict):
        decide_request(for_good.pk, approved=True, amount=2500, actor=approver())
    limit.refresh_from_db()
    assert (limit.amount, limit.boost_amount) == (3000, 9000)
    decide_request(for_good.pk, approved=True, amount=4000, actor=approver())
    limit.refresh_from_db()
    assert (limit.amount, limit.boost_amount) == (4000, 9000)


def test_what_was_approved_for_good_is_not_looked_at_again(monkeypatch: pytest.MonkeyPatch) -> None:
    tenant = make_tenant()
    for model in ("a", "b", "c"):
        decide_request(for_model(tenant, model=model).pk, approved=True, actor=approver())
    looked: list[str] = []

    def look(request: AccessRequest, now: datetime) -> bool:
        looked.append(request.state)
        return False

    monkeypatch.setattr(requests, "_is_over", look)
    assert expire_requests(now=timezone.now()) == 0
    assert looked == []
