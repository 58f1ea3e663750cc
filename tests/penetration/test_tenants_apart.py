"""Nobody reaches another tenant's things by its address, or by their ids under an address of one's own (IDOR).

Generated from the OpenAPI schema and from the URL configuration: an address that is added is tried with the others.
"""

import json
from typing import Any, Final
from uuid import uuid4

import pytest
from django.test import Client
from drf_spectacular.generators import SchemaGenerator
from rest_framework.test import APIClient

from tenants.actor import SYSTEM
from tenants.erasure import all_held
from tenants.models import Tenant, TenantRole, User
from tenants.services import add_member, create_tenant, create_user
from tests.penetration.addresses import fill, pages
from tests.rows import Rows, one_of_everything

pytestmark = pytest.mark.django_db

METHODS: Final = ("get", "post", "put", "patch", "delete")
WRITING: Final = {"post", "put", "patch", "delete"}
SECRET: Final = "zircon-9f2c"
"""In names of the other tenant's; nobody else may ever be told it."""


def operations() -> list[tuple[str, str]]:
    """(method, path) of every operation of the control API, as its schema tells."""
    generator = SchemaGenerator()  # type: ignore[no-untyped-call]  # spectacular has no types
    schema: dict[str, Any] = generator.get_schema(request=None, public=True)  # type: ignore[no-untyped-call]  # the same
    return sorted(
        (method, path)
        for path, item in schema["paths"].items()
        for method in item
        if method in METHODS and path.startswith("/api/")
    )


@pytest.fixture
def theirs() -> Rows:
    """A tenant "acme" with one of everything, all of it named so that a leak is seen."""
    rows = one_of_everything()
    Tenant.objects.filter(pk=rows.tenant.pk).update(name=SECRET)
    rows.tenant.api_keys.update(name=SECRET)
    return rows


@pytest.fixture
def mallory() -> User:
    """Owner of a tenant of her own, and of nothing else."""
    tenant = create_tenant(slug="mallet", name="Mallet", actor=SYSTEM)
    user = create_user(email="mallory@example.org", password=None, actor=SYSTEM)
    add_member(tenant, user, role=TenantRole.OWNER, actor=SYSTEM)
    return user


def told(client: APIClient, method: str, address: str) -> tuple[int, str]:
    body: dict[str, Any] = {} if method == "get" else {"data": {}, "format": "json"}
    answer = getattr(client, method)(address, **body, headers={"If-Match": '"1"'})
    content = b"".join(answer.streaming_content) if answer.streaming else answer.content
    return int(answer.status_code), content.decode(errors="replace")


def filled(path: str, known: dict[str, str]) -> str:
    for name, value in known.items():
        path = path.replace("{" + name + "}", value)
    return path


def test_no_operation_tells_or_does_anything_of_another_tenants(theirs: Rows, mallory: User) -> None:
    client = APIClient()
    client.force_authenticate(mallory)
    before = snapshot(theirs.tenant)
    answers = {
        (method, path): told(client, method, filled(path, theirs.addresses))
        for method, path in operations()
        if "{slug}" in path
    }
    assert len(answers) > 30
    assert {one: status for one, (status, _) in answers.items() if status != 404} == {}
    assert [one for one, (_, text) in answers.items() if SECRET in text] == []
    assert snapshot(theirs.tenant) == before


def test_no_id_of_another_tenants_works_under_ones_own_address(theirs: Rows, mallory: User) -> None:
    client = APIClient()
    client.force_authenticate(mallory)
    before = snapshot(theirs.tenant)
    nothing = {name: str(uuid4()) for name in theirs.addresses} | {"slug": "mallet"}
    tried = [one for one in operations() if "{slug}" in one[1] and one[1].count("{") > 1 and "{month}" not in one[1]]
    assert len(tried) > 15
    wrong = []
    for method, path in tried:
        status, text = told(client, method, filled(path, {**theirs.addresses, "slug": "mallet"}))
        # As of an id that nothing has: whether it is somebody's cannot be guessed.
        if status != told(client, method, filled(path, nothing))[0] or status < 400 or SECRET in text:
            wrong.append((method, path, status))
    assert wrong == []
    assert snapshot(theirs.tenant) == before


