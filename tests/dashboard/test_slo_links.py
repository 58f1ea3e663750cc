"""Where an objective's page leads: to the requests that spent its budget, as many as it says, and no others."""

from datetime import datetime, timedelta
from typing import Any
from urllib.parse import parse_qs, urlsplit
from uuid import uuid4

import pytest
from django.test import Client
from django.utils import timezone

from core.ids import uuid7_from
from dashboard.charts.slo import span_between
from gateway.models import Objective
from gateway.reads.slo import as_of
from gateway.services.objective_alerts import evaluate_objectives
from tenants.models import Tenant
from tenants.services.ledger import record_usage
from tests.dashboard.people import tenant
from tests.gateway.slo_rows import refusals, traffic, ttft_objective
from tests.tenants.usage_rows import usage_row

pytestmark = pytest.mark.django_db
PROCESS = uuid4()
_numbers = iter(range(1, 1_000_000))


def minutes_ago(minutes: int) -> datetime:
    return timezone.now().replace(second=0, microsecond=0) - timedelta(minutes=minutes)


def requests(owner: Tenant, count: int, **values: Any) -> None:
    """Streamed answers of ten minutes ago, through the ledger."""
    at, rows = minutes_ago(10).timestamp() + 1, []
    for _ in range(count):
        number = next(_numbers)
        told = {"model": "chat-large", "streamed": True, "ttft_ms": 300.0, "duration_ms": 900.0, **values}
        identity = uuid7_from(int(at * 1000), number % 4096, number)
        rows.append(usage_row(PROCESS, number, id=identity, tenant_id=owner.pk, started_at=at, **told))
    record_usage(rows)


@pytest.fixture
def acme() -> Tenant:
    return tenant("acme")


@pytest.mark.shows("R136")
def test_failed_and_refused_are_said_apart_and_each_link_shows_as_many(operator: Client, acme: Tenant) -> None:
    requests(acme, 20)
    requests(acme, 3, outcome="failed", status=502)
    requests(acme, 5, outcome="failed", status=502, model="code-fast")
    for minutes, count, more in (
        (9, 7, {}), (9, 50, {"status": 429}), (8, 11, {"model": "code-fast"}),
    ):  # fmt: skip
        refusals(minutes_ago(minutes), count, tenant=acme, **more)
    for scope in ({}, {"tenant": acme}):
        objective = ttft_objective(kind="availability", threshold_seconds=None, **scope)
        evaluate_objectives(now=timezone.now())
        page = operator.get(f"/console/slo/{objective.pk}/")
        assert (page.context["detail"].bad, page.context["detail"].slow) == (10, 3)
        assert "View the 3 failed requests" in page.content.decode()
        assert "7 were refused" in page.content.decode()
        assert len(operator.get(page.context["slow_url"]).context["lines"]) == 3
        refused = operator.get(page.context["refused_url"])
        assert [(one.model, one.status, one.refusals) for one, _key in refused.context["reasons"]] == [
            ("chat-large", 503, 7)
        ]
        assert "5xx" in refused.content.decode()
    portal = operator.get(f"/t/acme/slo/{objective.pk}/")
    assert len(operator.get(portal.context["slow_url"]).context["lines"]) == 3
    assert [one.refusals for one, _key in operator.get(portal.context["refused_url"]).context["reasons"]] == [7]


def test_a_tiers_objective_leads_to_the_requests_of_its_tenants_alone(operator: Client, acme: Tenant) -> None:
    gold = tenant("goldie")
    Tenant.objects.filter(pk=gold.pk).update(sla_tier="gold")
    for owner in (acme, gold):
        requests(owner, 2, ttft_ms=4_000.0, duration_ms=5_000.0)
        requests(owner, 1, outcome="truncated")
        refusals(minutes_ago(9), 6, tenant=owner)
    slow = ttft_objective(tier="gold")
    failed = ttft_objective(kind="availability", threshold_seconds=None, tier="gold")
    evaluate_objectives(now=timezone.now())
    page = operator.get(f"/console/slo/{slow.pk}/")
    assert "View the 2 slow requests" in page.content.decode()
    found = operator.get(page.context["slow_url"])
    assert {line.row.tenant_id for line in found.context["lines"]} == {gold.pk}
    assert len(found.context["lines"]) == 2
    assert "Tenants of tier Gold" in found.content.decode()
    sheet = operator.get(page.context["slow_url"] + "&format=csv")
    assert sheet.content.decode().count("goldie") == 2
    page = operator.get(f"/console/slo/{failed.pk}/")
    assert "View the failed requests" in page.content.decode()
    assert [line.row.tenant_id for line in operator.get(page.context["slow_url"]).context["lines"]] == [gold.pk]
    refused = operator.get(page.context["refused_url"]).context["reasons"]
    assert [one.refusals for one, _key in refused] == [6]
    # Who is of a tier is not known of what comes live.
    assert operator.get("/console/requests/?tier=gold&range=1h").context["tail"] is None
    assert operator.get("/console/requests/?range=1h").context["tail"] is not None


