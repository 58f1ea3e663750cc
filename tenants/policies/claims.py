"""Which roles an identity provider's claims stand for."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from tenants.policies.roles import highest


@dataclass(frozen=True, slots=True)
class Rule:
    """Who has `value` in `claim` gets a platform role, or `tenant_role` in the tenant."""

    claim: str
    value: str
    platform_role: str
    tenant_id: UUID | None
    tenant_role: str


@dataclass(frozen=True, slots=True)
class Given:
    """What all rules together give; of several roles in one place the highest."""

    platform_role: str
    tenant_roles: Mapping[UUID, str]


def claim_values(claims: Mapping[str, Any], name: str) -> frozenset[str]:
    """The values of a claim: of a list its texts and numbers, else the one. A name that is no claim is a path of names.

    What is neither text, number nor truth value has none.
    """
    found: Any = claims
    if name in claims:  # names may be addresses, with dots in them
        found = claims[name]
    else:
        for part in name.split("."):
            if not isinstance(found, Mapping) or part not in found:
                return frozenset()
            found = found[part]
    values = found if isinstance(found, list) else [found]
    return frozenset(_text(value) for value in values if isinstance(value, (str, int, float)))


def given_by(claims: Mapping[str, Any], rules: Iterable[Rule]) -> Given:
    """Apply every rule whose claim has its value; values are compared exactly."""
    platform: list[str] = []
    tenants: dict[UUID, list[str]] = {}
    for rule in rules:
        if rule.value not in claim_values(claims, rule.claim):
            continue
        if rule.tenant_id is None:
            platform.append(rule.platform_role)
        else:
            tenants.setdefault(rule.tenant_id, []).append(rule.tenant_role)
    roles = {tenant_id: highest(found) for tenant_id, found in tenants.items()}
    return Given(highest(platform) or "", {tenant_id: role for tenant_id, role in roles.items() if role is not None})


def _text(value: str | int | float) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
