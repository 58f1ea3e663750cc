"""Nobody reaches another tenant's things by its address, or by their ids under an address of one's own (IDOR).

Generated from the OpenAPI schema and from the URL configuration: an address that is added is tried with the others.
"""

import json
from datetime import timedelta
from typing import Any, Final
from uuid import uuid4

import pytest
from django.test import Client
from rest_framework.test import APIClient

from gateway.models import Objective
from tenants.actor import SYSTEM
from tenants.erasure import all_held
from tenants.models import AuditEvent, Tenant, TenantRole, TenantState, User
from tenants.services import add_member, create_tenant, create_user, set_tenant_state
from tests.penetration.addresses import fill, pages
from tests.penetration.operations import WRITING, bodies_of, filled, operations, queries_of
from tests.rows import Rows, one_of_everything

pytestmark = pytest.mark.django_db

SECRET: Final = "zircon-9f2c"
"""In names of the other tenant's; nobody else may ever be told it."""
EVERYBODYS: Final = ("model_id", "version_id", "alias_id", "adapter_id", "node_id", "instance_id")
"""In the addresses of the rows: things of the pool, which are no tenant's."""
UUID_LENGTH: Final = 36
RECORDS: Final = {"tenants.AuditEvent", "tenants.ConfigurationChange", "tenants.Notice", "tenants.Delivery"}
"""What changes of other things leave behind."""


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


def changed_by_hand(rows: Rows) -> AuditEvent:
    """A row of the audit log that every filter of it can find."""
    return AuditEvent.objects.create(
        actor_kind="user",
        actor_id=rows.addresses["user_id"],
        action="webhook.changed",
        subject_type="tenants.Webhook",
        subject_id=rows.addresses["webhook_id"],
        tenant_id=rows.tenant.pk,
        request_id=f"req-{SECRET[:6]}",
    )


def told(client: APIClient, method: str, address: str, data: Any = None, match: str = '"1"') -> tuple[int, str]:
    body: dict[str, Any] = {"data": data} if method == "get" else {"data": data or {}, "format": "json"}
    answer = getattr(client, method)(address, **body, headers={"If-Match": match})
    content = b"".join(answer.streaming_content) if answer.streaming else answer.content
    return int(answer.status_code), content.decode(errors="replace")


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


def test_no_id_of_another_tenants_works_in_a_body_or_a_query(theirs: Rows, mallory: User) -> None:
    client = APIClient()
    client.force_authenticate(mallory)
    event = changed_by_hand(theirs)
    before = snapshot(theirs.tenant)
    objective = Objective.objects.create(name=SECRET, kind="availability", target=0.9, tenant=theirs.tenant)
    ids = {**theirs.addresses, "tenant_id": str(theirs.tenant.pk), "objective_id": str(objective.pk)}
    asked = ids | {
        "actor": str(event.actor_id),
        "action": event.action,
        "subject_type": event.subject_type,
        "subject_id": str(event.subject_id),
        "object_id": str(event.subject_id),
        "request_id": event.request_id,
        "since": (event.at - timedelta(days=1)).isoformat(),
        "limit": "100",
        "name": SECRET,
        "model": "llama",
        "model_pattern": "m-*",
    }
    wrong = []
    for method, path in operations():
        address = filled(path, {"slug": "mallet"})
        made = queries_of(method, path, asked) if method == "get" else bodies_of(method, path, ids)
        # Without each of its members, too: one that is refused must not hide what would come of the others.
        lacking = [{name: made[0][name] for name in made[0] if name != left} for left in made[0]]
        for data in [*made, *lacking]:
            status, text = told(client, method, address, data, match="*")
            if SECRET in text or str(theirs.tenant.pk) in text or status >= 500:
                wrong.append((method, path, status, data))
    assert wrong == []
    objective.delete()
    assert snapshot(theirs.tenant) == before
    theirs_alone = {*ids.values(), str(theirs.tenant.pk)} - {theirs.addresses[name] for name in EVERYBODYS}
    ours = snapshot(Tenant.objects.get(slug="mallet"))
    assert [one for one in theirs_alone if len(one) == UUID_LENGTH and one in ours] == []


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


@pytest.mark.parametrize("role", [TenantRole.VIEWER, TenantRole.BILLING])
def test_no_operation_changes_anything_for_members_who_only_look(theirs: Rows, role: TenantRole) -> None:
    looker = create_user(email="looker@example.org", password=None, actor=SYSTEM)
    add_member(theirs.tenant, looker, role=role, actor=SYSTEM)
    before = snapshot(theirs.tenant)
    assert written_by_api(looker, theirs) == []
    assert snapshot(theirs.tenant) == before


def test_nothing_is_made_in_a_suspended_tenant(theirs: Rows) -> None:
    owner = create_user(email="owner@example.org", password=None, actor=SYSTEM)
    add_member(theirs.tenant, owner, role=TenantRole.OWNER, actor=SYSTEM)
    set_tenant_state(theirs.tenant.pk, TenantState.SUSPENDED, actor=SYSTEM)
    before = json.loads(snapshot(theirs.tenant))
    assert written_by_api(owner, theirs) != []  # they change and take away
    after = json.loads(snapshot(theirs.tenant))
    grown = {name for name in before if len(after[name]) > len(before[name])}
    assert grown <= RECORDS | {"gateway.Silence"}  # to silence an objective is to change it


def test_borrowed_eyes_change_nothing_anywhere(theirs: Rows) -> None:
    owner = create_user(email="owner@example.org", password=None, actor=SYSTEM)
    add_member(theirs.tenant, owner, role=TenantRole.OWNER, actor=SYSTEM)
    client = Client()
    client.force_login(theirs.superuser)
    client.post("/console/tenants/acme/view-as/", {"member": str(owner.pk)})
    before = snapshot(theirs.tenant)
    statuses = {
        (method, path): getattr(client, method)(filled(path, theirs.addresses), headers={"If-Match": "*"}).status_code
        for method, path in operations()
        if method in WRITING
    }
    allowed = ("/view-as/end/", "/logout/", "/language/")
    posted = [route for route in pages() if route not in allowed]
    statuses |= {("post", route): client.post(fill(route, theirs.addresses)).status_code for route in posted}
    assert {one: status for one, status in statuses.items() if status != 403} == {}
    looked = [route for route in pages() if route.startswith("/console/")]
    assert {client.get(fill(route, theirs.addresses)).status_code for route in looked} <= {403, 405}
    assert snapshot(theirs.tenant) == before


def written_by_api(user: User, rows: Rows) -> list[tuple[str, str, int]]:
    """What the control API took of the user, at addresses of things that are there."""
    client = APIClient()
    client.force_authenticate(user)
    found = []
    for method, path in operations():
        if method in WRITING and "{slug}" in path:
            for body in bodies_of(method, path, rows.addresses):
                status, _ = told(client, method, filled(path, rows.addresses), body, match="*")
                found += [(method, path, status)] if status < 400 else []
    return found


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
