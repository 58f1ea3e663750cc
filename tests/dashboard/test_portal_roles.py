"""Who sees which page of the portal, and whose posts are taken: each role, a platform reader, outsiders."""

import re
from uuid import UUID

import pytest
from django.test import Client

from core.ids import uuid7
from tenants import services
from tenants.actor import SYSTEM
from tenants.models import AccessRequest, Limit, Tenant, TenantRole, TenantState, User, Webhook
from tenants.services.limits import create_limit
from tenants.services.requests import request_model
from tests.dashboard.people import person, tenant

pytestmark = pytest.mark.django_db

ROLES = list(TenantRole)
MANAGERS = {TenantRole.OWNER, TenantRole.ADMIN}
BUILDERS = MANAGERS | {TenantRole.DEVELOPER}
MONEY = MANAGERS | {TenantRole.BILLING}
EVERYBODY = set(ROLES)

PAGES: dict[str, set[TenantRole]] = {
    "": EVERYBODY,
    "first/": EVERYBODY,
    "keys/": EVERYBODY,
    "keys/new/": BUILDERS,
    "keys/{key}/": EVERYBODY,
    "usage/": EVERYBODY,
    "limits/": EVERYBODY,
    "limits/requests/": EVERYBODY,
    "limits/{limit}/more/": BUILDERS,
    "limits/requests/{ask}/withdraw/": MANAGERS,
    "models/": EVERYBODY,
    "models/ask/": BUILDERS,
    "playground/": EVERYBODY,
    "capacity/": EVERYBODY,
    "members/": EVERYBODY,
    "members/invite/": MANAGERS,
    "billing/": MONEY,
    "settings/": EVERYBODY,
    "settings/webhooks/new/": MANAGERS,
    "settings/webhooks/{webhook}/": MANAGERS,
    "settings/webhooks/{webhook}/change/": MANAGERS,
    "settings/webhooks/{webhook}/secret/": MANAGERS,
    "settings/webhooks/{webhook}/delete/": MANAGERS,
}
POSTS: dict[str, set[TenantRole]] = {
    "keys/new/": BUILDERS,
    "limits/{limit}/more/": BUILDERS,
    "models/ask/": BUILDERS,
    "playground/chat/": BUILDERS,
    "settings/": MANAGERS,
    "settings/webhooks/new/": MANAGERS,
    "settings/webhooks/{webhook}/test/": MANAGERS,
    "settings/webhooks/{webhook}/change/": MANAGERS,
    "settings/webhooks/{webhook}/secret/": MANAGERS,
    "settings/webhooks/{webhook}/switch/off/": MANAGERS,
    "limits/requests/{ask}/withdraw/": MANAGERS,
    "settings/webhooks/{webhook}/delete/": MANAGERS,
}
TAKEN = {200, 302, 422, 503}
"""Whatever becomes of it then; 503: no engine answers in a test of pages."""

CREATES = ("new/", "more/", "ask/", "chat/")


@pytest.fixture
def acme() -> Tenant:
    made = tenant("acme", **{role.value: role for role in ROLES})
    services.create_api_key(made, name="k", actor=SYSTEM)
    create_limit(tenant=made, metric="requests", window="minute", amount=10, actor=SYSTEM)
    request_model(made, model="some-model", reason="To try it.", actor=SYSTEM)
    Webhook.objects.create(tenant=made, url="https://example.com/hook")
    return made


def ids(acme: Tenant) -> dict[str, UUID]:
    return {
        "key": acme.api_keys.get().pk,
        "limit": Limit.objects.get(tenant=acme).pk,
        "ask": AccessRequest.objects.get(tenant=acme).pk,
        "webhook": Webhook.objects.get(tenant=acme).pk,
    }


def log_in(client: Client, name: str) -> None:
    client.force_login(User.objects.get(email=f"{name}@example.com"))


@pytest.mark.parametrize("role", ROLES)
def test_each_role_sees_what_is_its(client: Client, acme: Tenant, role: TenantRole) -> None:
    log_in(client, role.value)
    named = ids(acme)
    found = {page: client.get(f"/t/acme/{page.format(**named)}").status_code for page in PAGES}
    assert found == {page: 200 if role in whose else 403 for page, whose in PAGES.items()}


