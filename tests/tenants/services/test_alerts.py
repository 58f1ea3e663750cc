"""Who is told what, when, and only once."""

from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import pytest
from django.db.models import F
from django.utils import timezone

from tenants.actor import SYSTEM
from tenants.models import (
    AuditEvent,
    Limit,
    Notice,
    Tenant,
    TenantHour,
    TenantState,
    UsageHour,
    UsageMinute,
)
from tenants.services import alerts
from tenants.services.endings import end_boosts
from tenants.services.grants import grant_model, remove_expired_grants
from tenants.services.keys import create_api_key
from tenants.services.limits import boost_limit, create_limit
from tenants.services.tenants import set_tenant_state
from tests.factories import make_tenant

pytestmark = pytest.mark.django_db

NOW = datetime(2026, 11, 18, 12, 30, tzinfo=UTC)  # a Wednesday


def use(tenant: Tenant, tokens: int, *, at: datetime = NOW, key: UUID | None = None, model: str = "tiny") -> None:
    """As the drain would have summed it."""
    sums = {"tenant_id": tenant.pk, "key_id": key, "model": model}
    more: dict[str, Any] = {"requests": 1, "input_tokens": tokens, "output_tokens": 0, "cost_micros": tokens * 10}
    UsageMinute.objects.create(**sums, **more, minute=at.replace(second=0, microsecond=0))
    hour = at.replace(minute=0, second=0, microsecond=0)
    UsageHour.objects.create(**sums, **more, hour=hour)
    whole, _ = TenantHour.objects.get_or_create(tenant_id=tenant.pk, model=model, hour=hour)
    TenantHour.objects.filter(pk=whole.pk).update(**{name: F(name) + amount for name, amount in more.items()})


def budget(tenant: Tenant | None, amount: int = 1000, **more: Any) -> Limit:
    asked: dict[str, Any] = {"metric": "tokens", "window": "month", "amount": amount, "tenant": tenant}
    limit = create_limit(**asked | more, actor=SYSTEM)
    Limit.objects.filter(pk=limit.pk).update(counts_from=NOW - timedelta(days=200))
    return limit


def shares() -> list[int]:
    return [notice.payload["share"] for notice in Notice.objects.filter(kind="budget_share").order_by("id")]


def test_each_share_is_told_once_a_period() -> None:
    tenant = make_tenant()
    budget(tenant)
    told = []
    for hour, tokens in enumerate((400, 100, 100, 100, 100, 200, 50)):
        use(tenant, tokens, at=NOW - timedelta(hours=10 - hour))
        told.append(alerts.tell_budgets(now=NOW))
        assert alerts.tell_budgets(now=NOW) == 0
    assert told == [0, 1, 0, 0, 1, 1, 0]
    assert shares() == [50, 80, 100]
    payload = Notice.objects.order_by("id").first().payload  # type: ignore[union-attr]
    assert (payload["used"], payload["amount"]) == (500, 1000)
    assert payload["period_end"] == "2026-12-01T00:00+00:00"
    use(tenant, 600, at=NOW + timedelta(days=20))
    assert alerts.tell_budgets(now=NOW + timedelta(days=20)) == 1  # another month


def test_a_budget_that_is_used_up_at_once_is_told_of_once() -> None:
    tenant = make_tenant()
    budget(tenant, alert_shares=[10, 20, 30, 100])
    use(tenant, 5000)
    assert alerts.tell_budgets(now=NOW) == 1
    assert shares() == [100]


def test_what_others_reserved_can_use_a_budget_up() -> None:
    tenant = make_tenant()
    limit = budget(tenant)
    assert alerts.tell_budget(limit, used=100, now=NOW, refused=True)
    assert not alerts.tell_budget(limit, used=1000, now=NOW)
    assert Notice.objects.get().kind == "budget_refusing"


def test_a_raised_budget_is_told_of_anew() -> None:
    tenant = make_tenant()
    limit = budget(tenant)
    use(tenant, 800)
    assert alerts.tell_budgets(now=NOW) == 1
    boost_limit(limit.pk, amount=1500, until=timezone.now() + timedelta(days=30), actor=SYSTEM)
    assert alerts.tell_budgets(now=NOW) == 1
    assert shares() == [80, 50]


def test_a_budget_counts_what_its_scope_takes_in() -> None:
    parent, child, other = make_tenant(), make_tenant(), make_tenant()
    Tenant.objects.filter(pk=child.pk).update(parent=parent)
    key = create_api_key(child, name="key", actor=SYSTEM).key
    budget(parent, 100, subtree=True)
    budget(parent, 100)
    budget(child, 100, key=key)
    budget(child, 100, model="large")
    budget(None, 100)
    use(child, 10, key=key.pk)
    use(child, 20, key=key.pk, model="large")
    use(child, 30, key=None)
    use(other, 40)
    assert alerts.tell_budgets(now=NOW) == 2
    told = {(notice.tenant_id, notice.payload["used"]) for notice in Notice.objects.all()}
    assert told == {(parent.pk, 60), (None, 100)}


