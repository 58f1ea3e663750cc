"""Members, invitations and people in the control API: who may, what a wrong one is told, and what it ends."""

from datetime import timedelta
from typing import Any
from uuid import uuid4

import pytest
from allauth.mfa.models import Authenticator
from django.test import Client
from django.utils import timezone
from rest_framework.test import APIClient

from tenants.actor import SYSTEM
from tenants.models import AuditEvent, Invitation, Membership, RoleMapping, Tenant, TenantRole, TenantState, User
from tenants.services import add_member, create_user, set_tenant_state

pytestmark = pytest.mark.django_db


def person(name: str, role: str = "") -> User:
    return create_user(email=f"{name}@example.org", password=None, platform_role=role, actor=SYSTEM)


def client_of(user: User) -> APIClient:
    client = APIClient()
    client.force_authenticate(user)
    return client


@pytest.fixture
def acme(db: None) -> Tenant:
    return Tenant.objects.create(slug="acme", name="Acme")


@pytest.fixture
def ada(acme: Tenant) -> User:
    return member(acme, "ada", TenantRole.OWNER)


@pytest.fixture
def api(ada: User) -> APIClient:
    return client_of(ada)


@pytest.fixture
def root(db: None) -> APIClient:
    return client_of(person("root", "superuser"))


def member(acme: Tenant, name: str, role: TenantRole) -> User:
    user = person(name)
    add_member(acme, user, role=role, actor=SYSTEM)
    return user


def change(api: APIClient, address: str, body: dict[str, Any]) -> Any:
    """PATCH with the ETag that GET tells."""
    return api.patch(address, body, format="json", HTTP_IF_MATCH=api.get(address).headers.get("ETag", '"x"'))


def test_an_invitation_is_told_once_and_listed_without_its_link(api: APIClient, ada: User) -> None:
    made = api.post("/api/tenants/acme/invitations/", {"email": "New@Example.org", "role": "developer"}, format="json")
    assert (made.status_code, made.json()["email"], made.json()["state"]) == (201, "new@example.org", "open")
    secret = made.json()["secret"]
    assert secret.startswith("http://127.0.0.1:8000/invitations/")
    listed = api.get("/api/tenants/acme/invitations/?open=true")
    token = secret.rstrip("/").rsplit("/", 1)[1]
    assert token not in listed.content.decode()
    assert token not in str(list(Invitation.objects.values())) + str(list(AuditEvent.objects.values()))
    assert "new@example.org" not in str(list(AuditEvent.objects.values("before", "after")))
    invitation = Invitation.objects.get()
    assert invitation.invited_by == ada
    assert timedelta(days=6, hours=23) < invitation.expires_at - timezone.now() <= timedelta(days=7)


def test_inviting_again_replaces_the_link(api: APIClient) -> None:
    body = {"email": "new@example.org", "role": "developer"}
    first = api.post("/api/tenants/acme/invitations/", body, format="json").json()["secret"]
    second = api.post("/api/tenants/acme/invitations/", body, format="json").json()["secret"]
    web = Client()
    assert web.get(first.removeprefix("http://127.0.0.1:8000")).status_code == 404
    assert web.get(second.removeprefix("http://127.0.0.1:8000")).status_code == 200


def test_a_repeated_creation_tells_no_second_secret(api: APIClient) -> None:
    body = {"email": "new@example.org", "role": "developer"}
    answers = [
        api.post("/api/tenants/acme/invitations/", body, format="json", HTTP_IDEMPOTENCY_KEY="once") for _ in range(2)
    ]
    assert answers[0].json()["id"] == answers[1].json()["id"]
    assert "secret" not in answers[1].json()
    assert Invitation.objects.count() == 1


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"role": "viewer"}, "email"),
        ({"email": "no address", "role": "viewer"}, "email"),
        ({"email": "ada@example.org", "role": "viewer"}, "email"),
        ({"email": "n@example.org", "role": "boss"}, "role"),
        ({"email": "n@example.org", "role": "viewer", "days": 0}, "days"),
        ({"email": "n@example.org", "role": "viewer", "days": 91}, "days"),
    ],
)
def test_what_is_wrong_with_an_invitation_is_named(api: APIClient, body: dict[str, Any], field: str) -> None:
    refused = api.post("/api/tenants/acme/invitations/", body, format="json")
    assert (refused.status_code, list(refused.json()["errors"])) == (400, [field])
    assert not Invitation.objects.exists()


