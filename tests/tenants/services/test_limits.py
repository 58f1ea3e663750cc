"""Limits: what makes no sense is refused by field, what is made is audited and published."""

import itertools
import threading
from datetime import timedelta
from typing import Any
from uuid import uuid4

import pytest
from django.db import connection
from django.utils import timezone

from core.epochs import Section, current_epoch, read_changes
from tenants.actor import SYSTEM
from tenants.models import AuditEvent, Limit
from tenants.policies.quota import MOST
from tenants.services import limits
from tenants.services.departments import DEEPEST, change_tenant, set_parent
from tenants.services.errors import Conflict, InvalidInput
from tenants.services.limits import MOST_LIMITS, boost_limit, change_limit, create_limit, delete_limit
from tests.factories import make_key, make_tenant

pytestmark = pytest.mark.django_db


def _make(**more: Any) -> Limit:
    values: dict[str, Any] = {"metric": "requests", "window": "minute", "amount": 60, "actor": SYSTEM}
    return create_limit(**{**values, **more})


def _published() -> list[Any]:
    return [change.object_id for change in read_changes(Section.LIMITS, after=0, limit=100) or ()]


def test_a_limit_is_made_audited_and_published() -> None:
    tenant = make_tenant()
    limit = _make(tenant=tenant, subtree=True, model="qwen", metric="money", window="month", alert_shares=[90, 50])
    assert (limit.alert_shares, limit.amount) == ([50, 90], 60)
    event = AuditEvent.objects.get(action="limit.created")
    assert (event.subject_id, event.tenant_id) == (limit.pk, tenant.pk)
    assert (event.after["metric"], event.after["amount"]) == ("money", 60)
    assert _published() == [limit.pk]


@pytest.mark.parametrize(
    ("more", "field"),
    [
        ({"amount": 0}, "amount"),
        ({"amount": -5}, "amount"),
        ({"amount": MOST + 1}, "amount"),
        ({"metric": "joules"}, "metric"),
        ({"window": "week"}, "window"),
        ({"metric": "money", "window": "minute"}, "window"),
        ({"metric": "concurrency", "window": "day"}, "window"),
        ({"metric": "gpus", "window": "month"}, "window"),
        ({"metric": "tokens", "window": "standing"}, "window"),
        ({"window": "bucket"}, "refill_per_second"),
        ({"window": "bucket", "refill_per_second": 0.0}, "refill_per_second"),
        ({"window": "bucket", "refill_per_second": -1.0}, "refill_per_second"),
        ({"window": "bucket", "refill_per_second": float("nan")}, "refill_per_second"),
        ({"window": "bucket", "refill_per_second": float("inf")}, "refill_per_second"),
        ({"refill_per_second": 1.0}, "refill_per_second"),
        ({"subtree": True}, "subtree"),
        ({"alert_shares": [50]}, "alert_shares"),
        ({"window": "day", "alert_shares": [0]}, "alert_shares"),
        ({"window": "day", "alert_shares": [50, 50]}, "alert_shares"),
        ({"model": "m" * 201}, "model"),
        ({"model": "a\x00b"}, "model"),
        ({"note": "n" * 201}, "note"),
    ],
)
def test_what_makes_no_sense_is_refused_and_nothing_is_written(more: dict[str, Any], field: str) -> None:
    with pytest.raises(InvalidInput) as refused:
        _make(**more)
    assert refused.value.field == field
    assert not Limit.objects.exists()
    assert not AuditEvent.objects.filter(action__startswith="limit.").exists()
    assert _published() == []


def test_a_key_is_limited_within_its_own_tenant_only() -> None:
    tenant = make_tenant()
    key = make_key(tenant).key
    assert _make(tenant=tenant, key=key).key == key
    for more, field in (
        ({"tenant": make_tenant(), "key": key}, "key"),
        ({"key": key}, "key"),
        ({"tenant": tenant, "key": key, "subtree": True}, "subtree"),
        ({"tenant": tenant, "key": key, "metric": "gpus", "window": "standing"}, "key"),
    ):
        with pytest.raises(InvalidInput) as refused:
            _make(**more)
        assert refused.value.field == field


def test_one_scope_has_one_limit_of_a_metric_and_window() -> None:
    tenant = make_tenant()
    _make(tenant=tenant)
    _make(tenant=tenant, window="day")
    _make(tenant=tenant, model="qwen")
    with pytest.raises(Conflict):
        _make(tenant=tenant)
    assert Limit.objects.count() == 3


def test_a_tenant_has_no_endless_list_of_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tenants.services.limits.MOST_LIMITS", 2)
    tenant = make_tenant()
    _make(tenant=tenant)
    _make(tenant=tenant, window="day")
    with pytest.raises(Conflict):
        _make(tenant=tenant, window="month")
    assert MOST_LIMITS >= 100