def test_a_releases_availability_says_that_it_counts_no_refusals(operator: Client, acme: Tenant) -> None:
    release = uuid4()
    requests(acme, 2, outcome="truncated", version_id=release)
    refusals(minutes_ago(9), 6, tenant=acme)
    objective = ttft_objective(kind="availability", threshold_seconds=None, version_id=release)
    evaluate_objectives(now=timezone.now())
    page = operator.get(f"/console/slo/{objective.pk}/")
    assert "name no release, and are not counted here" in page.content.decode()
    assert (page.context["detail"].slow, page.context["detail"].refused) == (2, 0)
    assert len(operator.get(page.context["slow_url"]).context["lines"]) == 2


def test_dates_of_ones_own_are_drawn(operator: Client, acme: Tenant) -> None:
    now = minutes_ago(0)
    for days in (30, 17, 3.2, 0.2):
        since = now - timedelta(days=days)
        traffic(acme, since=since, until=since + timedelta(hours=8), step=timedelta(minutes=30), requests=10, slow=1)
    objective = ttft_objective()
    evaluate_objectives(now=timezone.now())
    for hours_ago, hours, by_hour, columns in (
        (2, 1, False, (60,)), (70, 6, False, (72,)), (77, 6, True, (6, 7)), (40, 38, True, (38, 39)),
        (700, 300, True, (50, 51)),
    ):  # fmt: skip
        since = now - timedelta(hours=hours_ago)
        until = since + timedelta(hours=hours)
        query = f"from={since:%Y-%m-%dT%H:%M}&to={until:%Y-%m-%dT%H:%M}&zone=UTC"
        page = operator.get(f"/console/slo/{objective.pk}/?{query}")
        detail, heat = page.context["detail"], list(reversed(page.context["detail"].heat_rows))
        assert heat[0].at == (since.replace(minute=0) if by_hour else since)
        assert len(heat) in columns
        asked = parse_qs(urlsplit(page.context["slow_url"]).query)
        begun, ended = (datetime.fromisoformat(asked[name][0]) for name in ("from", "to"))
        assert begun == heat[0].at
        assert until <= ended < until + timedelta(hours=1)
        assert detail.slow == sum(one.slow or 0 for one in heat) == sum(one.requests for one in heat) // 10 > 0
        assert detail.burn_rows[0].at == ended
        assert {round(burn, 6) for row in detail.burn_rows for burn in row.burns if burn is not None} <= {10.0}
        assert f'value="{since:%Y-%m-%dT%H:%M}"' in page.content.decode()  # the picker says which they are


def test_dates_without_anything_counted_are_no_error(operator: Client, acme: Tenant) -> None:
    requests(acme, 20)
    objective = ttft_objective()
    evaluate_objectives(now=timezone.now())
    for query in ("from=2001-01-01T00:00&to=2001-02-01T00:00", "from=2090-01-01T00:00", "from=nonsense"):
        assert operator.get(f"/console/slo/{objective.pk}/?{query}").status_code == 200


def test_what_lies_before_the_window_is_said_to_be_gone(operator: Client, acme: Tenant) -> None:
    requests(acme, 20)
    objective = ttft_objective(window_days=7)
    evaluate_objectives(now=timezone.now())
    said = "only what lies in the objective’s window is shown"
    assert said in operator.get(f"/console/slo/{objective.pk}/?range=30d").content.decode()
    Objective.objects.update(window_days=30)
    assert said not in operator.get(f"/console/slo/{objective.pk}/?range=30d").content.decode()


def test_the_running_hour_is_in_no_span_by_the_hour() -> None:
    end = as_of(timezone.now())
    span = span_between(end - timedelta(days=10), end + timedelta(days=1), as_of=end)
    assert (span.by_hour, span.until) == (True, end.replace(minute=0))


def test_charts_without_the_running_hour_say_up_to_when_they_go(
    operator: Client, acme: Tenant, monkeypatch: pytest.MonkeyPatch
) -> None:
    requests(acme, 20)
    objective = ttft_objective()
    evaluate_objectives(now=timezone.now())
    now = timezone.now().replace(minute=50, second=0, microsecond=0)
    monkeypatch.setattr(timezone, "now", lambda: now)

    def says(query: str) -> bool:
        page = operator.get(f"/console/slo/{objective.pk}/?zone=UTC&{query}")
        return f"go by the hour, here up to {now:%-d %b %Y, %H}:00" in page.content.decode()

    def between(since_hours: float, until_hours: float) -> str:
        ends = (now - timedelta(hours=hours) for hours in (since_hours, until_hours))
        return "from={:%Y-%m-%dT%H:%M}&to={:%Y-%m-%dT%H:%M}".format(*ends)

    assert says("range=30d")
    assert says(between(27, 0.1))
    assert not says(between(27, 3))
    assert not says(between(20, 0.1))
    assert not says("range=24h")
