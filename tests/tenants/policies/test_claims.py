"""What claims stand for: exact values, paths, lists, and nothing else."""

from typing import Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tenants.policies.claims import Rule, claim_values, given_by
from tenants.policies.second_factor import is_required

ACME, BANK = UUID(int=1), UUID(int=2)


@pytest.mark.parametrize(
    ("claims", "name", "values"),
    [
        ({"groups": ["a", "b"]}, "groups", {"a", "b"}),
        ({"group": "a"}, "group", {"a"}),
        ({"level": 3}, "level", {"3"}),
        ({"staff": True}, "staff", {"true"}),
        ({"realm": {"roles": ["a"]}}, "realm.roles", {"a"}),
        ({"https://acme.example/roles": ["a"]}, "https://acme.example/roles", {"a"}),
        ({"groups": [{"name": "a"}, None, "b"]}, "groups", {"b"}),
        ({"groups": {"a": 1}}, "groups", set()),
        ({"groups": None}, "groups", set()),
        ({"groups": "a"}, "groups.a", set()),
        ({}, "groups", set()),
    ],
)
def test_the_values_of_a_claim(claims: dict[str, Any], name: str, values: set[str]) -> None:
    assert claim_values(claims, name) == values


def test_of_several_roles_in_one_place_the_highest_counts() -> None:
    rules = [
        Rule("groups", "dev", "", ACME, "developer"),
        Rule("groups", "lead", "", ACME, "owner"),
        Rule("groups", "fin", "", BANK, "billing"),
        Rule("groups", "ops", "operator", None, ""),
        Rule("groups", "look", "read_only", None, ""),
    ]
    all_of_them = given_by({"groups": ["dev", "lead", "ops", "look"]}, rules)
    assert (all_of_them.platform_role, dict(all_of_them.tenant_roles)) == ("operator", {ACME: "owner"})
    nothing = given_by({"groups": ["DEV", "dev "]}, rules)
    assert (nothing.platform_role, dict(nothing.tenant_roles)) == ("", {})


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda children: st.lists(children, max_size=3) | st.dictionaries(st.text(max_size=5), children, max_size=3),
    max_leaves=8,
)


@given(st.dictionaries(st.text(max_size=5), _JSON, max_size=4), st.text(max_size=8))
def test_whatever_a_provider_sends_is_read_without_failing(claims: dict[str, Any], name: str) -> None:
    given_by(claims, [Rule(name, "x", "operator", None, "")])


@pytest.mark.parametrize(
    ("of", "role", "required"),
    [
        ("off", "superuser", False),
        ("platform", "read_only", True),
        ("platform", "", False),
        ("all", "", True),
    ],
)
def test_who_must_have_a_second_factor(of: str, role: str, required: bool) -> None:
    assert is_required(of, platform_role=role) is required
