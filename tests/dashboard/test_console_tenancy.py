"""The console's pages of tenancy: tenants, keys, quotas, prices, approvals, people, settings, health, overview."""

import csv
import io
from datetime import timedelta
from typing import Any
from uuid import UUID, uuid4

import pytest
from django.core.cache import cache
from django.test import Client
from django.utils import timezone
from pytest_django import DjangoAssertNumQueries, Settings

from core.tasks import BATCH_MARK, mark_batch
from gpupool.models import Device, Instance, Lease, Node
from tenants import services, standing
from tenants.actor import SYSTEM, user_actor
from tenants.models import (
    AccessRequest,
    AccessToken,
    ApiKey,
    AuditEvent,
    Limit,
    Metric,
    Price,
    RoleMapping,
    Tenant,
    TenantRole,
    User,
    Window,
)
from tenants.policies.pricing import PriceTag
from tenants.services.limits import change_limit
from tenants.services.prices import set_price
from tenants.services.requests import request_model
from tests.dashboard.people import person, pool, tenant
from tests.dashboard.tenancy_rows import asked_by, everything, limit

pytestmark = pytest.mark.django_db

LISTS = [
    "/console/tenants/",
    "/console/keys/",
    "/console/quotas/",
    "/console/prices/",
    "/console/approvals/",
    "/console/people/",
    "/console/audit/",
]
PAGES = [*LISTS, "/console/overview/", "/console/settings/", "/console/health/", "/console/tenants/acme/"]
MOST_QUERIES = 38
_TAG = PriceTag(input_micros=1)


def text_of(response: Any) -> str:
    return str(response.content.decode())


def rows_of(response: Any) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(response.content.decode())))


def addresses() -> dict[str, str]:
    """Of every write that these pages offer."""
    request, key = AccessRequest.objects.get(), ApiKey.objects.get()
    one, price = Limit.objects.filter(tenant__slug="acme").first(), Price.objects.order_by("-effective_from").first()
    ada, token, mapping = (
        User.objects.get(email="ada@example.com"),
        AccessToken.objects.get(),
        RoleMapping.objects.get(),
    )
    assert one is not None
    assert price is not None
    return {
        "new tenant": "/console/tenants/new/",
        "suspend": "/console/tenants/acme/state/suspended/",
        "tier": "/console/tenants/acme/tier/",
        "view as": "/console/tenants/acme/view-as/",
        "revoke key": f"/console/keys/{key.pk}/revoke/",
        "new quota": "/console/quotas/new/",
        "change quota": f"/console/quotas/{one.pk}/",
        "raise quota": f"/console/quotas/{one.pk}/raise/",
        "delete quota": f"/console/quotas/{one.pk}/delete/",
        "new price": "/console/prices/new/",
        "withdraw price": f"/console/prices/{price.pk}/withdraw/",
        "decide": f"/console/approvals/{request.pk}/",
        "new person": "/console/people/new/",
        "role": f"/console/people/{ada.pk}/role/",
        "deactivate": f"/console/people/{ada.pk}/activity/off/",
        "factor": f"/console/people/{ada.pk}/second-factor/",
        "token": f"/console/people/{ada.pk}/tokens/{token.pk}/",
        "new mapping": "/console/people/mappings/new/",
        "mapping": f"/console/people/mappings/{mapping.pk}/",
    }


SUPERUSERS = {"new person", "role", "deactivate", "factor", "token", "new mapping", "mapping"}


def test_read_only_people_see_no_buttons_and_change_nothing(client: Client) -> None:
    everything()
    client.force_login(person("rita", platform_role="read_only"))
    written = addresses()
    pages = [*PAGES, f"/console/people/{User.objects.get(email='ada@example.com').pk}/", written["decide"]]
    shown = "".join(text_of(client.get(page)) for page in pages)
    events = AuditEvent.objects.count()
    for name, address in written.items():
        if name != "decide":
            assert f'"{address}' not in shown, name
            assert client.get(address).status_code == 403, name
        assert client.post(address, {"decision": "approve"}).status_code == 403, name
    assert 'name="decision"' not in shown
    assert AuditEvent.objects.count() == events


def test_people_are_the_superusers_to_change(client: Client) -> None:
    everything()
    client.force_login(person("olga", platform_role="operator"))
    for name, address in addresses().items():
        assert client.get(address).status_code == (403 if name in SUPERUSERS else 200), name
        if name in SUPERUSERS:
            assert client.post(address).status_code == 403, name


