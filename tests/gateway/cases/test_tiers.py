"""A tenant's tier says how urgent its requests are, to the engine too (R146)."""

from typing import Final

import pytest

from bench.house import wait_until
from bench.rows import make_key, make_tenant
from tenants.actor import SYSTEM
from tenants.services.departments import change_tenant
from tests.gateway.cases.desk import CHAT, MESSAGES, RESPONSES, Case

CLASSES: Final = {"gold": "p0", "silver": None, "bronze": "p2"}  # what is usual is not told


@pytest.mark.shows("R146")
def test_a_tier_is_a_class_at_both_doors_whatever_a_client_claims(case: Case) -> None:
    tenant = make_tenant(f"tiers-{case.door}-{case.streamed}".lower(), models=("case-*",))
    key = make_key(tenant, "tiers")
    served = case.serve(case.says("A"))
    for tier, told in CLASSES.items():
        change_tenant(tenant.pk, sla_tier=tier, actor=SYSTEM)
        seen: list[str | None] = []

        def is_told(told: str | None = told, seen: list[str | None] = seen) -> bool:
            assert case.ask(served.name, key=key).status == 200
            seen.append(served.received[-1].header("x-gatehouse-class"))
            return seen[-1] == told

        wait_until(is_told, f"{told} of a {tier} tenant, {seen}")
        for path in (CHAT, MESSAGES, RESPONSES):
            assert case.ask(served.name, path, key=key, headers={"x-gatehouse-class": "p1"}).status == 200
            assert served.received[-1].header("x-gatehouse-class") == told