def test_no_operation_outside_tenants_names_another_tenant(theirs: Rows, mallory: User) -> None:
    client = APIClient()
    client.force_authenticate(mallory)
    answers = {
        (method, path): told(client, method, filled(path, theirs.addresses))
        for method, path in operations()
        if "{slug}" not in path and not (method in WRITING and "{" not in path)
    }
    assert [one for one, (_, text) in answers.items() if SECRET in text or str(theirs.tenant.pk) in text] == []


def test_no_page_of_another_tenant_exists_for_strangers_to_it(theirs: Rows, mallory: User) -> None:
    client = Client()
    client.force_login(mallory)
    before = snapshot(theirs.tenant)
    portal = [route for route in pages() if route.startswith("/t/")]
    assert len(portal) > 10
    wrong: list[tuple[str, str, int]] = []
    for route in portal:
        for method in ("get", "post"):
            answer = getattr(client, method)(fill(route, theirs.addresses))
            if answer.status_code not in (404, 405):
                wrong.append((method, route, answer.status_code))
    assert wrong == []
    assert snapshot(theirs.tenant) == before


def test_no_id_of_another_tenants_works_under_ones_own_pages(theirs: Rows, mallory: User) -> None:
    client = Client()
    client.force_login(mallory)
    before = snapshot(theirs.tenant)
    wrong: list[tuple[str, str, int]] = []
    for route in (route for route in pages() if route.startswith("/t/") and route.count("<") > 1):
        for method in ("get", "post"):
            answer = getattr(client, method)(fill(route, {**theirs.addresses, "slug": "mallet"}))
            text = b"" if answer.streaming else answer.content
            if answer.status_code not in (404, 405, 403) or SECRET.encode() in text:
                wrong.append((method, route, answer.status_code))
    assert [one for one in wrong if "<str:month>" not in one[1]] == []
    assert snapshot(theirs.tenant) == before


def test_members_of_tenants_see_no_page_of_the_console(theirs: Rows, mallory: User) -> None:
    client = Client()
    client.force_login(mallory)
    console = [route for route in pages() if route.startswith("/console/")]
    assert len(console) > 20
    wrong: list[tuple[str, str, int]] = []
    for route in console:
        for method in ("get", "post"):
            answer = getattr(client, method)(fill(route, theirs.addresses))
            if answer.status_code not in (403, 405):
                wrong.append((method, route, answer.status_code))
    assert wrong == []


def test_platform_readers_change_nothing_on_any_page(theirs: Rows) -> None:
    reader = create_user(email="reader@example.org", password=None, platform_role="read_only", actor=SYSTEM)
    client = Client()
    client.force_login(reader)
    before = snapshot(theirs.tenant)
    wrong: list[tuple[str, int]] = []
    for route in (route for route in pages() if route.startswith(("/console/", "/t/"))):
        answer = client.post(fill(route, theirs.addresses))
        if answer.status_code not in (403, 404, 405) and not is_only_a_look(client, route, theirs):
            wrong.append((route, answer.status_code))
    assert wrong == []
    assert snapshot(theirs.tenant) == before


def is_only_a_look(client: Client, route: str, rows: Rows) -> bool:
    """A page that answers a POST as it does a GET: its view looks at no method, and changes nothing."""
    address = fill(route, rows.addresses)
    return client.post(address).status_code == client.get(address).status_code


def snapshot(tenant: Tenant) -> str:
    """What the tenant has, as far as anybody could have changed it."""
    found = {
        held.model._meta.label: sorted(
            json.dumps({name: str(value) for name, value in row.items() if name not in MOVING}, sort_keys=True)
            for row in held.of_tenant(tenant.pk).values()
        )
        for held in all_held()
        if held.tenant
    }
    return json.dumps(found, sort_keys=True)


MOVING: Final = frozenset({"last_used_at", "last_seen_at", "last_login"})
