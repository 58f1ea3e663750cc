"""Settings, webhooks, capacity, members and billing."""

import csv
import re
from datetime import UTC, datetime

import pytest
from django.test import Client
from pytest_django import DjangoAssertNumQueries

from gpupool.models import Instance, Lease, Model, ModelVersion, Node, Reservation
from tenants import services
from tenants.actor import SYSTEM
from tenants.models import AuditEvent, Delivery, Tenant, TenantRole, User, Webhook
from tenants.policies.notices import TENANT_KINDS, NoticeKind
from tenants.policies.pricing import PriceTag
from tenants.services.limits import create_limit
from tenants.services.prices import set_price
from tests.dashboard.people import pool, tenant
from tests.dashboard.portal_rows import MILLION, busy

pytestmark = pytest.mark.django_db
GIB = 1 << 30


@pytest.fixture
def acme(client: Client) -> Tenant:
    made = tenant("acme", ada=TenantRole.OWNER, dev=TenantRole.DEVELOPER)
    client.force_login(User.objects.get(email="ada@example.com"))
    return made


def test_retention_is_changed_and_audited(client: Client, acme: Tenant) -> None:
    days = {"what": "retention", "response_retention_days": "7", "conversation_retention_days": "0"}
    assert "Saved" in client.post("/t/acme/settings/", days, follow=True).content.decode()
    acme.refresh_from_db()
    assert (acme.response_retention_days, acme.conversation_retention_days) == (7, 0)
    assert AuditEvent.objects.filter(action="tenant.changed", tenant_id=acme.pk).count() == 1
    bad = client.post("/t/acme/settings/", days | {"response_retention_days": "99999"})
    assert bad.status_code == 422


def test_the_zone_is_the_tenants_until_budgets_follow_it(client: Client, acme: Tenant) -> None:
    assert client.post("/t/acme/settings/", {"what": "zone", "time_zone": "Mars/Base"}).status_code == 422
    client.post("/t/acme/settings/", {"what": "zone", "time_zone": "Europe/Paris"})
    acme.refresh_from_db()
    assert acme.time_zone == "Europe/Paris"
    create_limit(tenant=acme, metric="money", window="month", amount=5, actor=SYSTEM)
    held = client.post("/t/acme/settings/", {"what": "zone", "time_zone": "UTC"})
    assert held.status_code == 422
    assert "an operator changes it" in client.get("/t/acme/settings/").content.decode()
    acme.refresh_from_db()
    assert acme.time_zone == "Europe/Paris"
    assert client.post("/t/acme/settings/", {"what": "name", "name": "x"}).status_code == 403


def test_a_webhooks_secret_is_in_one_answer_and_a_new_one_in_another(client: Client, acme: Tenant) -> None:
    made = client.post("/t/acme/settings/webhooks/new/", {"url": "https://8.8.8.8/x", "events": ["test"]})
    assert made.status_code == 422  # a test is asked for, not subscribed to
    made = client.post("/t/acme/settings/webhooks/new/", {"url": "https://8.8.8.8/x", "events": ["budget_share"]})
    offered = client.get("/t/acme/settings/webhooks/new/").content.decode()
    assert re.search(r'value="grant_ending"[^>]*>A grant ends soon <span class="dim mono">grant_ending<', offered)
    secret = made.context["secret"]
    webhook = Webhook.objects.get()
    pages = (f"/t/acme/settings/webhooks/{webhook.pk}/", "/t/acme/settings/")
    assert not any(secret in client.get(page).content.decode() for page in pages)
    assert "no-store" in made.headers["Cache-Control"]
    rotated = client.post(f"/t/acme/settings/webhooks/{webhook.pk}/secret/").context["secret"]
    assert rotated != secret
    for url in ("http://127.0.0.1/x", "https://10.0.0.1/x", "file:///etc/passwd", "x"):
        assert client.post("/t/acme/settings/webhooks/new/", {"url": url}).status_code == 422, url
    assert Webhook.objects.count() == 1


