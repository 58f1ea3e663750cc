"""The control API of tenants and keys: outsiders see nothing, roles bound what members do, secrets are told once."""

import base64
from io import StringIO
from typing import Any
from uuid import uuid4

import pytest
from django.core.management import CommandError, call_command
from django.utils import timezone
from rest_framework.test import APIClient

from tenants.actor import SYSTEM
from tenants.models import AccessToken, ApiKey, AuditEvent, PlatformRole, Tenant, TenantRole, TenantState, User
from tenants.services import (
    add_member,
    create_access_token,
    create_api_key,
    create_tenant,
    create_user,
    delete_access_token,
    set_tenant_state,
)

pytestmark = pytest.mark.django_db


def _user(name: str, role: PlatformRole = PlatformRole.NONE) -> User:
    return create_user(email=f"{name}@example.org", password=None, platform_role=role, actor=SYSTEM)


def _client(user: User | None) -> APIClient:
    client = APIClient()
    if user is not None:
        client.force_authenticate(user)
    return client


@pytest.fixture
def acme() -> Tenant:
    return create_tenant(slug="acme", name="Acme", actor=SYSTEM)


@pytest.fixture
def operator() -> APIClient:
    return _client(_user("operator", PlatformRole.OPERATOR))


def _member(acme: Tenant, role: TenantRole) -> tuple[User, APIClient]:
    user = _user(role.value)
    add_member(acme, user, role=role, actor=SYSTEM)
    return user, _client(user)


def test_an_operator_creates_a_tenant(operator: APIClient) -> None:
    created = operator.post("/api/tenants/", {"slug": "new", "name": "New", "time_zone": "Asia/Tokyo"}, format="json")
    assert (created.status_code, created.json()["slug"], created.json()["state"]) == (201, "new", "active")
    assert AuditEvent.objects.filter(action="tenant.created", actor_kind="user").count() == 1
    assert operator.get("/api/tenants/new/").json()["time_zone"] == "Asia/Tokyo"


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"name": "No slug"}, "slug"),
        ({"slug": "no spaces", "name": "x"}, "slug"),
        ({"slug": "acme", "name": "taken"}, "slug"),
        ({"slug": "zone", "name": "x", "time_zone": "Mars/Olympus"}, "time_zone"),
        ({"slug": "tier", "name": "x", "sla_tier": "tin"}, "sla_tier"),
    ],
)
def test_what_is_wrong_with_a_tenant_is_named(
    operator: APIClient, acme: Tenant, body: dict[str, str], field: str
) -> None:
    refused = operator.post("/api/tenants/", body, format="json")
    assert refused.status_code == 400
    assert refused["content-type"] == "application/problem+json"
    assert refused.json()["status"] == 400
    assert list(refused.json()["errors"]) == [field]


@pytest.mark.parametrize("role", [*TenantRole, None])
def test_only_operators_create_and_suspend_tenants(acme: Tenant, role: TenantRole | None) -> None:
    client = _member(acme, role)[1] if role else _client(_user("reader", PlatformRole.READ_ONLY))
    assert client.post("/api/tenants/", {"slug": "mine", "name": "x"}, format="json").status_code == 403
    assert client.post("/api/tenants/acme/suspend/").status_code == 403
    assert client.get("/api/tenants/acme/").status_code == 200


def test_suspending_and_resuming(operator: APIClient, acme: Tenant) -> None:
    assert operator.post("/api/tenants/acme/suspend/").json()["state"] == "suspended"
    assert operator.post("/api/tenants/acme/resume/").json()["state"] == "active"


@pytest.mark.shows("R146")
def test_a_tenant_is_told_what_its_tier_means(operator: APIClient, acme: Tenant) -> None:
    member = _member(acme, TenantRole.VIEWER)[1]
    gold = {"traffic_class": "p0", "ttft_p99_seconds": 1.0, "latency_p99_seconds": 15.0, "availability": 0.999}
    assert member.get("/api/tenants/acme/").json()["objectives"]["traffic_class"] == "p2"
    before = member.get("/api/tenants/acme/")["etag"]
    changed = operator.patch("/api/tenants/acme/", {"sla_tier": "gold"}, format="json", HTTP_IF_MATCH="*")
    assert changed.json()["objectives"] == gold
    answer = member.get("/api/tenants/acme/")
    assert (answer.json()["objectives"], answer["etag"] != before) == (gold, True)
    assert operator.get("/api/tenants/?sla_tier=gold").json()["results"][0]["objectives"] == gold


def _told(answer: Any) -> dict[str, Any]:
    return {name: value for name, value in answer.json().items() if name != "request_id"}