def test_outsiders_are_refused(client: Client) -> None:
    tenant("acme", ada=TenantRole.OWNER)
    client.force_login(User.objects.get(email="ada@example.com"))
    for page in PAGES:
        assert client.get(page).status_code == 403, page


@pytest.mark.parametrize("page", LISTS)
def test_no_address_breaks_a_page(operator: Client, page: str) -> None:
    for query in ("q=%00", "after=abc", "sort=nonsense", "tenant=%00", "range=x&zone=y", "state=%00", "action=%00"):
        assert operator.get(f"{page}?{query}").status_code in (200, 404), query


def test_more_rows_take_no_more_queries(
    operator: Client, django_assert_max_num_queries: DjangoAssertNumQueries
) -> None:
    acme = everything()
    few = {}
    for page in (*LISTS, "/console/overview/", "/console/tenants/acme/"):
        with django_assert_max_num_queries(MOST_QUERIES) as asked:
            operator.get(page)
        few[page] = len(asked)
    for number in range(12):
        other = tenant(f"team-{number}", **{f"person{number}": TenantRole.OWNER})
        services.create_api_key(other, name=f"key {number}", actor=SYSTEM)
        services.create_api_key(acme, name=f"key {number}", actor=SYSTEM)
        limit(other)
        limit(acme, model=f"model-{number}")
        set_price(f"model-{number}", _TAG, actor=SYSTEM)
        request_model(other, model=f"model-{number}", reason="Please.", actor=SYSTEM)
    for page, number in few.items():
        with django_assert_max_num_queries(MOST_QUERIES) as asked:
            operator.get(page)
        assert len(asked) <= number + 1, page  # the foot's count, where there was one page


def test_empty_lists_say_what_to_do(operator: Client) -> None:
    for page, said in (
        ("/console/tenants/", "No tenants yet"),
        ("/console/keys/", "No keys yet"),
        ("/console/quotas/", "Nothing is limited yet"),
        ("/console/prices/", "Nothing has a price yet"),
        ("/console/approvals/", "Nothing waits for a decision"),
    ):
        assert said in text_of(operator.get(page)), page


# Tenants.


def test_a_tenant_is_made_with_its_place_and_tier(operator: Client) -> None:
    tenant("acme")
    form = {"name": "Research", "slug": "research", "sla_tier": "gold", "time_zone": "Europe/Berlin", "parent": "acme"}
    assert operator.post("/console/tenants/new/", form).headers["Location"] == "/console/tenants/research/"
    made = Tenant.objects.get(slug="research")
    assert made.parent is not None
    assert (made.sla_tier, made.time_zone, made.parent.slug) == ("gold", "Europe/Berlin", "acme")
    assert AuditEvent.objects.get(action="tenant.created", subject_id=made.pk).actor_kind == "user"


@pytest.mark.parametrize(
    ("field", "value", "said"),
    [
        ("slug", "acme", "already exists"),
        ("slug", "No Slug", "valid"),
        ("time_zone", "Mars/Olympus", "no such time zone"),
        ("parent", "nobody", "no tenant of this address"),
    ],
)
def test_what_a_tenant_cannot_be_is_told_with_the_form(operator: Client, field: str, value: str, said: str) -> None:
    tenant("acme")
    form = {"name": "R", "slug": "research", "sla_tier": "gold", "time_zone": "UTC", "parent": "", field: value}
    refused = operator.post("/console/tenants/new/", form)
    assert refused.status_code == 422
    assert said in text_of(refused)
    assert Tenant.objects.count() == 1


@pytest.mark.shows("U10")
def test_suspending_says_what_will_happen_and_does_it(operator: Client) -> None:
    acme = tenant("acme")
    services.create_api_key(acme, name="one", actor=SYSTEM)
    services.create_api_key(acme, name="two", actor=SYSTEM)
    address = "/console/tenants/acme/state/suspended/"
    asked = text_of(operator.get(address))
    assert "every request with its 2 usable keys is refused" in asked
    assert "Answers that are already streaming finish" in asked
    assert Tenant.objects.get().state == "active"
    operator.post(address)
    assert Tenant.objects.get().state == "suspended"
    assert ApiKey.objects.filter(revoked_at__isnull=True).count() == 2
    assert acme.notices.filter(kind="tenant_suspended").exists()
    operator.post("/console/tenants/acme/state/active/")
    assert Tenant.objects.get().state == "active"


