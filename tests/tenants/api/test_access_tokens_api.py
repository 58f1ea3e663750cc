"""Access tokens in the control API: one's own, told once; superusers see and revoke anybody's."""

from datetime import timedelta
from io import StringIO
from typing import Any
from uuid import uuid4

import pytest
from django.core.exceptions import PermissionDenied
from django.core.management import call_command
from django.utils import timezone
from rest_framework.test import APIClient

from tenants import services
from tenants.actor import SYSTEM
from tenants.models import AccessToken, AuditEvent, PlatformRole, User
from tests.factories import make_user

pytestmark = pytest.mark.django_db
TOKENS = "/api/access-tokens/"


def client_of(user: User) -> APIClient:
    client = APIClient()
    client.force_authenticate(user)
    return client


def script(secret: str) -> APIClient:
    """Whoever holds the token."""
    client = APIClient()
    client.credentials(HTTP_AUTHORIZATION=f"Token {secret}")
    return client


def a_token(user: User, **more: Any) -> services.NewAccessToken:
    return services.create_access_token(user, name="laptop", actor=SYSTEM, **more)


@pytest.fixture
def ada() -> User:
    return make_user()


@pytest.fixture
def root() -> APIClient:
    return client_of(make_user(platform_role=PlatformRole.SUPERUSER))


def test_a_token_is_told_once_works_and_is_revoked_by_its_owner(ada: User) -> None:
    api = client_of(ada)
    made = api.post(TOKENS, {"name": " laptop "}, format="json")
    assert (made.status_code, made["Cache-Control"], made.json()["name"]) == (201, "no-store", "laptop")
    secret, address = made.json()["secret"], f"{TOKENS}{made.json()['id']}/"
    listed, one = script(secret).get(TOKENS), api.get(address)
    assert [row["id"] for row in listed.json()["results"]] == [one.json()["id"]] == [made.json()["id"]]
    assert listed.json()["results"][0]["last_four"] == secret[-4:]
    assert secret not in listed.content.decode() + one.content.decode()
    assert [api.delete(address).status_code for _ in range(2)] == [204, 404]
    assert script(secret).get(TOKENS).status_code == 401
    told = AuditEvent.objects.filter(subject_id=made.json()["id"]).values_list("action", "actor_id")
    assert set(told) == {("access_token.created", ada.pk), ("access_token.deleted", ada.pk)}


def test_a_repeated_request_makes_one_token_and_tells_its_secret_once(ada: User) -> None:
    first, again = (
        client_of(ada).post(TOKENS, {"name": "ci"}, format="json", HTTP_IDEMPOTENCY_KEY="once") for _ in range(2)
    )
    assert (first.status_code, again.status_code, again["Idempotent-Replayed"]) == (201, 201, "true")
    assert again.json() == {name: value for name, value in first.json().items() if name != "secret"}
    assert AccessToken.objects.count() == 1


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({}, "name"),
        ({"name": "x" * 81}, "name"),
        ({"name": "x", "expires_at": "2020-01-01T00:00:00Z"}, "expires_at"),
    ],
)
def test_what_is_wrong_with_a_new_token_is_named(ada: User, body: dict[str, Any], field: str) -> None:
    refused = client_of(ada).post(TOKENS, body, format="json")
    assert (refused.status_code, list(refused.json()["errors"])) == (400, [field])
    assert not AccessToken.objects.exists()


def test_a_token_makes_none_that_outlives_it(ada: User) -> None:
    end = timezone.now() + timedelta(days=1)
    api = script(a_token(ada, expires_at=end).secret)
    later = (end + timedelta(seconds=1)).isoformat()
    refused = api.post(TOKENS, {"name": "longer", "expires_at": later}, format="json")
    assert (refused.status_code, list(refused.json()["errors"])) == (400, ["expires_at"])
    assert api.post(TOKENS, {"name": "as long"}, format="json").status_code == 201
    assert AccessToken.objects.get(name="as long").expires_at == end


def test_nobody_but_superusers_finds_anybody_elses(ada: User, root: APIClient) -> None:
    token = a_token(ada).token
    theirs, address = f"/api/people/{ada.pk}/access-tokens/", f"{TOKENS}{token.pk}/"
    for role in ("", PlatformRole.OPERATOR, PlatformRole.READ_ONLY):
        other = client_of(make_user(platform_role=role))
        assert other.get(TOKENS).json()["results"] == []
        assert [other.get(address).status_code, other.delete(address).status_code] == [404, 404]
        assert other.get(theirs).status_code == 403
    assert root.get(TOKENS).json()["results"] == []
    for who in (client_of(ada), root):
        assert [row["id"] for row in who.get(theirs).json()["results"]] == [str(token.pk)]
    assert root.get(f"/api/people/{uuid4()}/access-tokens/").status_code == 404
    assert root.get(address).json()["user_id"] == str(ada.pk)
    assert root.delete(address).status_code == 204
    assert not AccessToken.objects.exists()


def test_expired_tokens_are_listed_as_such_and_work_no_longer(ada: User) -> None:
    expired = a_token(ada, expires_at=timezone.now() + timedelta(days=1))
    AccessToken.objects.update(expires_at=timezone.now())
    assert client_of(ada).get(TOKENS).json()["results"][0]["expired"] is True
    assert script(expired.secret).get(TOKENS).status_code == 401


def test_a_reset_of_the_second_factor_revokes_tokens(ada: User, root: APIClient) -> None:
    secret, other = a_token(ada).secret, a_token(make_user()).secret
    assert root.post(f"/api/people/{ada.pk}/reset-second-factor/").status_code == 200
    assert [script(one).get(TOKENS).status_code for one in (secret, other)] == [401, 200]
    assert AuditEvent.objects.get(action="access_token.deleted").before["user"] == str(ada.pk)


@pytest.mark.parametrize("what", ["reset", "revoked"])
def test_a_request_that_was_let_in_before_a_reset_makes_no_token_after_it(ada: User, what: str) -> None:
    """Else whoever goes on asking while all is revoked keeps one."""
    held = a_token(ada).token
    before = User.objects.get(pk=ada.pk)
    if what == "reset":
        services.reset_second_factor(ada.pk, actor=SYSTEM)
    else:
        services.delete_access_token(held.pk, actor=SYSTEM)
    with pytest.raises(PermissionDenied):
        services.create_access_token(before, name="x", made_with=held if what == "revoked" else None, actor=SYSTEM)
    assert not AccessToken.objects.exists()


def test_recovery_revokes_tokens_and_says_so(ada: User) -> None:
    secret = a_token(ada).secret
    a_token(ada)
    said = StringIO()
    call_command("recover", ada.email, stdout=StringIO(), stderr=said)
    assert "2 access tokens are revoked" in said.getvalue()
    assert script(secret).get(TOKENS).status_code == 401


def test_ones_own_change_of_password_revokes_none(ada: User) -> None:
    """Scripts have a credential of their own, and its owner can see and revoke it."""
    secret = a_token(ada).secret
    services.change_password(ada.pk, "a-new-long-phrase", actor=SYSTEM)
    assert script(secret).get(TOKENS).status_code == 200