def test_outsiders_cannot_tell_a_tenant_from_none(acme: Tenant) -> None:
    key = create_api_key(acme, name="k", actor=SYSTEM).key
    outsider = _client(_user("outsider"))
    assert outsider.get("/api/tenants/").json()["results"] == []
    missing = outsider.get("/api/tenants/nobody/")
    for address in ("", "keys/", f"keys/{key.pk}/"):
        answer = outsider.get(f"/api/tenants/acme/{address}")
        assert (answer.status_code, _told(answer)) == (404, _told(missing))
    assert outsider.post("/api/tenants/acme/keys/", {"name": "x"}, format="json").status_code == 404
    assert outsider.post("/api/tenants/acme/suspend/").status_code == 404
    assert outsider.delete(f"/api/tenants/acme/keys/{key.pk}/").status_code == 404


def test_nobody_is_let_in_without_a_session_or_token(acme: Tenant) -> None:
    for address in ("/api/tenants/", "/api/tenants/acme/", "/api/tenants/acme/keys/"):
        refused = _client(None).get(address)
        assert (refused.status_code, refused["www-authenticate"]) == (401, "Token")
        assert _client(None).get(address, HTTP_AUTHORIZATION="Token unknown").status_code == 401


@pytest.mark.parametrize("position", ["abc", "a\x00b", "9" * 400])
def test_a_cursor_that_no_page_handed_out_is_not_found(operator: APIClient, position: str) -> None:
    cursor = base64.b64encode(f"p={position}".encode()).decode()
    refused = operator.get("/api/tenants/", {"cursor": cursor})
    assert (refused.status_code, refused["content-type"]) == (404, "application/problem+json")


def test_a_token_lets_in(acme: Tenant) -> None:
    user, _ = _member(acme, TenantRole.OWNER)
    new = create_access_token(user, name="ci", actor=SYSTEM)
    client = APIClient()
    client.credentials(HTTP_AUTHORIZATION=f"Token {new.secret}")
    assert [row["slug"] for row in client.get("/api/tenants/").json()["results"]] == ["acme"]
    assert new.secret not in str(AccessToken.objects.values().get())


@pytest.mark.parametrize("end", ["expired", "deleted", "person"])
def test_a_token_that_ended_lets_nobody_in(acme: Tenant, end: str) -> None:
    user, _ = _member(acme, TenantRole.OWNER)
    new = create_access_token(user, name="ci", actor=SYSTEM)
    match end:
        case "expired":
            AccessToken.objects.update(expires_at=timezone.now())
        case "deleted":
            delete_access_token(new.token.pk, actor=SYSTEM)
        case _:
            User.objects.filter(pk=user.pk).update(is_active=False)
    refused = APIClient().get("/api/tenants/", HTTP_AUTHORIZATION=f"Token {new.secret}")
    assert (refused.status_code, refused.json()["detail"]) == (401, "Invalid token.")


def test_the_command_prints_a_token_and_nothing_else(acme: Tenant) -> None:
    user, _ = _member(acme, TenantRole.OWNER)
    out = StringIO()
    call_command("access_token", user.email.upper(), stdout=out)
    secret = out.getvalue().strip()
    answer = APIClient().get("/api/tenants/acme/", HTTP_AUTHORIZATION=f"Token {secret}")
    assert answer.status_code == 200
    assert AuditEvent.objects.get(action="access_token.created").after == {"user": str(user.pk), "name": "***"}
    for wrong in (["nobody@example.org"], [user.email, "--days", "0"], [user.email, "--days", str(10**12)]):
        with pytest.raises(CommandError):
            call_command("access_token", *wrong, stdout=StringIO())


@pytest.mark.parametrize(
    ("role", "creates"),
    [
        (TenantRole.OWNER, 201),
        (TenantRole.ADMIN, 201),
        (TenantRole.DEVELOPER, 201),
        (TenantRole.VIEWER, 403),
        (TenantRole.BILLING, 403),
    ],
)
def test_roles_that_create_keys(acme: Tenant, role: TenantRole, creates: int) -> None:
    _, client = _member(acme, role)
    assert client.post("/api/tenants/acme/keys/", {"name": "ci"}, format="json").status_code == creates
    assert client.get("/api/tenants/acme/keys/").status_code == 200


def test_members_of_a_suspended_tenant_create_no_keys_but_revoke_them(acme: Tenant) -> None:
    _, client = _member(acme, TenantRole.OWNER)
    key = create_api_key(acme, name="k", actor=SYSTEM).key
    set_tenant_state(acme.pk, TenantState.SUSPENDED, actor=SYSTEM)
    refused = client.post("/api/tenants/acme/keys/", {"name": "ci"}, format="json")
    assert (refused.status_code, refused.json()["detail"]) == (403, "This tenant is suspended.")
    rotated = client.post(f"/api/tenants/acme/keys/{key.pk}/rotate/", {"overlap_seconds": 0}, format="json")
    assert (rotated.status_code, rotated.json()["detail"]) == (403, "This tenant is suspended.")
    assert client.delete(f"/api/tenants/acme/keys/{key.pk}/").status_code == 204