def test_the_tier_is_changed_knowing_what_each_means(operator: Client) -> None:
    tenant("acme")
    assert "99.9 %" in text_of(operator.get("/console/tenants/acme/tier/"))
    operator.post("/console/tenants/acme/tier/", {"sla_tier": "gold"})
    assert Tenant.objects.get().sla_tier == "gold"
    assert AuditEvent.objects.get(action="tenant.changed").after == {"sla_tier": "gold"}
    assert operator.post("/console/tenants/acme/tier/", {"sla_tier": "iron"}).status_code == 422


@pytest.mark.shows("U3")
def test_tenants_are_filtered_and_sorted_over_the_whole_set(operator: Client) -> None:
    for number in range(60):
        services.create_tenant(
            slug=f"t{number:02}", name=f"Team {number:02}", sla_tier="gold" if number < 55 else "silver", actor=SYSTEM
        )
    page = operator.get("/console/tenants/?tier=gold&sort=-name").context
    assert page["page"].counted == 55
    assert page["rows"][0][0].slug == "t54"
    older = operator.get(f"/console/tenants/?tier=gold&sort=-name&after={page['page'].older}").context
    assert [row.slug for row, _ in older["rows"]] == ["t04", "t03", "t02", "t01", "t00"]
    table = rows_of(operator.get("/console/tenants/?tier=gold&sort=-name&format=csv"))
    assert [row["slug"] for row in table[:2]] == ["t54", "t53"]
    assert len(table) == 55


@pytest.mark.shows("U5", "R132")
def test_a_tenants_page_tells_its_quota_its_claims_and_what_is_in_use(operator: Client) -> None:
    acme = everything()
    gib = 2**30
    Instance.objects.update(tenant_id=acme.pk, pid=4711, device_bytes=20 * gib, lease_id=1)
    Lease.objects.update(tenant_id=acme.pk)
    told = operator.get("/console/tenants/acme/")
    use = told.context["told"].pool
    assert (use.instances, use.claimed, use.used) == (1, 24 * gib, 20 * gib)
    (quota,) = use.quotas
    assert (quota.quota.amount, quota.held, quota.used_bytes) == (64 * gib, 24 * gib, 20 * gib)
    assert "24.0 GiB of 64.0 GiB claimed, 20.0 GiB in use" in text_of(told)
    Instance.objects.update(device_bytes=None)
    assert operator.get("/console/tenants/acme/").context["told"].pool.used is None  # unknown, not zero


# Keys.


@pytest.mark.shows("U2", "U3")
def test_keys_of_all_tenants_are_found_by_the_server(operator: Client) -> None:
    acme, bank = tenant("acme"), tenant("bank")
    for number in range(70):
        services.create_api_key(acme, name=f"worker {number:02}", actor=SYSTEM)
    sought = services.create_api_key(bank, name="payments", actor=SYSTEM).key
    page = operator.get("/console/keys/").context["page"]
    assert (page.counted, len(page.rows)) == (71, 50)
    second = operator.get(f"/console/keys/?after={page.older}").context["page"]
    assert len({key.pk for key in (*page.rows, *second.rows)}) == 71
    for words in ("payments", "PAYM", sought.last_four, sought.masked, "bank"):
        found = operator.get("/console/keys/", {"q": words}).context["page"].rows
        assert sought.pk in {key.pk for key in found}, words
    assert [key.name for key in operator.get("/console/keys/?sort=name").context["page"].rows[:2]] == [
        "payments",
        "worker 00",
    ]
    assert len(rows_of(operator.get("/console/keys/?tenant=acme&format=csv"))) == 70


def test_keys_are_filtered_by_state(operator: Client) -> None:
    acme = tenant("acme")
    now = timezone.now()
    made = {name: services.create_api_key(acme, name=name, actor=SYSTEM).key for name in ("on", "old", "off", "leak")}
    ApiKey.objects.filter(pk=made["old"].pk).update(expires_at=now - timedelta(days=1))
    services.revoke_api_key(made["off"].pk, actor=SYSTEM)
    services.revoke_api_key(made["leak"].pk, actor=SYSTEM, compromised=True)
    ApiKey.objects.filter(pk=made["on"].pk).update(last_used_at=now - timedelta(days=91))
    for state, names in (
        ("active", {"on"}),
        ("idle", {"on"}),
        ("expired", {"old"}),
        ("revoked", {"off", "leak"}),
        ("leaked", {"leak"}),
        ("", set(made)),
    ):
        rows = operator.get(f"/console/keys/?state={state}").context["page"].rows
        assert {key.name for key in rows} == names, state