def test_changing_the_amount_keeps_the_count_and_says_what_it_was() -> None:
    limit = _make(window="day", metric="tokens")
    began = limit.counts_from
    changed = change_limit(limit.pk, amount=100, alert_shares=[80], note="more", actor=SYSTEM)
    assert (changed.amount, changed.alert_shares, changed.counts_from) == (100, [80], began)
    event = AuditEvent.objects.get(action="limit.changed")
    assert (event.before["amount"], event.after["amount"]) == (60, 100)
    epoch = current_epoch(Section.LIMITS)
    change_limit(limit.pk, amount=100, actor=SYSTEM)
    assert current_epoch(Section.LIMITS) == epoch
    for wrong in (0, MOST + 1):
        with pytest.raises(InvalidInput):
            change_limit(limit.pk, amount=wrong, actor=SYSTEM)
    with pytest.raises(InvalidInput):
        change_limit(limit.pk, refill_per_second=1.0, actor=SYSTEM)


def test_a_boost_ends_by_itself_and_is_never_less_than_the_limit() -> None:
    limit, soon = _make(), timezone.now() + timedelta(hours=1)
    assert boost_limit(limit.pk, amount=100, until=soon, actor=SYSTEM).boost_amount == 100
    for amount, until, field in (
        (60, soon, "amount"),
        (100, timezone.now(), "until"),
        (100, timezone.now() + timedelta(days=400), "until"),
        (100, None, "until"),
        (None, soon, "amount"),
        (MOST + 1, soon, "amount"),
    ):
        with pytest.raises(InvalidInput) as refused:
            boost_limit(limit.pk, amount=amount, until=until, actor=SYSTEM)
        assert refused.value.field == field
    assert change_limit(limit.pk, amount=100, actor=SYSTEM).boost_amount is None
    boost_limit(limit.pk, amount=200, until=soon, actor=SYSTEM)
    assert boost_limit(limit.pk, amount=None, until=None, actor=SYSTEM).boost_until is None
    assert [event.action for event in AuditEvent.objects.filter(subject_id=limit.pk).order_by("pk")] == [
        "limit.created", "limit.boosted", "limit.changed", "limit.boosted", "limit.boost_ended",
    ]  # fmt: skip


def test_a_deleted_limit_is_published_by_its_id() -> None:
    limit = _make()
    delete_limit(limit.pk, actor=SYSTEM)
    assert _published() == [limit.pk, limit.pk]
    with pytest.raises(Limit.DoesNotExist):
        delete_limit(limit.pk, actor=SYSTEM)


def test_departments_form_no_circle_and_no_bottomless_tree() -> None:
    chain = [make_tenant() for _ in range(DEEPEST)]
    for upper, lower in itertools.pairwise(chain):
        set_parent(lower.pk, upper.pk, actor=SYSTEM)
    other = make_tenant()
    for tenant, parent in ((chain[0], chain[-1]), (chain[0], chain[0]), (other, chain[-1]), (chain[0], other)):
        with pytest.raises(InvalidInput) as refused:
            set_parent(tenant.pk, parent.pk, actor=SYSTEM)
        assert refused.value.field == "parent"
    with pytest.raises(InvalidInput):
        set_parent(other.pk, uuid4(), actor=SYSTEM)
    assert set_parent(chain[4].pk, None, actor=SYSTEM).parent_id is None
    assert set_parent(other.pk, chain[3].pk, actor=SYSTEM).parent == chain[3]


def test_a_new_zone_or_parent_reaches_the_tenants_limits_and_grants() -> None:
    tenant, parent = make_tenant(), make_tenant()
    limit = _make(tenant=tenant, window="day")
    grants = current_epoch(Section.GRANTS)
    changed = change_tenant(tenant.pk, name=" New ", time_zone="Asia/Tokyo", sla_tier="gold", actor=SYSTEM)
    assert (changed.name, changed.time_zone, changed.sla_tier) == ("New", "Asia/Tokyo", "gold")
    _make(tenant=parent, window="day")
    above = _make(tenant=parent, window="day", subtree=True)
    before = len(_published())
    set_parent(tenant.pk, parent.pk, actor=SYSTEM)
    assert _published()[before:] == [limit.pk, above.pk]
    assert current_epoch(Section.GRANTS) == grants + 2
    change_tenant(tenant.pk, name="New", actor=SYSTEM)
    assert current_epoch(Section.GRANTS) == grants + 2


@pytest.mark.parametrize(
    ("more", "field"),
    [
        ({"name": " "}, "name"),
        ({"time_zone": "Mars/Base"}, "time_zone"),
        ({"sla_tier": "tin"}, "sla_tier"),
        ({"response_retention_days": -1}, "response_retention_days"),
        ({"response_retention_days": 100_000}, "response_retention_days"),
    ],
)
def test_a_wrong_change_of_a_tenant_is_refused(more: dict[str, Any], field: str) -> None:
    tenant = make_tenant()
    with pytest.raises(InvalidInput) as refused:
        change_tenant(tenant.pk, actor=SYSTEM, **more)
    assert refused.value.field == field


@pytest.mark.django_db(transaction=True)
def test_of_many_who_make_limits_at_once_none_makes_one_too_many(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "MOST_LIMITS", 2)
    tenant = make_tenant()
    together = threading.Barrier(6)
    told: list[str] = []

    def make(model: str) -> None:
        together.wait()
        try:
            _make(tenant=tenant, model=model)
            told.append("made")
        except Conflict:
            told.append("conflict")
        connection.close()

    threads = [threading.Thread(target=make, args=(f"m{number}",)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(told) == ["conflict"] * 4 + ["made"] * 2
    assert Limit.objects.count() == 2
