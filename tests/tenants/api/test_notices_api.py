"""Notices, webhooks and forecasts by the control API: who may, and what they are told."""

import dataclasses
from typing import Any

import pytest
from django.utils import timezone
from pytest_django import Settings
from rest_framework.test import APIClient

from tenants.actor import SYSTEM
from tenants.models import Delivery, Notice, PlatformRole, Tenant, TenantHour, TenantRole, TenantState, User, Webhook
from tenants.reads import notices
from tenants.services.limits import create_limit
from tenants.services.tenants import set_tenant_state
from tenants.services.webhooks import send_test_notice
from tests.factories import make_member, make_tenant, make_user
from tests.waiting import stay_within_a_day

pytestmark = pytest.mark.django_db

HOOK = {"url": "http://127.0.0.1:9/hook", "events": ["budget_share"]}


@pytest.fixture(autouse=True)
def _inside(settings: Settings) -> None:
    settings.GATEHOUSE = dataclasses.replace(settings.GATEHOUSE, webhook_allow_private=True)


def client_of(user: User) -> APIClient:
    client = APIClient()
    client.force_authenticate(user)
    return client


@pytest.fixture
def tenant() -> Tenant:
    return make_tenant("acme")


@pytest.fixture
def admin(tenant: Tenant) -> APIClient:
    return client_of(make_member(tenant, role=TenantRole.ADMIN))


def make_hook(client: APIClient, path: str = "/api/tenants/acme/webhooks/") -> dict[str, Any]:
    answer = client.post(path, HOOK)
    assert answer.status_code == 201, answer.json()
    told: dict[str, Any] = answer.json()
    return told


def test_the_secret_is_told_once(admin: APIClient) -> None:
    made = make_hook(admin)
    assert made["secret"].startswith("whsec_")
    path = f"/api/tenants/acme/webhooks/{made['id']}/"
    assert "secret" not in admin.get(path).json()
    rotated = admin.post(f"{path}rotate/")
    assert rotated.json()["secret"] != made["secret"]
    assert (rotated.json()["secret_version"], rotated["cache-control"]) == (2, "no-store")


def test_a_repeated_create_makes_one_and_does_not_tell_the_secret_again(admin: APIClient) -> None:
    first, again = (admin.post("/api/tenants/acme/webhooks/", HOOK, headers={"idempotency-key": "k"}) for _ in range(2))
    assert first.json()["id"] == again.json()["id"]
    assert "secret" not in again.json()
    assert Webhook.objects.count() == 1


def test_a_change_needs_the_state_it_was_made_from(admin: APIClient) -> None:
    path = f"/api/tenants/acme/webhooks/{make_hook(admin)['id']}/"
    etag = admin.get(path)["etag"]
    assert admin.patch(path, {"enabled": False}).status_code == 428
    changed = admin.patch(path, {"enabled": False}, headers={"if-match": etag})
    assert (changed.status_code, changed.json()["enabled"]) == (200, False)
    assert admin.patch(path, {"enabled": True}, headers={"if-match": etag}).status_code == 412
    assert admin.post(f"{path}test/").status_code == 409  # it is disabled
    assert admin.delete(path).status_code == 204
    assert admin.get(path).status_code == 404


def test_deliveries_are_listed_with_what_came_of_them(admin: APIClient) -> None:
    made = make_hook(admin)
    path = f"/api/tenants/acme/webhooks/{made['id']}/"
    sent = admin.post(f"{path}test/")
    assert sent.status_code == 202
    assert admin.post(f"{path}test/").status_code == 409  # one at a time
    Delivery.objects.update(state="failed", attempts=3)
    send_test_notice(Webhook.objects.get().pk, actor=SYSTEM)
    rows = admin.get(f"{path}deliveries/").json()["results"]
    assert [(row["kind"], row["state"], row["attempts"]) for row in rows] == [
        ("test", "pending", 0), ("test", "failed", 3),
    ]  # fmt: skip
    assert sent.json()["id"] == rows[1]["id"]


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"url": "nothing"}, "url"),
        ({}, "url"),
        ({"url": "http://169.254.169.254/"}, "url"),
        ({"url": "http://127.0.0.1/", "events": ["nothing"]}, "events"),
        ({"url": "http://127.0.0.1/", "events": "key_expiring"}, "events"),
        ({"url": "http://127.0.0.1/" + "x" * 2000}, "url"),
    ],
)
def test_webhooks_that_make_no_sense_are_refused(admin: APIClient, body: dict[str, Any], field: str) -> None:
    refused = admin.post("/api/tenants/acme/webhooks/", body)
    assert refused.status_code == 400
    assert field in str(refused.json())
    assert not Webhook.objects.exists()


@pytest.mark.parametrize(
    ("role", "reads", "makes"),
    [
        (TenantRole.OWNER, 200, 201), (TenantRole.ADMIN, 200, 201), (TenantRole.DEVELOPER, 403, 403),
        (TenantRole.VIEWER, 403, 403), (TenantRole.BILLING, 403, 403),
    ],
)  # fmt: skip
def test_who_may_keep_webhooks(tenant: Tenant, role: TenantRole, reads: int, makes: int) -> None:
    client = client_of(make_member(tenant, role=role))
    assert client.get("/api/tenants/acme/webhooks/").status_code == reads
    assert client.post("/api/tenants/acme/webhooks/", HOOK).status_code == makes


