"""What an objective's page shows of a range: as much as its window and its counts reach, and the same everywhere."""

from datetime import datetime, timedelta

import pytest
from django.test import Client
from django.utils import timezone

from dashboard.reads.slo import Detail
from gateway.models import Objective
from gateway.reads.slo import as_of, window_start
from gateway.services.objective_alerts import evaluate_objectives
from tenants.models import Tenant
from tests.dashboard.people import tenant
from tests.gateway.slo_rows import traffic, ttft_objective

pytestmark = pytest.mark.django_db
NOTICE = "only what lies in the objective’s window is shown"


@pytest.fixture
def acme() -> Tenant:
    return tenant("acme")


def shown(operator: Client, objective: Objective, query: str) -> tuple[Detail, str]:
    page = operator.get(f"/console/slo/{objective.pk}/?{query}&zone=UTC")
    return page.context["detail"], page.content.decode()


def dates(since: datetime, until: datetime) -> str:
    return f"from={since:%Y-%m-%dT%H:%M}&to={until:%Y-%m-%dT%H:%M}"


def test_charts_and_links_begin_with_the_window_and_the_page_says_so(operator: Client, acme: Tenant) -> None:
    now = as_of(timezone.now())
    traffic(acme, since=now - timedelta(days=3), until=now, step=timedelta(minutes=10), slow=1)
    objective = ttft_objective(window_days=1)
    evaluate_objectives(now=timezone.now())
    hours = timedelta(hours=1)
    for query in ("range=30d", dates(now - 30 * hours, now - 20 * hours)):
        detail, text = shown(operator, objective, query)
        start = window_start(objective, detail.standing.as_of)
        assert (detail.slow_since, detail.heat_rows[-1].at) == (start, start)
        assert start < detail.burn_rows[-1].at <= start + hours
        assert detail.slow == sum(row.slow or 0 for row in detail.heat_rows) > 0
        assert NOTICE in text
    for query in ("range=6h", dates(now - 22 * hours, now - 20 * hours)):
        assert NOTICE not in shown(operator, objective, query)[1]
    detail, text = shown(operator, objective, dates(now - 60 * hours, now - 50 * hours))
    assert (detail.bad, detail.heat_rows, detail.burn_rows) == (0, [], [])
    assert NOTICE in text


@pytest.mark.parametrize("enabled", [True, False])
@pytest.mark.parametrize("span", ["6h", "30d"])
def test_links_end_where_counting_stands_still(operator: Client, acme: Tenant, span: str, *, enabled: bool) -> None:
    now = as_of(timezone.now())
    stood = now - timedelta(hours=1)
    traffic(acme, since=stood - timedelta(hours=3), until=stood, faults=1)
    objective = ttft_objective(kind="availability", threshold_seconds=None)
    evaluate_objectives(now=stood)
    traffic(acme, since=stood, until=now, faults=4)
    Objective.objects.update(enabled=enabled)
    detail, text = shown(operator, objective, f"range={span}")
    assert detail.slow_until == (stood if span == "6h" else stood.replace(minute=0))
    counted = int((detail.slow_until - (stood - timedelta(hours=3))).total_seconds() // 60)
    assert (detail.bad, detail.slow) == (counted, counted)
    assert f"View the {counted} failed requests" in text