def test_a_webhook_is_offered_what_tenants_are_told_of_and_one_that_chose_more_goes_on(
    client: Client, acme: Tenant
) -> None:
    kinds = [NoticeKind.REQUEST_OPENED.value, NoticeKind.GRANT_ENDING.value]  # the first one is told to the platform
    before = Webhook.objects.create(tenant=acme, url="https://8.8.8.8/x", events=sorted(kinds))
    page = "/t/acme/settings/webhooks/new/"
    offered = set(re.findall(r'name="events" value="(\w+)"', client.get(page).content.decode()))
    assert offered == TENANT_KINDS
    assert NoticeKind.REQUEST_OPENED not in offered
    assert client.post(page, {"url": "https://8.8.8.8/y", "events": kinds[:1]}).status_code == 422
    assert "request_opened" in client.get(f"/t/acme/settings/webhooks/{before.pk}/").content.decode()
    change = f"/t/acme/settings/webhooks/{before.pk}/change/"
    offered = set(re.findall(r'name="events" value="(\w+)"', client.get(change).content.decode()))
    assert offered == TENANT_KINDS | {NoticeKind.REQUEST_OPENED}
    client.post(f"/t/acme/settings/webhooks/{before.pk}/switch/off/")
    assert client.post(f"/t/acme/settings/webhooks/{before.pk}/switch/on/").status_code == 302
    assert (Webhook.objects.get().enabled, Webhook.objects.get().events) == (True, sorted(kinds))


def test_a_test_is_sent_once_at_a_time_and_switching_off_ends_it(client: Client, acme: Tenant) -> None:
    webhook = Webhook.objects.create(tenant=acme, url="https://example.com/x")
    address = f"/t/acme/settings/webhooks/{webhook.pk}/"
    client.post(f"{address}test/")
    assert "under way already" in client.post(f"{address}test/", follow=True).content.decode()
    client.post(f"{address}switch/off/")
    assert Delivery.objects.get().state == "failed"
    assert "enable it first" in client.post(f"{address}test/", follow=True).content.decode()
    assert "Nothing is posted to it" not in client.get(address).content.decode()
    client.post(f"{address}switch/on/")
    assert "nothing is posted to it" in client.get(f"{address}delete/").content.decode()
    client.post(f"{address}delete/")
    assert not Webhook.objects.exists()


@pytest.mark.shows("R132", "U5")
def test_reserved_claimed_and_used_are_three_numbers(client: Client, acme: Tenant) -> None:
    made = pool()
    made.instance.tenant_id, made.instance.pid, made.instance.device_bytes = acme.pk, 7, 20 * GIB
    made.instance.save()
    Lease.objects.update(tenant_id=acme.pk)
    Reservation.objects.create(tenant_id=acme.pk, devices=2)
    Reservation.objects.create(tenant_id=tenant("bank").pk, devices=9)
    create_limit(tenant=acme, metric="gpu_memory", window="standing", amount=80 * GIB, actor=SYSTEM)
    page = client.get("/t/acme/capacity/")
    told = page.context["capacity"]
    assert (told.reserved_gpus, told.gpus, told.claimed, told.in_use) == (2, 1, 24 * GIB, 20 * GIB)
    assert [(one.use.held, one.use.used_bytes, one.use.quota.amount) for one in told.quotas] == [
        (24 * GIB, 20 * GIB, 80 * GIB)
    ]
    (row,) = page.context["page"].rows
    assert (row.pk, row.gpus, row.claimed) == (made.instance.pk, 1, 24 * GIB)
    assert (told.made_up, row.made_up) == (0, False)
    Node.objects.update(simulated=True)  # what is made up is said to be
    text = client.get("/t/acme/capacity/").content.decode()
    assert "1 of them simulated" in text
    assert '<span class="pill warn">Simulated</span>' in text
    Instance.objects.update(device_bytes=None)
    assert client.get("/t/acme/capacity/").context["capacity"].in_use is None  # unknown is not zero
    Instance.objects.update(tenant_id=None)
    assert client.get("/t/acme/capacity/").context["page"].rows == []  # shared with others


def test_of_a_quota_that_counts_others_too_no_use_of_theirs_is_told(client: Client, acme: Tenant) -> None:
    above, sister = tenant("group"), tenant("sister")
    for department in (acme, sister):
        department.parent = above
        department.save()
    made = pool()
    made.instance.tenant_id, made.instance.pid, made.instance.device_bytes = sister.pk, 7, 20 * GIB
    made.instance.save()
    Lease.objects.update(tenant_id=sister.pk)
    create_limit(tenant=above, metric="gpu_memory", window="standing", amount=80 * GIB, subtree=True, actor=SYSTEM)
    text = client.get("/t/acme/capacity/").content.decode()
    assert "24.0 GiB" in text  # claimed
    assert "20.0 GiB" not in text
    assert "claimed by all the tenants that it counts" in text


