"""Objectives that people change or delete while they burn: who was told hears that it is over, and what is left."""

from datetime import timedelta

import pytest

from gateway.holdings import forget_platform_notices
from gateway.models import ObjectiveAlert
from gateway.services.objective_alerts import create_silence, evaluate_objectives
from gateway.services.objectives import change_objective, delete_objective
from tenants.actor import SYSTEM
from tenants.models import AuditEvent, Notice, Tenant
from tenants.policies.notices import NoticeKind
from tenants.services import create_tenant
from tenants.services.notice_saying import notice_said
from tests.gateway.slo_rows import NOW, traffic, ttft_objective

pytestmark = pytest.mark.django_db


@pytest.fixture
def acme() -> Tenant:
    return create_tenant(slug="acme", name="Acme", actor=SYSTEM)


def burn(tenant: Tenant) -> None:
    traffic(tenant, since=NOW - timedelta(hours=1), until=NOW, slow=5)


@pytest.mark.parametrize(
    ("ended_by", "says", "in_chinese"),
    [
        ("changed", "was changed", "已更改"),
        ("disabled", "was switched off", "已停用"),
        ("deleted", "was deleted", "已删除"),
    ],
)
def test_who_was_told_of_an_alert_is_told_that_a_person_ended_it_by_the_name_that_they_know(
    acme: Tenant, ended_by: str, says: str, in_chinese: str
) -> None:
    burn(acme)
    told, quiet = ttft_objective(tenant=acme, name="ours"), ttft_objective(name="quiet")
    create_silence(objective=quiet, reason="x", ends_at=NOW + timedelta(days=1), actor=SYSTEM, now=NOW)
    evaluate_objectives(now=NOW)
    for one in (told, quiet):
        if ended_by == "deleted":
            delete_objective(one.pk, actor=SYSTEM, now=NOW)
        else:
            change = {"target": 0.95} if ended_by == "changed" else {"enabled": False}
            change_objective(one.pk, actor=SYSTEM, now=NOW, name=f"{one.name} v2", **change)
    over = Notice.objects.filter(kind="objective_recovered")
    assert {(one.payload["name"], one.tenant) for one in over} == {("ours", None), ("ours", acme)}
    assert {one.payload["target"] for one in over} == {0.99}
    assert over.count() == 2 * 3
    text = notice_said(NoticeKind.OBJECTIVE_RECOVERED, over[0].payload, "en")
    assert text.subject == f"Over: ours {says}"
    assert "budget" not in text.body
    assert in_chinese in notice_said(NoticeKind.OBJECTIVE_RECOVERED, over[0].payload, "zh-hans").subject
    assert "…" not in text.body


def test_what_operators_were_told_of_an_erased_tenants_objectives_is_gone_also_where_these_were_deleted(
    acme: Tenant,
) -> None:
    other = create_tenant(slug="other", name="Other", actor=SYSTEM)
    burn(acme)
    deleted, there = ttft_objective(tenant=acme, name="deleted"), ttft_objective(tenant=acme, name="there")
    burn(other)
    theirs, everyones = ttft_objective(tenant=other, name="theirs"), ttft_objective(name="of everyone")
    evaluate_objectives(now=NOW)
    for one in (deleted, theirs, everyones):
        delete_objective(one.pk, actor=SYSTEM, now=NOW)
    # As an older version told it: without whom it is about.
    for notice in Notice.objects.filter(payload__objective=str(there.pk)):
        notice.payload.pop("tenant_id")
        notice.save()
    forget_platform_notices(acme.pk)
    left = Notice.objects.filter(tenant=None)
    assert {one.payload["name"] for one in left} == {"theirs", "of everyone"}
    assert left.count() == 2 * (3 + 3)


def test_changed_and_disabled_objectives_end_their_alerts(acme: Tenant) -> None:
    burn(acme)
    objective = ttft_objective()
    evaluate_objectives(now=NOW)
    change_objective(objective.pk, actor=SYSTEM, now=NOW, enabled=False)
    assert set(ObjectiveAlert.objects.values_list("state", flat=True)) == {"resolved"}
    assert evaluate_objectives(now=NOW + timedelta(minutes=1)) == 0
    delete_objective(objective.pk, actor=SYSTEM, now=NOW)
    assert not ObjectiveAlert.objects.exists()
    assert AuditEvent.objects.filter(action="objective.deleted").exists()
