"""Grants: deny wins, nothing is allowed by default, expiry and scopes bind."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tenants.policies.rbac import ACTIONS, GrantRule, is_allowed

TENANT, KEY = "tenant-1", "key-1"


def rule(
    pattern: str = "*",
    *,
    allow: bool = True,
    kind: str = "tenant",
    owner: str = TENANT,
    actions: frozenset[str] = frozenset({"infer"}),
    expires_at: float | None = None,
) -> GrantRule:
    return GrantRule(kind, owner, pattern, actions, allow, expires_at)


def decide(
    *rules: GrantRule,
    model: str = "qwen3-8b",
    action: str = "infer",
    scopes: frozenset[str] = frozenset({"infer"}),
    allowed_models: tuple[str, ...] = (),
    now: float = 1000.0,
) -> bool:
    return is_allowed(
        rules,
        tenant_id=TENANT,
        key_id=KEY,
        scopes=scopes,
        allowed_models=allowed_models,
        model=model,
        action=action,
        now=now,
    )


def test_nothing_is_allowed_without_a_grant() -> None:
    assert not decide()


@pytest.mark.parametrize(
    ("pattern", "allowed"), [("qwen3-8b", True), ("qwen*", True), ("*", True), ("Qwen*", False), ("qwen", False)]
)
def test_a_pattern_matches_whole_names_and_case(pattern: str, allowed: bool) -> None:
    assert decide(rule(pattern)) is allowed


@pytest.mark.shows("R142")
def test_a_grant_names_principal_model_and_action() -> None:
    assert decide(rule("qwen*"))
    assert not decide(rule("qwen*"), action="train", scopes=frozenset({"train"}))
    assert not decide(rule("qwen*", owner="tenant-2"))
    assert decide(rule("qwen*", kind="key", owner=KEY))
    assert not decide(rule("qwen*", kind="key", owner="key-2"))


@pytest.mark.parametrize("order", [0, 1])
def test_deny_wins_in_any_order(order: int) -> None:
    rules = [rule("*"), rule("qwen*", allow=False)]
    assert not decide(*(rules if order else rules[::-1]))
    assert decide(*rules, model="llama-3")


def test_an_expired_grant_no_longer_counts() -> None:
    assert decide(rule(expires_at=1000.1))
    assert not decide(rule(expires_at=1000.0))


def test_an_expired_denial_no_longer_counts() -> None:
    assert decide(rule(), rule(allow=False, expires_at=999.0))


def test_the_keys_own_scopes_and_models_narrow_the_grant() -> None:
    assert not decide(rule(), scopes=frozenset({"embed"}))
    assert not decide(rule(), allowed_models=("llama*",))
    assert decide(rule(), allowed_models=("llama*", "qwen3-8b"))


def test_a_star_stands_for_every_action() -> None:
    everything = rule(actions=frozenset({"*"}))
    assert all(decide(everything, action=action, scopes=ACTIONS) for action in ACTIONS)


@given(
    st.lists(
        st.builds(
            rule,
            st.sampled_from(["*", "qwen*", "qwen3-8b", "other"]),
            allow=st.booleans(),
            kind=st.sampled_from(["tenant", "key"]),
            owner=st.sampled_from([TENANT, KEY, "stranger"]),
            expires_at=st.none() | st.floats(0, 2000),
        ),
        max_size=8,
    )
)
def test_adding_a_denial_never_opens_a_door(rules: list[GrantRule]) -> None:
    assert not (decide(*rules, rule("*", allow=False)))
    if not decide(*rules):
        assert not decide(*rules, rule("qwen*", allow=False, kind="key", owner=KEY))


@pytest.mark.shows("R142")
@pytest.mark.parametrize(
    ("tenant", "model", "action", "allowed"),
    [
        ("research", "llama-70b", "infer", True),
        ("research", "llama-70b", "train", True),
        ("research", "llama-70b", "deploy", False),
        ("research", "other", "infer", False),
        ("shop", "llama-70b", "infer", True),
        ("shop", "llama-70b", "train", False),  # what one tenant may train, another only asks
        ("shop", "llama-70b-secret", "infer", False),  # a denial of one model within a wider grant
        ("shop", "bge-m3", "embed", True),
        ("shop", "bge-m3", "infer", False),
        ("platform", "anything", "manage", True),
        ("platform", "anything", "train", True),
        ("platform", "llama-70b-secret", "infer", False),
        ("stranger", "llama-70b", "infer", False),
    ],
)
def test_who_may_do_what_with_which_model(tenant: str, model: str, action: str, allowed: bool) -> None:
    """The table of (tenant, model, action)."""
    grants = [
        rule("llama-*", owner="research", actions=frozenset({"infer", "train"})),
        rule("llama-*", owner="shop", actions=frozenset({"infer"})),
        rule("bge-*", owner="shop", actions=frozenset({"embed"})),
        rule("*", owner="platform", actions=frozenset({"*"})),
        *(rule("*-secret", owner=who, allow=False, actions=frozenset({"*"})) for who in ("shop", "platform")),
    ]
    assert allowed is is_allowed(
        grants, tenant_id=tenant, key_id="", scopes=ACTIONS, allowed_models=(), model=model, action=action, now=0.0
    )


@pytest.mark.shows("R142")
@pytest.mark.parametrize("action", sorted(ACTIONS))
def test_each_action_is_granted_and_denied_on_its_own(action: str) -> None:
    one = rule(actions=frozenset({action}))
    assert [other for other in sorted(ACTIONS) if decide(one, action=other, scopes=ACTIONS)] == [action]
    denied = rule(allow=False, actions=frozenset({action}))
    every = rule(actions=frozenset({"*"}))
    assert [other for other in sorted(ACTIONS) if not decide(every, denied, action=other, scopes=ACTIONS)] == [action]


def test_a_subjects_grant_is_no_keys_and_a_keys_no_subjects() -> None:
    about_subject = rule(kind="subject", owner="subject-1")

    def ask(grant: GrantRule, *, key: str, subject: str) -> bool:
        return is_allowed(
            [grant], tenant_id=TENANT, key_id=key, subject_id=subject, scopes=ACTIONS, allowed_models=(),
            model="any", action="infer", now=0.0,
        )  # fmt: skip

    assert ask(about_subject, key="", subject="subject-1")
    assert not ask(about_subject, key="subject-1", subject="")
    assert not ask(rule(kind="key", owner=""), key=KEY, subject="subject-1")