def test_a_statement_adds_up_and_comes_as_csv(client: Client, acme: Tenant) -> None:
    busy(acme, User.objects.get(email="dev@example.com"), days=1)
    page = client.get("/t/acme/billing/")
    statement, months = page.context["statement"], page.context["months"]
    assert statement.adjusted_micros == -5 * MILLION
    assert statement.total_micros == statement.usage_micros - 5 * MILLION
    assert months[0]["total"] == statement.total_micros
    assert [price.model for price in page.context["prices"]] == []  # no such model serves: its price is not theirs
    pool()
    assert [price.model for price in client.get("/t/acme/billing/").context["prices"]] == ["qwen3-8b"]
    lines = list(csv.DictReader(b"".join(client.get("/t/acme/billing/?format=csv")).decode().splitlines()))
    assert {line["kind"] for line in lines} == {"usage", "credit", "total"}
    assert client.get("/t/acme/billing/?month=2999-01").status_code == 404


@pytest.mark.parametrize("zone", ["America/Los_Angeles", "UTC", "Pacific/Kiritimati"])
def test_a_statement_is_called_by_its_own_month_wherever_the_tenant_is(client: Client, acme: Tenant, zone: str) -> None:
    Tenant.objects.filter(pk=acme.pk).update(time_zone=zone, created_at=datetime(2026, 1, 15, tzinfo=UTC))
    text = client.get("/t/acme/billing/?month=2026-03").content.decode()
    assert "Statement, March 2026" in text
    assert re.search(r'href="\?month=2026-03"[^>]*>March 2026<', text)


def test_what_another_tenants_own_version_costs_is_not_told(client: Client, acme: Tenant) -> None:
    pool()
    model = Model.objects.get(name="qwen3-8b")
    for name, owner in (("acmes", acme), ("banks", tenant("bank"))):
        version = ModelVersion.objects.create(
            model=model, name=name, engine="vllm", served_name=name, artefact_uri="file:///m", tenant_id=owner.pk
        )
        set_price(model.name, PriceTag(len(name), 0, 0), version_id=version.pk, actor=SYSTEM)
    told = client.get("/t/acme/billing/").context["prices"]
    assert ModelVersion.objects.get(name="acmes").pk in [price.version_id for price in told]
    assert ModelVersion.objects.get(name="banks").pk not in [price.version_id for price in told]


def test_members_are_sought_sorted_and_listed_as_csv(client: Client, acme: Tenant) -> None:
    for number in range(3):
        user = services.create_user(email=f"m{number}@example.org", password=None, actor=SYSTEM)
        services.add_member(acme, user, role=TenantRole.VIEWER, actor=SYSTEM)

    def names(query: str) -> list[str]:
        return [member.user.email for member, _ in client.get(f"/t/acme/members/?{query}").context["rows"]]

    assert names("sort=name") == [
        "ada@example.com", "dev@example.com", "m0@example.org", "m1@example.org", "m2@example.org",
    ]  # fmt: skip
    assert names("q=example.org&sort=-name")[0] == "m2@example.org"
    assert names("role=owner") == ["ada@example.com"]
    assert names("q=nobody") == []
    assert len(b"".join(client.get("/t/acme/members/?format=csv")).decode().splitlines()) == 6


@pytest.mark.parametrize("page", ["keys/", "members/", "limits/", "capacity/", "billing/", "limits/requests/"])
def test_queries_do_not_grow_with_rows(
    client: Client, acme: Tenant, page: str, django_assert_max_num_queries: DjangoAssertNumQueries
) -> None:
    dev = User.objects.get(email="dev@example.com")
    for number in range(12):
        key = services.create_api_key(acme, name=f"k{number}", actor=SYSTEM, created_by=dev.pk, rpm_limit=5).key
        create_limit(tenant=acme, key=key, metric="tokens", window="day", amount=5, actor=SYSTEM)
        user = services.create_user(email=f"m{number}@example.org", password=None, actor=SYSTEM)
        services.add_member(acme, user, role=TenantRole.VIEWER, actor=SYSTEM)
    with django_assert_max_num_queries(24):
        assert client.get(f"/t/acme/{page}").status_code == 200