def test_only_budgets_of_tenants_that_used_something_are_looked_at_often() -> None:
    parent, child = make_tenant(), make_tenant()
    Tenant.objects.filter(pk=child.pk).update(parent=parent)
    idle = make_tenant()
    budget(parent, 100, subtree=True)
    budget(idle, 100)
    use(idle, 100, at=NOW - timedelta(days=1))
    assert alerts.tell_budgets(now=NOW, active_since=NOW - timedelta(minutes=15)) == 0
    use(child, 100)
    assert alerts.tell_budgets(now=NOW, active_since=NOW - timedelta(minutes=15)) == 1
    assert alerts.tell_budgets(now=NOW) == 1


def test_what_was_used_before_a_limit_was_made_does_not_count() -> None:
    tenant = make_tenant()
    limit = budget(tenant, 100, window="day")
    use(tenant, 100, at=NOW - timedelta(minutes=90))
    Limit.objects.filter(pk=limit.pk).update(counts_from=NOW - timedelta(minutes=30))
    assert alerts.tell_budgets(now=NOW) == 0
    use(tenant, 60, at=NOW - timedelta(minutes=10))
    assert alerts.tell_budgets(now=NOW) == 1
    assert Notice.objects.get().payload["used"] == 60


def test_days_are_the_tenants_own() -> None:
    tenant = make_tenant()
    Tenant.objects.filter(pk=tenant.pk).update(time_zone="Asia/Kolkata")  # half an hour off
    tenant.refresh_from_db()
    budget(tenant, 100, window="day")
    midnight = datetime(2026, 11, 17, 18, 30, tzinfo=UTC)
    use(tenant, 90, at=midnight - timedelta(minutes=1))
    UsageHour.objects.all().delete()  # the same hour, summed as the drain does
    use(tenant, 55, at=midnight)
    UsageHour.objects.update(input_tokens=145)
    now = midnight + timedelta(minutes=20)
    assert alerts.tell_budgets(now=now) == 1
    assert Notice.objects.get().payload["used"] == 55
    assert Notice.objects.get().payload["period_end"] == "2026-11-19T00:00+05:30"


def test_a_month_that_will_not_do_is_told_of_with_the_day() -> None:
    tenant = make_tenant()
    budget(tenant, 2000)
    for day in range(1, 29):
        at = NOW - timedelta(days=day)
        if at.weekday() < 5:
            use(tenant, 100, at=at)
    # 1 to 17 November has 12 working days: 1200 used; 100 on each to come is 2000 on the 27th.
    assert alerts.tell_forecasts(now=NOW.replace(hour=0, minute=0)) == 1
    assert alerts.tell_forecasts(now=NOW) == 0
    payload = Notice.objects.get().payload
    assert (payload["reached_on"], payload["used"], payload["expected"]) == ("2026-11-27", 1200, 2100)


def test_a_month_that_will_do_is_not_told_of() -> None:
    tenant = make_tenant()
    budget(tenant, 5000)
    use(tenant, 100, at=NOW - timedelta(days=5))
    assert alerts.tell_forecasts(now=NOW) == 0


def test_keys_are_warned_of_in_good_time() -> None:
    tenant = make_tenant()
    now = timezone.now()
    create_api_key(tenant, name="long", actor=SYSTEM, expires_at=now + timedelta(days=60))
    create_api_key(tenant, name="for an hour", actor=SYSTEM, expires_at=now + timedelta(hours=1))
    create_api_key(tenant, name="for ever", actor=SYSTEM)
    days = [now + timedelta(days=day) for day in (0, 40, 46.5, 50, 57.5, 59.5, 61)]
    assert [alerts.tell_expiring_keys(now=day) for day in days] == [0, 0, 1, 0, 1, 1, 0]
    assert [notice.payload["days"] for notice in Notice.objects.order_by("id")] == [14, 3, 1]


def test_grants_and_raised_limits_are_warned_of_and_tidied_up() -> None:
    tenant = make_tenant()
    now = timezone.now()
    until = now + timedelta(days=30)
    grant_model(tenant, model_pattern="big", actor=SYSTEM, expires_at=until)
    grant_model(tenant, model_pattern="small", actor=SYSTEM)
    limit = budget(tenant)
    boost_limit(limit.pk, amount=2000, until=until, actor=SYSTEM)
    assert alerts.tell_endings(now=now) == 0
    assert alerts.tell_endings(now=until - timedelta(days=2)) == 2
    assert alerts.tell_endings(now=until - timedelta(hours=2)) == 2
    assert alerts.tell_endings(now=until - timedelta(hours=1)) == 0
    assert (remove_expired_grants(now), end_boosts(now=now)) == (0, 0)
    assert (remove_expired_grants(until), end_boosts(now=until)) == (1, 1)
    assert (remove_expired_grants(until), end_boosts(now=until)) == (0, 0)
    limit.refresh_from_db()
    assert (limit.amount, limit.boost_amount) == (1000, None)
    assert AuditEvent.objects.filter(action__in=["grant.expired", "limit.boost_expired"]).count() == 2


def test_a_suspended_tenant_is_told() -> None:
    tenant = make_tenant()
    for state in (TenantState.SUSPENDED, TenantState.SUSPENDED, TenantState.ACTIVE, TenantState.SUSPENDED):
        set_tenant_state(tenant.pk, state, actor=SYSTEM)
    kinds = list(Notice.objects.order_by("id").values_list("kind", flat=True))
    assert kinds == ["tenant_suspended", "tenant_resumed", "tenant_suspended"]