def test_outsiders_see_nothing(tenant: Tenant, admin: APIClient) -> None:
    made = make_hook(admin)
    other = make_tenant("other")
    outsider = client_of(make_member(other, role=TenantRole.OWNER))
    for path in ("notices/", "webhooks/", f"webhooks/{made['id']}/", "requests/", "forecast/"):
        assert outsider.get(f"/api/tenants/acme/{path}").status_code == 404
    assert outsider.get(f"/api/tenants/other/webhooks/{made['id']}/").status_code == 404
    for path in ("/api/notices/", "/api/webhooks/", f"/api/webhooks/{made['id']}/", "/api/requests/"):
        assert outsider.get(path).status_code == 403


def test_the_platform_has_webhooks_and_notices_of_its_own(tenant: Tenant) -> None:
    operator = client_of(make_user(platform_role=PlatformRole.OPERATOR))
    made = make_hook(operator, "/api/webhooks/")
    assert [row["id"] for row in operator.get("/api/webhooks/").json()["results"]] == [made["id"]]
    assert operator.get(f"/api/tenants/acme/webhooks/{made['id']}/").status_code == 404
    reader = client_of(make_user(platform_role=PlatformRole.READ_ONLY))
    assert reader.get(f"/api/webhooks/{made['id']}/").status_code == 200
    assert reader.delete(f"/api/webhooks/{made['id']}/").status_code == 403


def test_who_may_not_change_a_webhook_is_told_its_host_alone(tenant: Tenant, admin: APIClient) -> None:
    operator = client_of(make_user(platform_role=PlatformRole.OPERATOR))
    reader = client_of(make_user(platform_role=PlatformRole.READ_ONLY))
    for keeper, base in ((operator, "/api/webhooks/"), (admin, "/api/tenants/acme/webhooks/")):
        one = f"{base}{make_hook(keeper, base)['id']}/"
        for client, url in ((keeper, HOOK["url"]), (reader, "http://127.0.0.1:9")):
            (row,) = client.get(base).json()["results"]
            assert (row["url"], client.get(one).json()["url"]) == (url, url)
        tag = keeper.get(one).headers["ETag"]
        assert keeper.patch(one, {"enabled": False}, headers={"If-Match": tag}).json()["url"] == HOOK["url"]


def test_notices_are_told_in_the_readers_language(tenant: Tenant) -> None:
    set_tenant_state(tenant.pk, TenantState.SUSPENDED, actor=SYSTEM)
    user = make_member(tenant, role=TenantRole.VIEWER)
    (told,) = client_of(user).get("/api/tenants/acme/notices/").json()["results"]
    assert (told["kind"], told["subject"], told["emailed"]) == (
        "tenant_suspended",
        "Acme is suspended",
        "not_emailed",
    )
    user.language = "zh-hans"
    (told,) = client_of(user).get("/api/tenants/acme/notices/").json()["results"]
    assert told["subject"] == "Acme 已暂停"
    assert Notice.objects.count() == 1


def test_a_months_end_is_forecast(tenant: Tenant) -> None:
    stay_within_a_day()
    limit = create_limit(metric="tokens", window="month", amount=1000, tenant=tenant, actor=SYSTEM)
    hour = timezone.now().replace(minute=0, second=0, microsecond=0)
    limit.counts_from = hour
    limit.save()
    TenantHour.objects.create(tenant_id=tenant.pk, model="m", hour=hour, requests=1, input_tokens=100)
    told = client_of(make_member(tenant)).get("/api/tenants/acme/forecast/").json()["forecasts"]
    assert [(one["limit_id"], one["metric"], one["amount"]) for one in told] == [
        (None, "requests", None),
        (None, "tokens", None),
        (None, "money", None),
        (str(limit.pk), "tokens", 1000),
    ]
    assert [one["used"] for one in told] == [1, 100, 0, 100]
    assert told[1]["expected"] is None or told[1]["expected"] >= 100


@pytest.mark.parametrize("method", ["delete", "patch"])
def test_of_two_who_take_a_webhook_away_at_once_the_second_finds_none(
    admin: APIClient, monkeypatch: pytest.MonkeyPatch, method: str
) -> None:
    made = make_hook(admin)
    get = notices.get_webhook

    def get_and_lose(*asked: Any) -> Webhook:
        found = get(*asked)
        Webhook.objects.all().delete()
        return found

    monkeypatch.setattr(notices, "get_webhook", get_and_lose)
    address = f"/api/tenants/acme/webhooks/{made['id']}/"
    answer = getattr(admin, method)(address, {"enabled": False}, headers={"if-match": "*"})
    assert (answer.status_code, answer["content-type"]) == (404, "application/problem+json")


def test_a_notice_of_a_later_version_spoils_no_list(admin: APIClient, tenant: Tenant) -> None:
    Notice.objects.create(tenant=tenant, kind="of_tomorrow", payload={}, dedupe_key="x")
    (told,) = admin.get("/api/tenants/acme/notices/").json()["results"]
    assert (told["kind"], told["subject"], told["body"]) == ("of_tomorrow", "of_tomorrow", "")