def test_a_secret_is_told_once(acme: Tenant) -> None:
    _, client = _member(acme, TenantRole.DEVELOPER)
    created = client.post("/api/tenants/acme/keys/", {"name": "ci", "rpm_limit": 60}, format="json")
    secret = created.json()["secret"]
    assert created["cache-control"] == "no-store"
    listed = client.get("/api/tenants/acme/keys/")
    assert secret not in listed.content.decode()
    assert listed.json()["results"][0]["masked"].endswith(secret[-4:])
    assert secret not in client.get(f"/api/tenants/acme/keys/{created.json()['id']}/").content.decode()
    audit = AuditEvent.objects.get(action="api_key.created")
    assert secret not in str(audit.after)


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({}, "name"),
        ({"name": "x", "scopes": ["fly"]}, "scopes"),
        ({"name": "x", "rpm_limit": 0}, "rpm_limit"),
        ({"name": "x", "expires_at": "2020-01-01T00:00:00Z"}, "expires_at"),
        ({"name": "x", "expires_at": "9999-12-31T23:59:59Z"}, "expires_at"),
        ({"name": "x", "allowed_models": [""]}, "allowed_models"),
    ],
)
def test_what_is_wrong_with_a_key_is_named(acme: Tenant, body: dict[str, object], field: str) -> None:
    _, client = _member(acme, TenantRole.OWNER)
    refused = client.post("/api/tenants/acme/keys/", body, format="json")
    assert (refused.status_code, list(refused.json()["errors"])) == (400, [field])


def test_a_developer_revokes_only_their_own_keys(acme: Tenant) -> None:
    owner, _ = _member(acme, TenantRole.OWNER)
    developer, client = _member(acme, TenantRole.DEVELOPER)
    theirs = create_api_key(acme, name="owner's", actor=SYSTEM, created_by=owner.pk).key
    own = create_api_key(acme, name="own", actor=SYSTEM, created_by=developer.pk).key
    assert client.delete(f"/api/tenants/acme/keys/{theirs.pk}/").status_code == 403
    assert client.delete(f"/api/tenants/acme/keys/{own.pk}/").status_code == 204
    assert client.delete(f"/api/tenants/acme/keys/{own.pk}/").status_code == 204
    assert list(ApiKey.objects.filter(revoked_at__isnull=True)) == [theirs]
    assert client.delete(f"/api/tenants/acme/keys/{uuid4()}/").status_code == 404


def test_a_key_of_another_tenant_is_not_there(acme: Tenant) -> None:
    other = create_tenant(slug="other", name="Other", actor=SYSTEM)
    key = create_api_key(other, name="k", actor=SYSTEM).key
    _, client = _member(acme, TenantRole.OWNER)
    assert client.get(f"/api/tenants/acme/keys/{key.pk}/").status_code == 404
    assert client.delete(f"/api/tenants/acme/keys/{key.pk}/").status_code == 404
    key.refresh_from_db()
    assert key.revoked_at is None


def test_revoked_keys_are_listed_when_asked_for(acme: Tenant) -> None:
    _, client = _member(acme, TenantRole.ADMIN)
    key = create_api_key(acme, name="k", actor=SYSTEM).key
    client.delete(f"/api/tenants/acme/keys/{key.pk}/")
    assert client.get("/api/tenants/acme/keys/").json()["results"] == []
    assert len(client.get("/api/tenants/acme/keys/?revoked=true").json()["results"]) == 1


@pytest.mark.parametrize("role", [*TenantRole, None])
def test_owners_and_admins_say_how_long_responses_are_kept(acme: Tenant, role: TenantRole | None) -> None:
    client = _member(acme, role)[1] if role else _client(_user("stranger"))
    answer = client.patch("/api/tenants/acme/", {"response_retention_days": 3}, format="json", HTTP_IF_MATCH="*")
    acme.refresh_from_db()
    if role in (TenantRole.OWNER, TenantRole.ADMIN):
        assert (answer.status_code, answer.json()["response_retention_days"]) == (200, 3)
        assert acme.response_retention_days == 3
    else:
        assert answer.status_code == (403 if role else 404)
        assert acme.response_retention_days == 30


@pytest.mark.parametrize("days", [-1, 4000, "x", None])
def test_a_wrong_retention_is_named(operator: APIClient, acme: Tenant, days: object) -> None:
    refused = operator.patch("/api/tenants/acme/", {"response_retention_days": days}, format="json", HTTP_IF_MATCH="*")
    assert refused.status_code == 400
    assert list(refused.json()["errors"]) == ["response_retention_days"]
