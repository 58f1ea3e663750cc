"""Who may do what: every cell of the table, written out here independently of it."""

import pytest

from tenants.policies.roles import MAY, Action, Object, Standing, highest, may

ROLES = ("owner", "admin", "developer", "viewer", "billing", "superuser", "operator", "read_only")
PLATFORM = ("superuser", "operator", "read_only")

# One line an object and action that anyone has: owner, admin, developer, viewer, billing | superuser, operator,
# read-only. `+` may, `.` may not. What has no line nobody may.
GRID = """
tenant           view    + + + + + | + + +
tenant           change  + + . . . | + + .
tenant           delete  . . . . . | + . .
member           view    + + + + + | + + +
member           change  + + . . . | + + .
member           delete  + + . . . | + + .
invitation       view    + + . . . | + + +
invitation       create  + + . . . | + + .
invitation       delete  + + . . . | + + .
key              view    + + + + + | + + +
key              create  + + + . . | + + .
key              change  + + . . . | + + .
key              delete  + + . . . | + + .
own_key          change  + + + . . | + + .
own_key          delete  + + + . . | + + .
grant            view    + + + + + | + + +
grant            create  . . . . . | + + .
grant            delete  . . . . . | + + .
limit            view    + + + + + | + + +
limit            create  . . . . . | + + .
limit            change  . . . . . | + + .
limit            delete  . . . . . | + + .
request          view    + + + + + | + + +
request          create  + + + . . | + + .
request          delete  + + + . . | + + .
decision         create  . . . . . | + + .
usage            view    + + + + + | + + +
statement        view    + + . . + | + + +
adjustment       view    + + . . + | + + +
adjustment       create  . . . . . | + + .
price            view    + + + + + | + + +
price            create  . . . . . | + + .
price            delete  . . . . . | + + .
webhook          view    + + . . . | + + +
webhook          create  + + . . . | + + .
webhook          change  + + . . . | + + .
webhook          delete  + + . . . | + + .
notice           view    + + + + + | + + +
objective        view    + + + + + | + + +
objective        create  + + . . . | + + .
objective        change  + + . . . | + + .
objective        delete  + + . . . | + + .
tenant_audit     view    + + . . . | + + +
job              view    + + + + + | + + +
job              create  + + + . . | + + .
job              change  + + + . . | + + .
conversation     view    + + . . . | . . .
conversation     delete  + + . . . | + . .
personal_data    view    + . . . . | + . .
personal_data    delete  . . . . . | + . .
suspension       change  . . . . . | + + .
new_tenant       create  . . . . . | + + .
issuer           view    . . . . . | + + +
issuer           create  . . . . . | + + .
issuer           change  . . . . . | + + .
issuer           delete  . . . . . | + + .
person           view    . . . . . | + + +
person           create  . . . . . | + . .
person           change  . . . . . | + . .
person           delete  . . . . . | + . .
access_token     view    . . . . . | + . .
access_token     delete  . . . . . | + . .
platform_limit   view    . . . . . | + + +
platform_limit   create  . . . . . | + + .
platform_limit   change  . . . . . | + + .
platform_limit   delete  . . . . . | + + .
platform_audit   view    . . . . . | + + +
reconciliation   view    . . . . . | + + +
configuration    view    . . . . . | + + +
configuration    change  . . . . . | + + .
pool             view    . . . . . | + + +
pool             create  . . . . . | + + .
pool             change  . . . . . | + + .
pool             delete  . . . . . | + + .
"""


def grid() -> dict[tuple[str, str], dict[str, bool]]:
    told: dict[tuple[str, str], dict[str, bool]] = {}
    for line in GRID.strip().splitlines():
        on, action, *marks = line.replace("|", " ").split()
        assert len(marks) == len(ROLES), line
        assert (on, action) not in told, line
        told[on, action] = {role: mark == "+" for role, mark in zip(ROLES, marks, strict=True)}
    return told


TOLD = grid()
NOBODY = dict.fromkeys(ROLES, False)


def _row(action: Action, on: Object, *, suspended: bool = False) -> dict[str, bool]:
    """What each role, and an outsider, may."""
    answers = {}
    for role in (*ROLES, "outsider"):
        platform_role = role if role in PLATFORM else ""
        tenant_role = None if role in PLATFORM or role == "outsider" else role
        answers[role] = may(action, on, platform_role=platform_role, tenant_role=tenant_role, suspended=suspended)
    return answers


@pytest.mark.parametrize("on", list(Object), ids=str)
@pytest.mark.parametrize("action", list(Action), ids=str)
def test_every_cell(action: Action, on: Object) -> None:
    assert _row(action, on) == {**TOLD.get((on.value, action.value), NOBODY), "outsider": False}


def test_the_grid_names_only_what_exists() -> None:
    assert {on for on, _ in TOLD} <= {on.value for on in Object}
    assert {(on.value, action.value) for on, action in MAY} == set(TOLD)


@pytest.mark.parametrize("on", list(Object), ids=str)
def test_members_of_a_suspended_tenant_create_nothing_and_else_nothing_changes(on: Object) -> None:
    for action in Action:
        expected = _row(action, on)
        if action is Action.CREATE:
            expected |= {role: False for role in ROLES if role not in PLATFORM}
        assert _row(action, on, suspended=True) == expected


@pytest.mark.parametrize("platform_role", ["", *PLATFORM])
@pytest.mark.parametrize("tenant_role", [None, "owner", "viewer"])
def test_two_roles_allow_what_either_allows(platform_role: str, tenant_role: str | None) -> None:
    for on in Object:
        for action in Action:
            alone = [
                may(action, on, platform_role=platform_role, tenant_role=None),
                may(action, on, platform_role="", tenant_role=tenant_role),
            ]
            assert may(action, on, platform_role=platform_role, tenant_role=tenant_role) is any(alone)


@pytest.mark.parametrize(("platform_role", "tenant_role"), [("owner", None), ("", "superuser"), ("root", "boss")])
def test_a_role_of_the_wrong_kind_allows_nothing(platform_role: str, tenant_role: str | None) -> None:
    assert not any(
        may(action, on, platform_role=platform_role, tenant_role=tenant_role) for on in Object for action in Action
    )


@pytest.mark.parametrize(
    ("platform_role", "tenant_role", "gives"),
    [
        ("", "owner", {"owner", "admin", "developer", "viewer", "billing"}),
        ("", "admin", {"admin", "developer", "viewer", "billing"}),
        ("", "developer", set()),
        ("", "viewer", set()),
        ("", "billing", set()),
        ("", None, set()),
        ("superuser", None, {"owner", "admin", "developer", "viewer", "billing"}),
        ("operator", "viewer", {"owner", "admin", "developer", "viewer", "billing"}),
        ("read_only", None, set()),
        ("read_only", "admin", {"admin", "developer", "viewer", "billing"}),
    ],
)
def test_nobody_gives_a_role_above_their_own(platform_role: str, tenant_role: str | None, gives: set[str]) -> None:
    standing = Standing(platform_role, tenant_role)
    assert {role for role in (*ROLES, "boss") if standing.may_give(role)} == gives


@pytest.mark.parametrize(
    ("roles", "best"),
    [
        ([], None),
        (["nonsense"], None),
        (["viewer", "admin", "developer"], "admin"),
        (["viewer", "billing"], "viewer"),
        (["billing", "viewer"], "viewer"),
        (["read_only", "superuser"], "superuser"),
    ],
)
def test_the_highest_of_several_roles(roles: list[str], best: str | None) -> None:
    assert highest(roles) == best