@pytest.mark.parametrize("role", ROLES)
def test_posts_are_taken_of_those_who_may_and_of_nobody_else(client: Client, acme: Tenant, role: TenantRole) -> None:
    log_in(client, role.value)
    named = ids(acme)
    taken = {page: client.post(f"/t/acme/{page.format(**named)}", {"what": "zone"}).status_code for page in POSTS}
    assert {page: status in TAKEN for page, status in taken.items()} == {
        page: role in whose for page, whose in POSTS.items()
    }
    assert set(taken.values()) <= TAKEN | {403}


def test_who_only_reads_the_platform_sees_all_and_changes_nothing(client: Client, acme: Tenant) -> None:
    client.force_login(person("rita", platform_role="read_only"))
    named = ids(acme)
    reads = [page for page in PAGES if not re.search(r"new|more|ask|invite|change|secret|delete|withdraw", page)]
    assert {client.get(f"/t/acme/{page.format(**named)}").status_code for page in reads} == {200}
    assert {client.post(f"/t/acme/{page.format(**named)}").status_code for page in POSTS} == {403}
    for page in ("limits/", "models/", "settings/", "limits/requests/"):
        text = client.get(f"/t/acme/{page}").content.decode()
        assert not re.search(r"Request more|Request access|Request a model|New webhook|>Withdraw<|>Save<", text), page


@pytest.mark.parametrize("name", ["owner", "developer"])
def test_members_of_a_suspended_tenant_look_and_make_nothing(client: Client, acme: Tenant, name: str) -> None:
    services.set_tenant_state(acme.pk, TenantState.SUSPENDED, actor=SYSTEM)
    log_in(client, name)
    named = ids(acme)
    for page in ("", "keys/", "usage/", "limits/", "models/", "playground/", "capacity/", "settings/"):
        assert client.get(f"/t/acme/{page}").status_code == 200, page
    making = [page for page in POSTS if page.endswith(CREATES)]
    assert {client.post(f"/t/acme/{page.format(**named)}").status_code for page in making} == {403}


def test_another_tenants_things_do_not_exist(client: Client, acme: Tenant) -> None:
    tenant("bank", boris=TenantRole.OWNER)
    log_in(client, "boris")
    named = ids(acme)
    for page in (*PAGES, *POSTS):
        there = page.format(**named)
        assert client.get(f"/t/acme/{there}").status_code == 404, there
        assert client.post(f"/t/acme/{there}").status_code == 404, there
        if "{" in page:
            assert client.get(f"/t/bank/{there}").status_code in (404, 405), there
            assert client.post(f"/t/bank/{there}").status_code in (404, 405), there
    assert Webhook.objects.filter(tenant=acme).exists()
    assert AccessRequest.objects.get(tenant=acme).state == "open"


def test_developers_take_back_what_they_asked_for_and_nobody_elses_request(client: Client, acme: Tenant) -> None:
    log_in(client, "developer")
    theirs = AccessRequest.objects.get(tenant=acme)
    client.post("/t/acme/models/ask/", {"model": "mine", "reason": "To try it."})
    mine = AccessRequest.objects.exclude(pk=theirs.pk).get()
    page = client.get("/t/acme/limits/requests/").content.decode()
    assert f"{mine.pk}/withdraw/" in page
    assert f"{theirs.pk}/withdraw/" not in page
    assert client.post(f"/t/acme/limits/requests/{theirs.pk}/withdraw/").status_code == 403
    assert client.post(f"/t/acme/limits/requests/{mine.pk}/withdraw/").status_code == 302
    assert [AccessRequest.objects.get(pk=one.pk).state for one in (theirs, mine)] == ["open", "withdrawn"]


def test_what_is_not_there_is_404(client: Client, acme: Tenant) -> None:
    log_in(client, "owner")
    nothing = dict.fromkeys(("key", "limit", "ask", "webhook"), uuid7())
    named = [page for page in PAGES if "{" in page]
    assert {client.get(f"/t/acme/{page.format(**nothing)}").status_code for page in named} == {404}
    assert client.get("/t/acme/billing/?month=1999-01").status_code == 404
    assert client.post(f"/t/acme/settings/webhooks/{ids(acme)['webhook']}/switch/sideways/").status_code == 404
