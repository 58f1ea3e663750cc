"""Budgets are not overspent: three relays, 64 clients in parallel, some of which leave, and one relay killed hard.

What was spent is read from the ledger, and from what the engine itself has counted.
"""

from collections.abc import Iterator

import pytest
from pytest_django import DjangoDbBlocker

from bench.house import wait_until
from tenants.models import UsageRecord
from tests.gateway.cases.desk import Engines
from tests.gateway.spending import MOST_TOKENS, PATIENT_REFUSALS, PROMPT_TOKENS, Budget, Spenders, SpendingHouse
from tests.house import house_environ, own_database

CLIENTS = 64


@pytest.fixture
def engines() -> Iterator[Engines]:
    engines = Engines()
    yield engines
    engines.close()


@pytest.fixture
def spending(
    django_db_setup: None,
    django_db_blocker: DjangoDbBlocker,
    tmp_path_factory: pytest.TempPathFactory,
    engines: Engines,
    request: pytest.FixtureRequest,
) -> Iterator[SpendingHouse]:
    scale: int = request.param
    folder = tmp_path_factory.mktemp("spending")
    with own_database(django_db_blocker) as database_url:
        house = SpendingHouse(folder, house_environ(database_url))
        budgets = {
            "by-requests": ("requests", 120 * scale),
            "by-tokens": ("tokens", 1_800 * scale),
            "by-money": ("money", 4_000 * scale),
        }
        try:
            house.settle_in_for(engines, budgets, relays=3)
            yield house
        finally:
            house.stop_all()


def _check_not_overspent(house: SpendingHouse, budget: Budget) -> None:
    """By the ledger, and by what the engine did, whether or not anyone was there to be told."""
    assert budget.spent() <= budget.amount
    assert house.counting.worked[f"model-{budget.name}"].spent(budget.metric) <= budget.amount


def _check_ledger_is_the_engines(house: SpendingHouse, budget: Budget) -> None:
    """What the engine did is what the ledger has, but for what was under way in the killed process, or left."""
    rows = [*UsageRecord.objects.filter(tenant_id=budget.tenant.pk)]
    whole = [row for row in rows if row.outcome == "success"]
    lost = [row for row in rows if row.outcome == "lost"]
    left = [row for row in rows if row.outcome == "cancelled"]
    assert len(whole) + len(lost) + len(left) == len(rows)
    worked = house.counting.worked[f"model-{budget.name}"]
    never_forwarded = [row for row in left if row.usage_source == "none"]
    assert len(never_forwarded) <= len(rows) - worked.requests
    unseen = [row for row in left if row.output_tokens is None and row not in never_forwarded]
    assert all(row.usage_source == "estimated" and row.input_tokens for row in unseen)
    if budget.metric != "requests":
        assert all(0 < (row.reserved_output or 0) <= MOST_TOKENS for row in unseen)
    assert len(whole) <= worked.requests <= len(rows)
    told = worked.output_tokens - worked.broken_output
    settled = sum(row.output_tokens or 0 for row in whole)
    assert settled <= told <= settled + (len(lost) + len(left)) * MOST_TOKENS
    assert all(row.input_tokens == PROMPT_TOKENS and row.usage_source == "engine" for row in whole)
    if budget.metric != "requests":
        assert all((row.reserved_output or 0) == MOST_TOKENS for row in lost)


@pytest.mark.shows("G4", "G5", "G8")
@pytest.mark.parametrize(
    "spending", [1, pytest.param(10, marks=pytest.mark.drill)], ids=["short", "long"], indirect=True
)
def test_budgets_are_spent_to_the_end_and_not_beyond(spending: SpendingHouse, request: pytest.FixtureRequest) -> None:
    scale = request.node.callspec.params["spending"]
    spenders = Spenders(spending, clients=CLIENTS)
    spenders.start()
    wait_until(lambda: spending.counting.requests >= 120 * scale, "a good part is spent", seconds=120 * scale)
    spending.kill("relay-1")
    spenders.join(120 * scale)

    # What it held is given back once it is known what it did; then the rest can be spent.
    wait_until(lambda: len(spending.spools()) == 2, "another process has taken its spool over", seconds=60)
    wait_until(lambda: bool(spending.orphans()), "what it held is told apart", seconds=60)
    spending.all_in_ledger()
    spending.reconcile()
    assert not spending.orphans()
    again = Spenders(spending, clients=12, refusals=PATIENT_REFUSALS)
    again.start()
    again.join(60)
    spending.all_in_ledger()
    told = spending.reconcile()
    again_told = spending.reconcile()

    for name, budget in spending.budgets.items():
        worked = spending.counting.worked[f"model-{name}"]
        print(f"\n{name}: {budget.spent()} of {budget.amount}, {dict(spenders.told[name].statuses)}, {worked}")
        _check_not_overspent(spending, budget)
        _check_ledger_is_the_engines(spending, budget)
        assert again_told[name].used == budget.spent() == told[name].ledger
        assert again_told[name].applied == 0
    assert spending.budgets["by-requests"].spent() == spending.budgets["by-requests"].amount
    assert UsageRecord.objects.filter(outcome="lost").exists()
    assert not spending.orphans()
    server_errors = {word for told_ in spenders.told.values() for word in told_.statuses if word.startswith("5")}
    assert not server_errors