def test_an_admin_neither_invites_nor_touches_owners(acme: Tenant, ada: User) -> None:
    admin = client_of(member(acme, "adam", TenantRole.ADMIN))
    invite = {"email": "n@example.org", "role": "owner"}
    assert admin.post("/api/tenants/acme/invitations/", invite, format="json").status_code == 403
    vic = member(acme, "vic", TenantRole.VIEWER)
    assert change(admin, f"/api/tenants/acme/members/{vic.pk}/", {"role": "owner"}).status_code == 403
    assert change(admin, f"/api/tenants/acme/members/{ada.pk}/", {"role": "viewer"}).status_code == 403
    assert admin.delete(f"/api/tenants/acme/members/{ada.pk}/").status_code == 403
    assert change(admin, f"/api/tenants/acme/members/{vic.pk}/", {"role": "admin"}).json()["role"] == "admin"


def test_an_admin_does_not_replace_an_owners_invitation(acme: Tenant, api: APIClient) -> None:
    api.post("/api/tenants/acme/invitations/", {"email": "n@example.org", "role": "owner"}, format="json")
    admin = client_of(member(acme, "adam", TenantRole.ADMIN))
    again = {"email": "n@example.org", "role": "viewer"}
    assert admin.post("/api/tenants/acme/invitations/", again, format="json").status_code == 403
    assert admin.delete(f"/api/tenants/acme/invitations/{Invitation.objects.get().pk}/").status_code == 403
    assert Invitation.objects.get().role == "owner"


def test_the_last_owner_is_neither_removed_nor_demoted(
    acme: Tenant, api: APIClient, ada: User, root: APIClient
) -> None:
    for who in (api, root):
        assert change(who, f"/api/tenants/acme/members/{ada.pk}/", {"role": "viewer"}).status_code == 409
        assert who.delete(f"/api/tenants/acme/members/{ada.pk}/").status_code == 409
    gone = member(acme, "gone", TenantRole.OWNER)
    User.objects.filter(pk=gone.pk).update(is_active=False)
    assert api.delete(f"/api/tenants/acme/members/{ada.pk}/").status_code == 409
    member(acme, "olive", TenantRole.OWNER)
    assert api.delete(f"/api/tenants/acme/members/{ada.pk}/").status_code == 204
    assert api.get("/api/tenants/acme/").status_code == 404


def test_two_who_change_one_member_at_once(acme: Tenant, api: APIClient) -> None:
    vic = member(acme, "vic", TenantRole.VIEWER)
    address = f"/api/tenants/acme/members/{vic.pk}/"
    assert api.patch(address, {"role": "developer"}, format="json").status_code == 428
    seen = api.get(address)["ETag"]
    assert api.patch(address, {"role": "developer"}, format="json", HTTP_IF_MATCH=seen).status_code == 200
    assert api.patch(address, {"role": "billing"}, format="json", HTTP_IF_MATCH=seen).status_code == 412
    assert Membership.objects.get(user=vic).role == "developer"


def test_withdrawing_ends_the_link_and_an_accepted_one_is_not_withdrawn(acme: Tenant, api: APIClient) -> None:
    made = api.post("/api/tenants/acme/invitations/", {"email": "n@example.org", "role": "viewer"}, format="json")
    address = f"/api/tenants/acme/invitations/{made.json()['id']}/"
    assert [api.delete(address).status_code for _ in range(2)] == [204, 204]
    assert api.get(address).json()["state"] == "withdrawn"
    path = made.json()["secret"].removeprefix("http://127.0.0.1:8000")
    assert Client().get(path).status_code == 404
    Invitation.objects.update(withdrawn_at=None, accepted_at=timezone.now())
    assert api.delete(address).status_code == 409


def test_members_of_a_suspended_tenant_look_and_invite_nobody(acme: Tenant, api: APIClient) -> None:
    set_tenant_state(acme.pk, TenantState.SUSPENDED, actor=SYSTEM)
    assert api.get("/api/tenants/acme/members/").status_code == 200
    refused = api.post("/api/tenants/acme/invitations/", {"email": "n@example.org", "role": "viewer"}, format="json")
    assert (refused.status_code, refused.json()["detail"]) == (403, "This tenant is suspended.")


def test_people_are_listed_with_their_second_factor(root: APIClient, ada: User) -> None:
    Authenticator.objects.create(user=ada, type="totp", data={})
    found = root.get("/api/people/?q=ada").json()["results"]
    assert [(one["email"], one["second_factor"]) for one in found] == [("ada@example.org", True)]
    assert root.get("/api/people/?query=ada").status_code == 400
    assert root.get(f"/api/people/{uuid4()}/").status_code == 404


