"""The console's pages of tenants and of all their keys."""

from datetime import timedelta
from uuid import uuid4

import pytest
from django.test import Client
from django.utils import timezone

from gpupool.models import Instance, Lease
from tenants import services
from tenants.actor import SYSTEM
from tenants.models import (
    ApiKey,
    AuditEvent,
    Tenant,
)
from tests.dashboard.people import tenant
from tests.dashboard.tenancy_rows import everything, rows_of, text_of

pytestmark = pytest.mark.django_db


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
