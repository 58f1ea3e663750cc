"""Every address of the control API, found in the URL configuration, asks who one is before anything else.

An address that is added is tested with the others; one that everybody who is signed in may use is named in OPEN.
"""

from collections.abc import Iterator
from typing import Any, Final
from uuid import uuid4

import pytest
from django.urls import URLPattern, URLResolver, get_resolver
from rest_framework.test import APIClient

from tenants.actor import SYSTEM
from tenants.models import Tenant, TenantRole, User
from tenants.services import add_member, create_tenant, create_user

pytestmark = pytest.mark.django_db

OPEN: Final = {
    ("GET", "/api/tenants/"),  # one's own
    ("GET", "/api/prices/"),  # what things cost is no secret
    ("GET", "/api/prices/<price_id>/"),
    ("GET", "/api/notices/"),  # one's own
    ("GET", "/api/access-tokens/"),  # one's own
    ("POST", "/api/access-tokens/"),  # for oneself
}
ASKS: Final = ("POST", "/api/limits/replay/")
"""Changes nothing: a question too long for an address. Whose it is stands in its body."""
QUESTION: Final = {"metric": "requests", "window": "minute", "amount": 1}
DOCUMENTS: Final = ("/api/schema", "/api/docs")
UNSAFE: Final = ("POST", "PUT", "PATCH", "DELETE")


def addresses() -> Iterator[tuple[str, str, dict[str, str]]]:
    """(method, address as written, its parameters' converters) of every view under /api/."""
    for written, pattern in _patterns(get_resolver().url_patterns, ""):
        view = getattr(pattern.callback, "view_class", None) or getattr(pattern.callback, "cls", None)
        if not written.startswith("/api/") or written.startswith(DOCUMENTS) or view is None:
            continue
        for method in ("GET", *UNSAFE):
            if hasattr(view, method.lower()):
                yield method, written, {name: type(c).__name__ for name, c in pattern.pattern.converters.items()}


def _patterns(found: list[Any], prefix: str) -> Iterator[tuple[str, URLPattern]]:
    for one in found:
        route = prefix + str(one.pattern)
        if isinstance(one, URLResolver):
            yield from _patterns(one.url_patterns, route)
        else:
            plain = "/" + route
            for name, converter in one.pattern.converters.items():
                kind = type(converter).__name__.removesuffix("Converter").lower().replace("string", "str")
                plain = plain.replace(f"<{kind}:{name}>", f"<{name}>")
            yield plain, one


ALL: Final = sorted((method, written) for method, written, _ in addresses())


def call(user: User | None, method: str, written: str) -> int:
    """The status of an empty request, with an existing tenant and ids that nothing has."""
    address = written.replace("<slug>", "acme").replace("<month>", "2026-01").replace("<name>", "vllm")
    address = address.replace("<code>", "1999999999")  # no rule answers it
    while "<" in address:
        start, end = address.index("<"), address.index(">")
        address = address[:start] + str(uuid4()) + address[end + 1 :]
    client = APIClient(raise_request_exception=True)
    if user is not None:
        client.force_authenticate(user)
    sent = QUESTION if (method, written) == ASKS else {}
    body: dict[str, Any] = {} if method == "GET" else {"data": sent, "format": "json"}
    return int(getattr(client, method.lower())(address, **body).status_code)


@pytest.fixture
def acme(db: None) -> Tenant:
    return create_tenant(slug="acme", name="Acme", actor=SYSTEM)


def person(name: str, platform_role: str = "") -> User:
    return create_user(email=f"{name}@example.org", password=None, platform_role=platform_role, actor=SYSTEM)


def test_the_addresses_are_found() -> None:
    assert len(ALL) > 40
    assert ("DELETE", "/api/tenants/<slug>/members/<user_id>/") in ALL
    assert ("POST", "/api/versions/<version_id>/retire/") in ALL
    assert {one for one in OPEN if one not in ALL} == set()


def test_nobody_unknown_is_answered(acme: Tenant) -> None:
    assert {(one, call(None, *one)) for one in ALL} == {(one, 401) for one in ALL}


def test_outsiders_find_no_tenant_and_no_platform(acme: Tenant) -> None:
    outsider = person("outsider")
    told = {one: call(outsider, *one) for one in ALL if one not in OPEN}
    in_tenant = {one: status for one, status in told.items() if "<slug>" in one[1]}
    assert {one: status for one, status in in_tenant.items() if status != 404} == {}
    assert {one: status for one, status in told.items() if one not in in_tenant and status not in (403, 404)} == {}


@pytest.mark.parametrize("role", [TenantRole.VIEWER, TenantRole.BILLING])
def test_members_who_only_look_change_nothing(acme: Tenant, role: TenantRole) -> None:
    member = person("member")
    add_member(acme, member, role=role, actor=SYSTEM)
    told = {one: call(member, *one) for one in ALL if one[0] in UNSAFE and one not in OPEN}
    assert {one: status for one, status in told.items() if status not in (403, 404)} == {}
    collections = {one for one in told if not one[1].count("<") > ("<slug>" in one[1])}
    assert {one: told[one] for one in collections if told[one] != 403} == {}


def test_a_tenants_owner_has_no_say_over_the_platform(acme: Tenant) -> None:
    owner = person("owner")
    add_member(acme, owner, role=TenantRole.OWNER, actor=SYSTEM)
    told = {one: call(owner, *one) for one in ALL if "<slug>" not in one[1] and one not in OPEN}
    assert {one: status for one, status in told.items() if status not in (403, 404)} == {}


def test_read_only_platform_roles_see_all_tenants_and_change_nothing(acme: Tenant) -> None:
    reader = person("reader", "read_only")
    told = {one: call(reader, *one) for one in ALL if one[0] in UNSAFE and one != ASKS and one not in OPEN}
    assert {one: status for one, status in told.items() if status not in (403, 404)} == {}
    assert call(reader, "GET", "/api/tenants/<slug>/") == 200


def test_a_question_about_a_tenant_is_asked_by_its_members_alone(acme: Tenant) -> None:
    outsider = APIClient()
    outsider.force_authenticate(person("outsider"))
    assert outsider.post(ASKS[1], {**QUESTION, "tenant": "acme"}, format="json").status_code == 404