def test_resetting_a_second_factor_ends_sessions(root: APIClient, ada: User) -> None:
    Authenticator.objects.create(user=ada, type="totp", data={})
    web = Client()
    web.force_login(ada)
    assert web.get("/t/acme/").status_code == 200
    answer = root.post(f"/api/people/{ada.pk}/reset-second-factor/")
    assert (answer.status_code, answer.json()["second_factor"]) == (200, False)
    assert web.get("/t/acme/").status_code == 302
    assert AuditEvent.objects.get(action="second_factor.reset").before == {"kinds": ["totp"]}


@pytest.mark.parametrize("body", [{"is_active": False}, {"platform_role": "read_only"}])
def test_taking_rights_ends_sessions(root: APIClient, body: dict[str, Any]) -> None:
    olga = person("olga", "operator")
    web = Client()
    web.force_login(olga)
    assert web.get("/console/overview/").status_code == 200
    assert change(root, f"/api/people/{olga.pk}/", body).status_code == 200
    assert web.get("/console/overview/").status_code == 302


def test_a_member_who_is_removed_is_an_outsider_at_once(acme: Tenant, api: APIClient) -> None:
    vic = member(acme, "vic", TenantRole.VIEWER)
    web = Client()
    web.force_login(vic)
    assert web.get("/t/acme/").status_code == 200
    assert api.delete(f"/api/tenants/acme/members/{vic.pk}/").status_code == 204
    assert web.get("/t/acme/").status_code == 404


def test_the_last_superuser_stays_one(root: APIClient) -> None:
    only = User.objects.get(platform_role="superuser")
    for body in ({"platform_role": "operator"}, {"is_active": False}):
        assert change(root, f"/api/people/{only.pk}/", body).status_code == 409
    person("second", "superuser")
    assert change(root, f"/api/people/{only.pk}/", {"platform_role": "operator"}).json()["platform_role"] == "operator"
    only.refresh_from_db()
    assert not only.is_superuser


def test_role_mappings_are_made_listed_and_deleted(root: APIClient, acme: Tenant) -> None:
    body = {"claim": "groups", "value": "dev", "tenant": "acme", "tenant_role": "developer"}
    made = root.post("/api/role-mappings/", body, format="json")
    assert (made.status_code, made.json()["tenant"]) == (201, "acme")
    assert root.post("/api/role-mappings/", body, format="json").status_code == 400
    platform = {"claim": "groups", "value": "ops", "platform_role": "operator"}
    assert root.post("/api/role-mappings/", platform, format="json").status_code == 201
    assert len(root.get("/api/role-mappings/").json()["results"]) == 2
    address = f"/api/role-mappings/{made.json()['id']}/"
    assert [root.delete(address).status_code for _ in range(2)] == [204, 404]


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"claim": "g", "value": "x"}, "tenant_role"),
        ({"claim": "g", "value": "x", "platform_role": "boss"}, "platform_role"),
        ({"claim": "g", "value": "x", "platform_role": "operator", "tenant": "acme"}, "platform_role"),
        ({"claim": "g", "value": "x", "platform_role": "operator", "tenant_role": "owner"}, "tenant_role"),
        ({"claim": "g", "value": "x", "tenant_role": "owner"}, "tenant_role"),
        ({"claim": "g", "value": "x", "tenant": "acme", "tenant_role": "boss"}, "tenant_role"),
        ({"claim": "g", "value": "x", "tenant": "nowhere", "tenant_role": "owner"}, "tenant"),
        ({"claim": " ", "value": "x", "platform_role": "operator"}, "claim"),
    ],
)
def test_what_is_wrong_with_a_mapping_is_named(root: APIClient, acme: Tenant, body: dict[str, Any], field: str) -> None:
    refused = root.post("/api/role-mappings/", body, format="json")
    assert (refused.status_code, list(refused.json()["errors"])) == (400, [field])
    assert not RoleMapping.objects.exists()


def test_someone_new_of_the_platform_comes_in_by_their_link(root: APIClient) -> None:
    body = {"email": "Olga@Example.org", "display_name": "Olga", "platform_role": "operator"}
    made = root.post("/api/people/", body, format="json")
    assert (made.status_code, made.json()["email"], made.json()["platform_role"]) == (
        201,
        "olga@example.org",
        "operator",
    )
    web = Client()
    answer = web.post(made.json()["secret"].removeprefix("http://127.0.0.1:8000"))
    assert answer["Location"] == "/security/password/"
    assert web.get("/console/overview/").status_code == 200


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"email": "nothing"}, "email"),
        ({"email": "root@example.org"}, "email"),
        ({"email": "x@y.z", "platform_role": "boss"}, "platform_role"),
    ],
)
def test_what_is_wrong_with_someone_new_is_named(root: APIClient, body: dict[str, Any], field: str) -> None:
    refused = root.post("/api/people/", body, format="json")
    assert (refused.status_code, list(refused.json()["errors"])) == (400, [field])
