"""The console's overview: what needs attention first, each line with where it leads."""

import pytest
from django.test import Client
from django.utils import timezone

from gpupool.models import Device, Node
from tenants.actor import SYSTEM
from tenants.models import (
    TenantRole,
    User,
    Window,
)
from tenants.services.limits import change_limit
from tests.dashboard.people import pool, tenant
from tests.dashboard.tenancy_rows import asked_by, limit, text_of

pytestmark = pytest.mark.django_db


def test_the_overview_puts_the_worst_first_and_each_line_leads_somewhere(operator: Client) -> None:
    acme = tenant("acme", ada=TenantRole.OWNER)
    made = pool(state="failed")
    Node.objects.create(name="node-2", state="unreachable", token_digest="e" * 64, token_last_four="eeee")
    Device.objects.update(health="failed")
    limit(acme)
    asked_by(acme, User.objects.get(email="ada@example.com"))
    items = operator.get("/console/overview/").context["attention"]
    kinds = [item.kind for item in items]
    assert kinds == sorted(kinds, key=kinds.index)
    assert kinds[-1] == "approval_waits"
    assert {"node_unreachable", "instance_failed", "device_failed", "approval_waits"} <= set(kinds)
    assert kinds.index("node_unreachable") < kinds.index("approval_waits")
    for item in items:
        assert operator.get(item.href).status_code == 200, item
    assert any(made.version.model.name in item.text for item in items)
    assert "node-2" in text_of(operator.get("/console/overview/attention/"))


def test_budgets_that_tenants_were_told_of_stand_on_the_overview(operator: Client) -> None:
    from tenants.services.alerts import tell_budget

    acme = tenant("acme")
    budget = limit(acme, window=Window.MONTH, alert_shares=[80, 100])
    tell_budget(budget, used=850, now=timezone.now())
    (item,) = [one for one in operator.get("/console/overview/").context["attention"] if "budget" in one.kind]
    assert (item.kind, "Acme" in item.text) == ("budget_near", True)
    tell_budget(budget, used=1_000, now=timezone.now())
    (item,) = [one for one in operator.get("/console/overview/").context["attention"] if "budget" in one.kind]
    assert item.kind == "budget_spent"
    change_limit(budget.pk, amount=5_000, actor=SYSTEM)
    shown = operator.get("/console/overview/").context["attention"]
    assert not [one for one in shown if "budget" in one.kind]  # what was told is of an amount that holds no more


def test_many_nodes_in_maintenance_do_not_hide_those_that_are_away(operator: Client) -> None:
    Node.objects.bulk_create(
        Node(name=f"a{n:03}", maintenance=True, token_digest=f"{n:064}", token_last_four="eeee") for n in range(205)
    )
    Node.objects.create(name="z", state="unreachable", token_digest="e" * 64, token_last_four="eeee")
    items = {item.kind: item.text for item in operator.get("/console/overview/attention/").context["attention"]}
    assert items["node_unreachable"].startswith("1 node is unreachable: z.")
    assert items["node_in_maintenance"].startswith("205 nodes")
