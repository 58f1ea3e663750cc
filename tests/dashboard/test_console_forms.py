"""What forms of the console's pages of tenancy do besides their write: leave their dialog, keep what was there."""

import csv
import io

import pytest
from django.db import OperationalError
from django.test import Client
from psycopg.errors import DeadlockDetected, QueryCanceled

from tenants import services
from tenants.actor import SYSTEM
from tenants.models import AuditEvent, Limit, Metric, Tenant, TenantState, Window
from tests.dashboard.people import person, tenant
from tests.dashboard.tenancy_rows import limit

pytestmark = pytest.mark.django_db


def test_what_a_dialog_sends_leads_the_page_on_and_not_the_dialog(root: Client) -> None:
    acme = tenant("acme")
    one = limit(acme)
    olga = person("olga", platform_role="operator")
    for address, form, to in (
        (
            "/console/tenants/new/",
            {"name": "B", "slug": "bank", "sla_tier": "gold", "time_zone": "UTC"},
            "/console/tenants/bank/",
        ),
        (
            "/console/quotas/new/",
            {"tenant": "acme", "metric": "requests", "window": "day", "amount": "9"},
            "/console/quotas/?tenant=acme",
        ),
        (f"/console/quotas/{one.pk}/", {"amount": "20"}, "/console/quotas/?tenant=acme"),
        (f"/console/quotas/{one.pk}/raise/", {"amount": "40", "hours": "24"}, "/console/quotas/?tenant=acme"),
        ("/console/prices/new/", {"model": "m", "input": "1"}, "/console/prices/"),
        (f"/console/people/{olga.pk}/role/", {"platform_role": "read_only"}, f"/console/people/{olga.pk}/"),
        (
            "/console/people/mappings/new/",
            {"claim": "groups", "value": "x", "platform_role": "operator"},
            "/console/people/",
        ),
    ):
        answer = root.post(address, form, headers={"HX-Request": "true"})
        assert (answer.status_code, answer.headers.get("HX-Redirect"), answer.content) == (200, to, b""), address


def test_a_form_on_a_page_of_its_own_is_answered_there_and_in_a_dialog_in_the_dialog(root: Client) -> None:
    """One that came back in a dialog over its own page would have each of its ids twice, and labels of the other."""
    alone = root.get("/console/quotas/new/").content.decode()
    assert '<section class="card sheet-page" hx-ignore>' in alone
    part = root.get("/console/quotas/new/", headers={"HX-Request": "true"}).content.decode()
    assert "hx-post" in part
    assert "hx-ignore" not in part


def test_no_limit_is_made_of_what_nothing_counts(root: Client) -> None:
    """Requests are not held for a model to wake; a limit that is there keeps its word."""
    old = limit(tenant("acme"), metric=Metric.HELD, window=Window.STANDING, amount=5)
    offered = dict(root.get("/console/quotas/new/").context["form"].fields["metric"].choices)
    assert set(offered) == set(Metric.values) - {Metric.HELD}
    refused = root.post("/console/quotas/new/", {"metric": "held_requests", "window": "standing", "amount": "9"})
    assert refused.status_code == 422
    assert list(Limit.objects.all()) == [old]
    assert "Held requests" in root.get("/console/quotas/").content.decode()


def test_a_tenant_that_cannot_be_put_under_its_parent_is_not_made(root: Client) -> None:
    parent = tenant("acme")
    services.set_tenant_state(parent.pk, TenantState.SUSPENDED, actor=SYSTEM)
    form = {"name": "R", "slug": "research", "sla_tier": "gold", "time_zone": "UTC", "parent": "acme"}
    refused = root.post("/console/tenants/new/", form)
    assert refused.status_code == 422
    assert "The parent is suspended." in refused.content.decode()
    assert not Tenant.objects.filter(slug="research").exists()
    assert not AuditEvent.objects.filter(action="tenant.created", after__slug="research").exists()


def test_bytes_that_are_no_round_gib_survive_a_change_of_the_note(root: Client) -> None:
    odd = limit(tenant("acme"), metric=Metric.GPU_MEMORY, window=Window.STANDING, amount=10_000_000_001)
    shown = root.get(f"/console/quotas/{odd.pk}/").context["form"]["amount"].value()
    assert shown == "9.313226"
    root.post(f"/console/quotas/{odd.pk}/", {"amount": shown, "note": "as it was"})
    odd.refresh_from_db()
    assert (odd.amount, odd.note) == (10_000_000_001, "as it was")
    root.post(f"/console/quotas/{odd.pk}/", {"amount": "10"})
    assert Limit.objects.get().amount == 10 * 2**30


def test_the_file_of_limits_tells_apart_what_each_is_of(root: Client) -> None:
    acme = tenant("acme")
    services.create_api_key(acme, name="ci", actor=SYSTEM)
    limit(acme, key=acme.api_keys.get())
    limit(acme, model="qwen3-8b")
    text = root.get("/console/quotas/?format=csv").content.decode()
    rows = list(csv.DictReader(io.StringIO(text)))
    assert {(row["key"], row["model"]) for row in rows} == {("ci", ""), ("", "qwen3-8b")}


def test_half_of_what_is_shown_of_a_key_finds_it(root: Client) -> None:
    key = services.create_api_key(tenant("acme"), name="ci", actor=SYSTEM).key
    for words in (f"{key.prefix}…", f"…{key.last_four}", f"{key.prefix}...{key.last_four}"):
        assert [one.pk for one in root.get("/console/keys/", {"q": words}).context["page"].rows] == [key.pk], words


def test_a_page_that_takes_the_database_too_long_says_so(root: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    def canceled(*_args: object, **_more: object) -> None:
        raise OperationalError from QueryCanceled("canceling statement due to statement timeout")

    def deadlocked(*_args: object, **_more: object) -> None:
        raise OperationalError from DeadlockDetected()

    monkeypatch.setattr("dashboard.views.console.keys.find_keys", canceled)
    told = root.get("/console/keys/")
    assert told.status_code == 503
    assert "This took the database too long" in told.content.decode()
    monkeypatch.setattr("dashboard.views.console.keys.find_keys", deadlocked)
    with pytest.raises(OperationalError):
        root.get("/console/keys/")
