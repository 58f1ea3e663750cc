"""Limits in force and how they stand, what they refused, and asking for more."""

import re
from datetime import timedelta

import pytest
from django.test import Client
from django.utils import timezone
from pytest_django import DjangoAssertNumQueries

from dashboard.live.base import Gone, Viewer
from dashboard.live.feeds.limits import LimitsFeed
from dashboard.reads import portal_limits
from dashboard.reads.portal_limits import read_limits
from tenants import services, standing
from tenants.actor import SYSTEM
from tenants.models import AccessRequest, Limit, Tenant, TenantRole, User
from tenants.policies.requests import RequestState
from tenants.services.departments import set_parent
from tenants.services.limits import boost_limit, create_limit
from tenants.services.requests import request_limit
from tenants.standing import Standing
from tests.dashboard.people import person, tenant
from tests.dashboard.portal_rows import MILLION, refused

pytestmark = pytest.mark.django_db


@pytest.fixture
def acme(client: Client) -> Tenant:
    made = tenant("acme", ada=TenantRole.OWNER, dev=TenantRole.DEVELOPER)
    client.force_login(User.objects.get(email="dev@example.com"))
    return made


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Counters say 90 used and 10 under way of everything; the list has how many were asked for at once."""
    asked: list[int] = []

    def read(ids: list[object]) -> dict[object, Standing]:
        asked.append(len(ids))
        return {one: Standing(used=90, reserved=10, remaining=0, reset_seconds=30) for one in ids}

    monkeypatch.setattr(standing, "_readers", [read])
    return asked


def test_every_limit_in_force_is_told_with_whose_it_is_and_the_platforms_own_are_not(
    client: Client, acme: Tenant, told: list[int]
) -> None:
    above = tenant("group")
    set_parent(acme.pk, above.pk, actor=SYSTEM)
    acme.refresh_from_db()
    key = services.create_api_key(acme, name="k", actor=SYSTEM, rpm_limit=7).key
    create_limit(metric="requests", window="minute", amount=1, actor=SYSTEM)  # everybody's
    create_limit(tenant=tenant("bank"), metric="requests", window="minute", amount=1, actor=SYSTEM)
    create_limit(tenant=above, metric="tokens", window="day", amount=1000, subtree=True, actor=SYSTEM)
    create_limit(tenant=above, metric="tokens", window="month", amount=1000, actor=SYSTEM)  # not its departments'
    raised = create_limit(tenant=acme, metric="requests", window="minute", amount=100, actor=SYSTEM)
    boost_limit(raised.pk, amount=400, until=timezone.now() + timedelta(days=1), actor=SYSTEM)
    create_limit(tenant=acme, key=key, metric="input_tokens", window="minute", amount=200, actor=SYSTEM)
    found = read_limits(acme, timezone.now())
    assert {(one.scope, one.metric, one.of, one.amount) for one in found} == {
        ("above", "tokens", "Group", 1000),
        ("tenant", "requests", "", 400),
        ("key", "input_tokens", "k", 200),
        ("rate", "requests", "k", 7),
    }
    assert {one.scope: one.share for one in found} == {"above": 0.1, "tenant": 0.25, "key": 0.5, "rate": 100 / 7}
    assert told == [4]  # one round trip for all
    text = client.get("/t/acme/limits/").content.decode()
    assert "raised until" in text
    assert "and all its departments, yours too" in text
    assert text.count("Request more</a>") == 2  # not of what is another's to raise, nor of what a key says itself


def test_what_cannot_be_read_is_unknown_and_not_zero(
    client: Client, acme: Tenant, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(standing, "_readers", [lambda ids: {}])
    create_limit(tenant=acme, metric="requests", window="minute", amount=100, actor=SYSTEM)
    (one,) = read_limits(acme, timezone.now())
    assert (one.used, one.share, one.tone) == (None, None, "idle")
    text = client.get("/t/acme/limits/").content.decode()
    assert "unknown" in text
    bars = re.findall(r'<progress class="meter[^>]*data-bar', text)
    assert bars
    assert not any("value=" in bar for bar in bars)
    assert "cannot be read at this moment" in text


def test_the_feed_is_for_the_tenants_people_and_its_queries_do_not_grow(
    acme: Tenant, told: list[int], django_assert_max_num_queries: DjangoAssertNumQueries
) -> None:
    feed = LimitsFeed()
    member = Viewer(1, roles={"acme": "viewer"})
    assert feed.may_watch(member, "tenant:acme")
    assert not feed.may_watch(member, "tenant:bank")
    assert not feed.may_watch(member, "")
    assert not feed.may_watch(Viewer(1, roles={"acme": "viewer"}, suspended=frozenset({"acme"})), "tenant:acme")
    assert feed.may_watch(Viewer(1, platform_role="read_only"), "tenant:acme")
    for number in range(2):
        for window in ("minute", "day", "month"):
            key = services.create_api_key(acme, name=f"k{number}", actor=SYSTEM, rpm_limit=5).key
            create_limit(tenant=acme, key=key, metric="tokens", window=window, amount=500, actor=SYSTEM)
        with django_assert_max_num_queries(4):
            frame = feed.read("tenant:acme", now=timezone.now())
        sent = feed.encoder().keyframe(frame, epoch=1, seq=1, at=timezone.now())
        assert isinstance(sent, str)
        assert sent.count('"share":0.2') == 3 * (number + 1)
    with pytest.raises(Gone):
        feed.read("tenant:nobody", now=timezone.now())


def test_refusals_are_told_by_limit_key_and_model_over_time(client: Client, acme: Tenant) -> None:
    now = timezone.now()
    one = services.create_api_key(acme, name="one", actor=SYSTEM).key
    two = services.create_api_key(acme, name="two", actor=SYSTEM).key
    refused(acme, one, at=now, metric="requests", window="minute", refusals=5, model="big")
    refused(acme, one, at=now - timedelta(minutes=40), metric="tokens", window="day", refusals=3, model="big")
    refused(acme, two, at=now, metric="requests", window="minute", refusals=2, model="small")
    refused(acme, two, at=now - timedelta(days=3), metric="requests", window="minute", refusals=50, model="small")
    refused(tenant("bank"), one, at=now, metric="requests", window="minute", refusals=99, model="big")

    def by(query: str) -> dict[str, int]:
        page = client.get(f"/t/acme/limits/?{query}")
        return {series.name: sum(series.tokens) for series in page.context["series"]}

    assert by("") == {"Requests / a minute": 7, "Tokens / a day": 3}
    assert by("group=key") == {"one": 8, "two": 2}
    assert by("group=model") == {"big": 8, "small": 2}
    assert by("range=7d") == {"Requests / a minute": 57, "Tokens / a day": 3}
    lines = client.get("/t/acme/limits/").context["history"].lines
    assert [(line.key.name, line.metric, line.refusals) for line in lines] == [
        ("one", "requests", 5), ("one", "tokens", 3), ("two", "requests", 2),
    ]  # fmt: skip


def test_console_and_portal_call_limits_and_requests_for_more_the_same(client: Client, acme: Tenant) -> None:
    create_limit(tenant=acme, metric="tokens", window="minute", amount=500, actor=SYSTEM)
    request_limit(acme, metric="tokens", window="minute", amount=900, reason="More people.", actor=SYSTEM)
    portal = client.get("/t/acme/limits/").content.decode()
    asked = client.get("/t/acme/limits/requests/")
    client.force_login(person("otto", platform_role="operator"))
    console = client.get("/console/tenants/acme/").content.decode()
    assert [one.value for one in asked.context["filtered"].facets[0].options if one.value] == list(RequestState)
    for text in (portal, asked.content.decode(), console):
        assert "a minute" in text
        assert 'data-value="open">Open</span>' in text


def test_more_is_asked_in_the_units_that_people_say(client: Client, acme: Tenant) -> None:
    money = create_limit(tenant=acme, metric="money", window="month", amount=50 * MILLION, actor=SYSTEM)
    memory = create_limit(tenant=acme, metric="gpu_memory", window="standing", amount=80 << 30, actor=SYSTEM)
    client.post(f"/t/acme/limits/{money.pk}/more/", {"amount": "75.50", "reason": "December."})
    client.post(f"/t/acme/limits/{memory.pk}/more/", {"amount": "160", "reason": "December.", "until": "2999-01-01"})
    asked = AccessRequest.objects.get()
    assert (asked.what["metric"], asked.what["amount"]) == ("money", 75_500_000)
    assert asked.requested_by == User.objects.get(email="dev@example.com")
    for amount, fault in (("40", "allows"), ("x", "number"), ("80.0000000001", ""), ("", "required")):
        answer = client.post(f"/t/acme/limits/{memory.pk}/more/", {"amount": amount, "reason": "Why."})
        assert answer.status_code == 422, amount
        assert fault in answer.content.decode()
    until = f"{timezone.now() + timedelta(days=9):%Y-%m-%d}"
    client.post(f"/t/acme/limits/{memory.pk}/more/", {"amount": "160", "reason": "December.", "until": until})
    later = AccessRequest.objects.latest("pk")
    assert later.what["amount"] == 160 << 30
    assert later.until is not None
    again = client.post(f"/t/acme/limits/{money.pk}/more/", {"amount": "75.5", "reason": "Again."})
    assert again.status_code == 422
    assert Limit.objects.get(pk=money.pk).amount == 50 * MILLION


def test_what_was_decided_cannot_be_withdrawn(client: Client, acme: Tenant) -> None:
    client.post("/t/acme/models/ask/", {"model": "big", "reason": "To try it."})
    asked = AccessRequest.objects.get()
    assert (
        "Nobody decides about it any more"
        in client.get(f"/t/acme/limits/requests/{asked.pk}/withdraw/").content.decode()
    )
    client.post(f"/t/acme/limits/requests/{asked.pk}/withdraw/")
    asked.refresh_from_db()
    assert asked.state == "withdrawn"
    again = client.post(f"/t/acme/limits/requests/{asked.pk}/withdraw/", follow=True)
    assert "withdrawn already" in again.content.decode()
    listed = client.get("/t/acme/limits/requests/?state=open").content.decode()
    assert "No request matches" in listed


def test_only_the_keys_used_last_are_listed_with_their_rates(
    acme: Tenant, told: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(4):
        services.create_api_key(acme, name=f"k{number}", actor=SYSTEM, rpm_limit=5)
    assert len(read_limits(acme, timezone.now(), rates=2)) == 2
    assert portal_limits.KEY_RATES == 50
