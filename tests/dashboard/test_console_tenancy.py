"""The console's pages of tenancy: tenants, keys, quotas, prices, approvals, people, settings, health, overview."""

from uuid import UUID

import pytest
from django.test import Client
from pytest_django import DjangoAssertNumQueries

from tenants import services
from tenants.actor import SYSTEM
from tenants.models import (
    AccessRequest,
    AccessToken,
    ApiKey,
    AuditEvent,
    Limit,
    Price,
    RoleMapping,
    TenantRole,
    User,
)
from tenants.policies.pricing import PriceTag
from tenants.services.prices import set_price
from tenants.services.requests import request_model
from tests.dashboard.people import person, tenant
from tests.dashboard.tenancy_rows import everything, limit, text_of

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
