"""Lists of hundreds of objectives: those that burn on the first page, and no page dearer for what is on the others."""

from collections.abc import Callable
from datetime import timedelta
from typing import Any
from uuid import uuid4

import pytest
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from dashboard.reads import slo_list
from dashboard.reads.slo import read_board
from dashboard.reads.slo_list import STATES, worst_first
from gateway.models import Objective, ObjectiveAlert
from gateway.services.objective_alerts import evaluate_objectives
from gateway.services.objectives import change_objective
from tenants.actor import SYSTEM
from tenants.models import Tenant, TenantRole, User
from tests.dashboard.people import tenant
from tests.gateway.slo_rows import traffic, ttft_objective

pytestmark = pytest.mark.django_db

CONSOLE, PORTAL = "/console/slo/", "/t/acme/slo/"
Ask = Callable[[str], Any]


@pytest.fixture
def acme() -> Tenant:
    return tenant("acme", ada=TenantRole.OWNER)


@pytest.fixture
def ask(operator: Client, acme: Tenant) -> Ask:
    """A page, as an operator sees it in the console, and an owner in the portal."""
    people = {"console": operator, "t": Client()}
    people["t"].force_login(User.objects.get(email="ada@example.com"))
    return lambda address: people[address.split("/")[1]].get(address)


def make(count: int, owner: Tenant | None = None) -> list[Objective]:
    """Counted ones, with so little left of their budgets as their numbers say."""
    there = Objective.objects.count()
    made = [
        Objective(
            name=f"o{there + number:03}", kind="ttft", target=0.99, threshold_seconds=0.8, tenant=owner, model="quiet",
            tallied_at=timezone.now(), budget_remaining=0.5,
        )
        for number in range(count)
    ]  # fmt: skip
    return Objective.objects.bulk_create(made)


def burn(objective: Objective, severity: str = "page") -> None:
    pair = "1h-5m" if severity == "page" else "3d-6h"
    ObjectiveAlert.objects.create(objective=objective, pair=pair, severity=severity, long_burn=20, short_burn=20)


def names(response: Any) -> list[str]:
    assert response.status_code == 200
    return [row.objective.name for row, _ in response.context["rows"]]


@pytest.mark.parametrize("address", [CONSOLE, PORTAL])
def test_hundreds_take_as_many_queries_as_three_and_no_page_has_more_than_fifty(
    ask: Ask, acme: Tenant, address: str
) -> None:
    taken = []
    make(3, acme)
    ask(address)
    for more in (0, 140):
        make(more, acme)
        with CaptureQueriesContext(connection) as queries:
            response = ask(address)
        taken.append(len(queries))
        assert len(names(response)) == min(slo_list.PAGE, 3 + more)
    assert taken == [{CONSOLE: 18, PORTAL: 20}[address]] * 2


@pytest.mark.parametrize("address", [CONSOLE, PORTAL])
def test_what_burns_comes_first_and_every_other_one_is_a_page_or_a_search_away(
    ask: Ask, acme: Tenant, address: str
) -> None:
    first, second, third = made = make(3, acme)
    make(2 * slo_list.PAGE, acme)
    everyone = set(Objective.objects.values_list("name", flat=True))
    burn(second)
    burn(third, "ticket")
    Objective.objects.filter(pk=first.pk).update(budget_remaining=-0.2)
    pages = [names(ask(f"{address}?page={number}")) for number in (1, 2, 3)]
    assert [len(page) for page in pages] == [slo_list.PAGE, slo_list.PAGE, 3]
    assert set().union(*pages) == everyone
    assert {one.name for one in made} <= set(pages[0])
    text = ask(address).content.decode()
    assert "1 paging" in text
    assert "1 ticket" in text
    assert 'href="?page=2"' in text
    assert names(ask(f"{address}?page=9")) == pages[2]
    assert names(ask(f"{address}?page=x%00")) == pages[0]
    assert names(ask(f"{address}?q={pages[2][1]}")) == [pages[2][1]]
    assert ask(f"{address}{uuid4()}/").status_code == 404


def test_an_address_of_one_shows_it_wherever_it_is_in_the_list(ask: Ask) -> None:
    last = make(1)[0]
    make(slo_list.PAGE)
    response = ask(f"{CONSOLE}{last.pk}/")
    assert names(response).count(last.name) == 1
    assert response.context["detail"].objective == last
    other = ask(f"{CONSOLE}{last.pk}/?q=o007")
    assert names(other) == ["o007"]
    assert other.context["detail"].objective == last


def test_the_order_of_pages_is_that_of_what_the_last_look_found(acme: Tenant) -> None:
    now = timezone.now().replace(second=0, microsecond=0)
    begun = now - timedelta(days=4)
    for model, slow in (("spent", 50), ("tight", 0), ("good", 0)):
        traffic(acme, since=begun, until=begun + timedelta(minutes=20), requests=100, slow=slow, model=model)
    traffic(acme, since=begun, until=begun + timedelta(minutes=1), slow=1, model="tight")
    made = {
        name: ttft_objective(name=name, model=name)
        for name in ("good", "silent", "off", "tight", "ticket", "spent", "page")
    }
    for _ in range(2):  # new ones have their turn a few at a time
        evaluate_objectives(now=timezone.now())
    made["counting"] = ttft_objective(name="counting")
    change_objective(made["off"].pk, actor=SYSTEM, now=now, enabled=False)
    burn(made["ticket"], "ticket")
    burn(made["page"])
    found = list(worst_first(Objective.objects.all()))
    assert found == [row.objective for row in read_board(list(Objective.objects.all()), now=now).rows]
    assert [one.name for one in found] == ["page", "spent", "ticket", "tight", "good", "counting", "silent", "off"]
    assert {row.state for row in read_board(found, now=now).rows} == set(STATES)
    assert found[1].budget_remaining is not None
    assert found[1].budget_remaining < 0


def test_what_counts_anew_is_not_sorted_by_what_was_left_before(acme: Tenant) -> None:
    objective = make(1)[0]
    change_objective(objective.pk, actor=SYSTEM, now=timezone.now(), model="another")
    objective.refresh_from_db()
    assert objective.budget_remaining is None
