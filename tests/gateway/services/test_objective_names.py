"""Names of objectives: one of each for the platform, one of each for a tenant's own."""

from importlib import import_module
from typing import Any

import pytest
from django.apps import apps
from django.db import IntegrityError, connection, transaction

from gateway.models import Objective
from gateway.services.objectives import change_objective, create_tier_objectives, delete_objective
from tenants.actor import SYSTEM
from tenants.models import Tenant
from tenants.services import create_tenant
from tenants.services.errors import InvalidInput
from tests.gateway.slo_rows import NOW, ttft_objective

pytestmark = pytest.mark.django_db

CONSTRAINTS = ("gateway_objective_name_once", "gateway_objective_tenants_name_once")


@pytest.fixture
def acme() -> Tenant:
    return create_tenant(slug="acme", name="Acme", actor=SYSTEM)


def test_a_name_is_one_objectives_of_the_platform_or_of_a_tenant(acme: Tenant) -> None:
    other = create_tenant(slug="other", name="Other", actor=SYSTEM)
    ours = ttft_objective(name="chat")
    theirs = ttft_objective(name="chat", tenant=acme, tenants_own=True)
    ttft_objective(name="chat", tenant=other, tenants_own=True)
    again: list[dict[str, Any]] = [{}, {"tenant": other}, {"tenant": acme, "tenants_own": True}]
    for scope in again:
        with pytest.raises(InvalidInput, match="There is an objective 'chat' already") as refused:
            ttft_objective(name=" chat ", **scope)
        assert refused.value.field == "name"
    for objective, scope in ((ours, {}), (theirs, {"tenant": acme, "tenants_own": True})):
        second = ttft_objective(name="second", **scope)
        with pytest.raises(InvalidInput, match="already"):
            change_objective(second.pk, actor=SYSTEM, now=NOW, name="chat")
        assert change_objective(objective.pk, actor=SYSTEM, now=NOW, name="chat", target=0.95).target == 0.95
        delete_objective(objective.pk, actor=SYSTEM, now=NOW)
        assert change_objective(second.pk, actor=SYSTEM, now=NOW, name="chat").name == "chat"


@pytest.mark.parametrize("name", ["", "  ", "x" * 121, "two\nlines", "two\u2028lines", "nul\0", "half \ud83d"])
def test_a_name_is_one_line_that_can_be_shown(name: str) -> None:
    objective = ttft_objective()
    with pytest.raises(InvalidInput, match="printable"):
        ttft_objective(name=name)
    with pytest.raises(InvalidInput, match="printable"):
        change_objective(objective.pk, actor=SYSTEM, now=NOW, name=name)


@pytest.mark.parametrize("name", ["对话\u3000首字", "chat\N{NO-BREAK SPACE}1", "\U0001f468\u200d\U0001f4bb chat"])
def test_a_name_may_have_wide_spaces_and_joined_characters(name: str) -> None:
    assert ttft_objective(name=name).name == name


def test_one_whose_name_would_be_refused_now_can_still_be_switched_off() -> None:
    objective = ttft_objective()
    Objective.objects.update(name="two\nlines")
    assert not change_objective(objective.pk, actor=SYSTEM, now=NOW, enabled=False).enabled


def test_the_database_knows_it_too(acme: Tenant) -> None:
    ttft_objective(name="chat")
    ttft_objective(name="chat", tenant=acme, tenants_own=True)
    for second in (ttft_objective(name="b"), ttft_objective(name="b", tenant=acme, tenants_own=True)):
        with pytest.raises(IntegrityError), transaction.atomic():
            Objective.objects.filter(pk=second.pk).update(name="chat")


def test_a_tiers_objective_has_another_name_where_its_own_is_taken() -> None:
    ttft_objective(name="Gold · TTFT")
    ttft_objective(name="Gold · TTFT (2)")
    made = {one.preset: one.name for one in create_tier_objectives(actor=SYSTEM)}
    assert len(made) == 6
    assert (made["gold:ttft"], made["silver:ttft"]) == ("Gold · TTFT (3)", "Silver · TTFT")


def test_namesakes_from_before_are_numbered_and_the_oldest_keeps_its_name(acme: Tenant) -> None:
    with connection.cursor() as cursor:
        cursor.execute(f"DROP INDEX {', '.join(CONSTRAINTS)}")
    long = "x" * 120
    names = ["chat", "chat (2)", "chat", "chat", long, long]
    ours = [ttft_objective(name=f"{number}").pk for number in range(len(names))]
    theirs = [ttft_objective(name=f"{number}", tenant=acme, tenants_own=True).pk for number in range(2)]
    for pk, name in zip([*ours, *theirs], [*names, "chat", "chat"], strict=True):
        Objective.objects.filter(pk=pk).update(name=name)
    with connection.cursor() as cursor:
        cursor.execute("SET CONSTRAINTS ALL IMMEDIATE")
    with connection.schema_editor() as editor:
        import_module("gateway.migrations.0005_objective_names").number_namesakes(apps, editor)
        for constraint in Objective._meta.constraints:
            if constraint.name in CONSTRAINTS:
                editor.add_constraint(Objective, constraint)
    found = dict(Objective.objects.values_list("pk", "name"))
    assert [found[pk] for pk in ours] == ["chat", "chat (2)", "chat (3)", "chat (4)", long, "x" * 116 + " (2)"]
    assert [found[pk] for pk in theirs] == ["chat", "chat (2)"]
