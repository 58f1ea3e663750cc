"""Pages of lists cost the same number of queries however much there is, and little time at a million rows."""

import time
from collections.abc import Iterator
from statistics import median
from typing import Final

import pytest
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from tenants.models import User
from tests.dashboard.people import person
from tests.penetration.addresses import pages
from tests.scale.crowd import LARGE, MIDDLE, SMALL, fill
from tests.scale.many import fill_rest

CONSOLE: Final = (
    "/console/overview/",
    "/console/tenants/",
    "/console/tenants/?sort=-name",
    "/console/tenants/?q=crowd-7",
    "/console/tenants/{slug}/",
    "/console/keys/",
    "/console/keys/?q=77",
    "/console/keys/?sort=name",
    "/console/quotas/",
    "/console/prices/",
    "/console/approvals/",
    "/console/people/",
    "/console/audit/",
    "/console/audit/?action=tenant.suspended",
    "/console/requests/",
    "/console/requests/?outcome=failed",
    "/console/requests/?model=model-3&range=7d",
    "/console/instances/",
    "/console/models/",
    "/console/nodes/",
    "/console/reservations/",
    "/console/slo/",
    "/console/requests/stages/",
    "/console/requests/refused/",
    "/console/routing/",
    "/console/training/",
    "/console/healing/actions/",
    "/console/healing/events/",
    "/console/palette/?q=-7",
)
PORTAL: Final = (
    "/t/{slug}/",
    "/t/{slug}/keys/",
    "/t/{slug}/keys/?q=77",
    "/t/{slug}/keys/?sort=name",
    "/t/{slug}/usage/?range=30d",
    "/t/{slug}/usage/?range=24h",
    "/t/{slug}/usage/?range=30d&group=key",
    "/t/{slug}/usage/?range=30d&group=member",
    "/t/{slug}/limits/",
    "/t/{slug}/models/",
    "/t/{slug}/requests/",
    "/t/{slug}/requests/?outcome=failed&range=30d",
    "/t/{slug}/members/",
    "/t/{slug}/billing/",
    "/t/{slug}/capacity/",
    "/t/{slug}/slo/",
    "/t/{slug}/palette/?q=-7",
    "/t/{slug}/requests/stages/",
    "/t/{slug}/requests/refused/",
    "/t/{slug}/limits/requests/",
    "/t/{slug}/gpu-memory/",
)
PAGES: Final = CONSOLE + PORTAL
BAR_SECONDS: Final = 0.2


@pytest.fixture
def olga(client: Client) -> Client:
    client.force_login(person("olga", platform_role="superuser"))
    return client


def every_page() -> list[str]:
    """Those above, and whatever else has an address without an id: a page that is added is counted with the others."""
    found = (route.replace("<slug:slug>", "{slug}") for route in pages() if route.startswith(("/console/", "/t/")))
    return sorted({*PAGES, "/exports/", *(route for route in found if "<" not in route)})


def counted(client: Client, slug: str) -> Iterator[tuple[str, int]]:
    """(page, its queries), the second time, when what is kept for a while is there."""
    for page in every_page():
        address = page.format(slug=slug)
        status = client.get(address).status_code
        if status != 200:
            assert (status, page in PAGES) in ((400, False), (405, False)), address  # what needs a query, or a post
            continue
        with CaptureQueriesContext(connection) as queries:
            client.get(address)
        yield page, len(queries)


@pytest.mark.django_db
@pytest.mark.slow
@pytest.mark.shows("U2")
def test_no_page_asks_more_queries_of_more_rows(olga: Client) -> None:
    now = timezone.now()
    person_asking = User.objects.get(email="olga@example.com")
    first = fill(SMALL, now=now)
    fill_rest(first, 3, of=person_asking, name="few")
    few = dict(counted(olga, first.slug))
    second = fill(MIDDLE, now=now, name="throng")
    fill_rest(second, 40, of=person_asking, name="many")
    many = dict(counted(olga, second.slug))
    assert {page: (few[page], many[page]) for page in few if many[page] > few[page] + 3} == {}
    assert {page: number for page, number in many.items() if number > 40} == {}


@pytest.mark.django_db
@pytest.mark.shows("U1")
def test_usage_is_read_from_sums_whatever_the_ledger_holds(olga: Client) -> None:
    busiest = fill(SMALL, now=timezone.now())
    for group in ("model", "key", "member"):
        with CaptureQueriesContext(connection) as queries:
            answer = olga.get(f"/t/{busiest.slug}/usage/?range=30d&group={group}")
        assert answer.status_code == 200
        assert [one["sql"] for one in queries if "tenants_usagerecord" in one["sql"]] == []


@pytest.mark.django_db
@pytest.mark.drill
def test_every_list_is_quick_at_a_million_rows(olga: Client) -> None:
    busiest = fill(LARGE, now=timezone.now())
    took: dict[str, float] = {}
    for page in PAGES:
        address = page.format(slug=busiest.slug)
        assert olga.get(address).status_code == 200, address
        times = []
        for _ in range(3):
            began = time.perf_counter()
            olga.get(address)
            times.append(time.perf_counter() - began)
        took[page] = median(times)
    for page, seconds in sorted(took.items(), key=lambda one: -one[1]):
        print(f"{seconds * 1000:7.1f} ms  {page}")  # what the drill is for
    assert {page: seconds for page, seconds in took.items() if seconds > BAR_SECONDS} == {}