def test_a_key_is_revoked_after_being_asked(operator: Client) -> None:
    key = services.create_api_key(tenant("acme"), name="ci", actor=SYSTEM).key
    address = f"/console/keys/{key.pk}/revoke/"
    assert "This cannot be undone" in text_of(operator.get(address))
    operator.post(address, {"leaked": "on"})
    key.refresh_from_db()
    assert key.revoked_at is not None
    assert key.compromised_at is not None
    assert operator.post(f"/console/keys/{uuid4()}/revoke/").status_code == 404


# Quotas.


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


# Prices.


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


# Approvals.


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


# People.


@pytest.fixture
def root(client: Client) -> Client:
    client.force_login(person("root", platform_role="superuser"))
    return client


def test_a_person_is_made_and_the_link_is_shown_once(root: Client) -> None:
    made = root.post("/console/people/new/", {"email": "new@example.com", "platform_role": "operator"})
    assert "/login/link/" in text_of(made)
    new = User.objects.get(email="new@example.com")
    assert new.platform_role == "operator"
    assert "/login/link/" not in text_of(root.get(f"/console/people/{new.pk}/"))


def test_roles_change_people_are_deactivated_and_tokens_revoked(root: Client) -> None:
    olga = person("olga", platform_role="operator")
    token = services.create_access_token(olga, name="deploys", actor=user_actor(olga.pk)).token
    root.post(f"/console/people/{olga.pk}/role/", {"platform_role": "read_only"})
    assert User.objects.get(pk=olga.pk).platform_role == "read_only"
    root.post(f"/console/people/{olga.pk}/tokens/{token.pk}/")
    assert not AccessToken.objects.exists()
    root.post(f"/console/people/{olga.pk}/activity/off/")
    assert not User.objects.get(pk=olga.pk).is_active
    assert [row.email for row in root.get("/console/people/?state=inactive").context["rows"]] == ["olga@example.com"]
    root.post(f"/console/people/{olga.pk}/activity/on/")
    root.post(f"/console/people/{olga.pk}/second-factor/")
    assert AuditEvent.objects.filter(action="second_factor.reset").exists()


def test_the_last_superuser_stays_one(root: Client) -> None:
    own = User.objects.get(email="root@example.com")
    refused = root.post(f"/console/people/{own.pk}/role/", {"platform_role": ""})
    assert refused.status_code == 422
    assert "last superuser" in text_of(refused)
    root.post(f"/console/people/{own.pk}/activity/off/")
    assert User.objects.get(pk=own.pk).is_active


def test_roles_are_mapped_from_claims(root: Client) -> None:
    form = {"claim": "groups", "value": "gpu-admins", "platform_role": "operator"}
    assert root.post("/console/people/mappings/new/", form).status_code == 302
    mapping = RoleMapping.objects.get()
    assert root.post("/console/people/mappings/new/", form).status_code == 422
    root.post(f"/console/people/mappings/{mapping.pk}/")
    assert not RoleMapping.objects.exists()


# Settings and health.


