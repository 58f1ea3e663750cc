"""Who is told of what: written out, since forms, links and services all ask the same two sets."""

from tenants.policies.notices import PLATFORM_KINDS, TENANT_KINDS

_BOTH = {
    "budget_share", "budget_refusing", "budget_forecast", "boost_ending", "webhook_disabled", "objective_burning",
    "objective_recovered",
}  # fmt: skip


def test_the_platform_is_told_of_its_own_limits_webhooks_and_objectives_and_of_what_is_asked_for() -> None:
    assert {*_BOTH, "request_opened"} == PLATFORM_KINDS


def test_a_tenant_is_told_of_all_but_what_it_asks_for_itself() -> None:
    assert {
        *_BOTH, "key_expiring", "key_compromised", "grant_ending", "tenant_suspended", "tenant_resumed",
        "request_decided",
    } == TENANT_KINDS  # fmt: skip