def test_settings_are_told_with_their_source_and_no_secret(
    operator: Client, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GATEHOUSE_METRICS_TOKEN", "hush-hush")
    rows = {row.variable: row for row in operator.get("/console/settings/").context["rows"]}
    assert rows["GATEHOUSE_METRICS_TOKEN"].source == "environment"
    assert rows["DATABASE_URL"].value == "•••"
    assert rows["GATEHOUSE_LOG_FORMAT"].default == "json"
    shown = text_of(operator.get("/console/settings/"))
    assert settings.GATEHOUSE.database_url not in shown
    assert "hush-hush" not in shown


@pytest.mark.parametrize(
    ("url", "told"),
    [
        ("redis://user:pass@host:1/0", "redis://user:•••@host:1/0"),
        ("redis://host:1/0", "redis://host:1/0"),
        ("http://user@host/x", "http://user@host/x"),
        ("plain@text", "plain@text"),
        ("postgres://user:pa/ss@word@host/x", "postgres://user:•••@host/x"),
        ("redis://:pass@host:1/0", "redis://:•••@host:1/0"),
        ("Error 111 connecting to redis://u:p@host.", "Error 111 connecting to redis://u:•••@host."),
        ("https://host/x?db=1&sslpassword=hush&api_key=k#f", "https://host/x?db=1&sslpassword=•••&api_key=•••#f"),
    ],
)
def test_passwords_in_addresses_are_masked(url: str, told: str) -> None:
    from dashboard.reads.process_settings import without_password

    assert without_password(url) == told


def test_health_tells_each_part_and_what_nobody_knows(operator: Client, valkey_url: str) -> None:
    cache.delete(BATCH_MARK)
    parts = {part.icon: part for part in operator.get("/console/health/").context["parts"]}
    assert parts["calendar-time"].state == "unknown"
    assert parts["receipt"].state == "fine"
    assert parts["server-2"].state == "broken"  # no controller leads here
    mark_batch()
    parts = {part.icon: part for part in operator.get("/console/health/").context["parts"]}
    assert parts["calendar-time"].state == "fine"


def test_a_valkey_that_is_away_is_broken_and_what_it_knows_is_unknown(operator: Client, settings: Settings) -> None:
    import dataclasses

    settings.GATEHOUSE = dataclasses.replace(
        settings.GATEHOUSE, valkey_state_url="redis://127.0.0.1:1/0", valkey_scratch_url=None
    )
    told = operator.get("/console/health/")
    parts = {part.name: part for part in told.context["parts"]}
    assert parts["Valkey · state"].state == "broken"
    assert parts["Ledger"].state == "unknown"
    assert parts["Relay and web"].state == "unknown"
    assert dict(parts["Ledger"].facts)["Rows waiting"] == "unknown"
    assert told.context["worst"] == "broken"


def test_health_names_engines_and_what_brought_them(operator: Client) -> None:
    text = text_of(operator.get("/console/health/"))
    assert "gatehouse.engines" in text
    assert "vLLM" in text


# Overview.


def test_the_overview_puts_the_worst_first_and_each_line_leads_somewhere(operator: Client) -> None:
    acme = tenant("acme", ada=TenantRole.OWNER)
    made = pool(state="failed")
    Node.objects.create(name="node-2", state="unreachable", token_digest="e" * 64, token_last_four="eeee")
    Device.objects.update(health="failed")
    limit(acme)
    asked_by(acme, User.objects.get(email="ada@example.com"))
    items = operator.get("/console/overview/").context["attention"]
    kinds = [item.kind for item in items]
    assert kinds == sorted(kinds, key=kinds.index)
    assert kinds[-1] == "approval_waits"
    assert {"node_unreachable", "instance_failed", "device_failed", "approval_waits"} <= set(kinds)
    assert kinds.index("node_unreachable") < kinds.index("approval_waits")
    for item in items:
        assert operator.get(item.href).status_code == 200, item
    assert any(made.version.model.name in item.text for item in items)
    assert "node-2" in text_of(operator.get("/console/overview/attention/"))


def test_budgets_that_tenants_were_told_of_stand_on_the_overview(operator: Client) -> None:
    from tenants.services.alerts import tell_budget

    acme = tenant("acme")
    budget = limit(acme, window=Window.MONTH, alert_shares=[80, 100])
    tell_budget(budget, used=850, now=timezone.now())
    (item,) = [one for one in operator.get("/console/overview/").context["attention"] if "budget" in one.kind]
    assert (item.kind, "Acme" in item.text) == ("budget_near", True)
    tell_budget(budget, used=1_000, now=timezone.now())
    (item,) = [one for one in operator.get("/console/overview/").context["attention"] if "budget" in one.kind]
    assert item.kind == "budget_spent"
    change_limit(budget.pk, amount=5_000, actor=SYSTEM)
    shown = operator.get("/console/overview/").context["attention"]
    assert not [one for one in shown if "budget" in one.kind]  # what was told is of an amount that holds no more


def test_many_nodes_in_maintenance_do_not_hide_those_that_are_away(operator: Client) -> None:
    Node.objects.bulk_create(
        Node(name=f"a{n:03}", maintenance=True, token_digest=f"{n:064}", token_last_four="eeee") for n in range(205)
    )
    Node.objects.create(name="z", state="unreachable", token_digest="e" * 64, token_last_four="eeee")
    items = {item.kind: item.text for item in operator.get("/console/overview/attention/").context["attention"]}
    assert items["node_unreachable"].startswith("1 node is unreachable: z.")
    assert items["node_in_maintenance"].startswith("205 nodes")


def test_ids_in_addresses_that_name_nothing_are_not_found(operator: Client) -> None:
    nothing = UUID(int=7)
    for path in (
        f"/console/quotas/{nothing}/",
        f"/console/prices/{nothing}/withdraw/",
        f"/console/approvals/{nothing}/",
        f"/console/people/{nothing}/",
        f"/console/audit/{nothing}/",
        "/console/tenants/nobody/",
        "/console/tenants/nobody/tier/",
        "/console/tenants/nobody/view-as/",
    ):
        assert operator.get(path).status_code == 404, path
