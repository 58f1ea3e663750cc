"""Keys, grants and issuers by the control API: roles bound who may, edits meet, secrets are told once."""

import json
from datetime import timedelta
from typing import Any
from uuid import uuid4

import pytest
from django.utils import timezone
from rest_framework.test import APIClient

from tenants.actor import SYSTEM
from tenants.models import ApiKey, Grant, PlatformRole, Tenant, TenantRole, TokenIssuer, UsageMinute, User
from tenants.principal import subject_uuid
from tenants.services import add_member, create_api_key, create_user, revoke_api_key
from tests.doubles.issuer import TokenMaker
from tests.factories import make_key, make_tenant

pytestmark = pytest.mark.django_db


@pytest.fixture
def acme() -> Tenant:
    return make_tenant("acme")


def person(platform_role: str = PlatformRole.NONE) -> User:
    """Without a password, whose hash takes its time."""
    return create_user(email=f"{uuid4()}@example.test", password=None, actor=SYSTEM, platform_role=platform_role)


def client(user: Any) -> APIClient:
    made = APIClient()
    made.force_authenticate(user)
    return made


@pytest.fixture
def operator() -> APIClient:
    return client(person(PlatformRole.OPERATOR))


def member(tenant: Tenant, role: TenantRole) -> APIClient:
    user = person()
    add_member(tenant, user, role=role, actor=SYSTEM)
    return client(user)


def keys(key: ApiKey, *rest: str) -> str:
    return "/".join(["/api/tenants/acme/keys", str(key.pk), *rest, ""])


def test_a_key_is_changed_by_whoever_saw_its_newest_state(acme: Tenant, operator: APIClient) -> None:
    key = make_key(acme).key
    etag = operator.get(keys(key))["etag"]
    assert operator.patch(keys(key), {"name": "x"}, format="json").status_code == 428
    changed = operator.patch(keys(key), {"name": "first"}, format="json", headers={"if-match": etag})
    assert (changed.status_code, changed.json()["name"]) == (200, "first")
    late = operator.patch(keys(key), {"name": "second"}, format="json", headers={"if-match": etag})
    assert late.status_code == 412
    ApiKey.objects.filter(pk=key.pk).update(last_used_at=timezone.now())  # use is nobody's edit
    assert operator.get(keys(key))["etag"] == changed["etag"]
    wrong = operator.patch(keys(key), {"scopes": ["fly"]}, format="json", headers={"if-match": changed["etag"]})
    assert (wrong.status_code, list(wrong.json()["errors"])) == (400, ["scopes"])
    revoke_api_key(key.pk, actor=SYSTEM)
    gone = operator.patch(keys(key), {"name": "x"}, format="json", headers={"if-match": "*"})
    assert gone.status_code == 409


def test_a_rotation_tells_the_new_secret_once(acme: Tenant, operator: APIClient) -> None:
    key = make_key(acme).key
    body = {"overlap_seconds": 3600}
    said = {"idempotency-key": "rotate-1"}
    made = operator.post(keys(key, "rotate"), body, format="json", headers=said)
    assert made.status_code == 201
    assert made.json()["secret"].startswith("sk-gh-")
    again = operator.post(keys(key, "rotate"), body, format="json", headers=said)
    assert (again.status_code, again.json().get("secret")) == (201, None)
    assert again.json()["id"] == made.json()["id"]
    old = operator.get(keys(key)).json()
    assert (old["replaced_by"], old["revoked_at"]) == (made.json()["id"], None)
    assert operator.post(keys(key, "rotate"), body, format="json").status_code == 409
    for wrong in ({}, {"overlap_seconds": -1}, {"overlap_seconds": 10**9}, {"overlap_seconds": "soon"}):
        refused = operator.post(keys(make_key(acme).key, "rotate"), wrong, format="json")
        assert (refused.status_code, list(refused.json()["errors"])) == (400, ["overlap_seconds"])


def test_a_compromised_key_is_listed_with_what_it_was_used_for(acme: Tenant, operator: APIClient) -> None:
    key = make_key(acme).key
    ApiKey.objects.filter(pk=key.pk).update(created_at=timezone.now() - timedelta(days=3))
    now = timezone.now().replace(second=0, microsecond=0)
    for age, requests in ((timedelta(days=2), 100), (timedelta(minutes=5), 3)):
        UsageMinute.objects.create(
            tenant_id=acme.pk, key_id=key.pk, model="qwen", minute=now - age, requests=requests, output_tokens=7
        )
    good = (now - timedelta(minutes=10)).isoformat()
    marked = operator.post(keys(key, "compromised"), {"known_good_at": good}, format="json")
    assert marked.status_code == 200
    assert marked.json()["compromised_at"] == marked.json()["revoked_at"] is not None
    (listed,) = operator.get("/api/compromised-keys/").json()["results"]
    assert (listed["id"], listed["tenant"]) == (str(key.pk), "acme")
    assert (listed["exposure"]["requests"], listed["exposure"]["models"]) == (3, ["qwen"])
    assert operator.get(keys(key, "exposure")).json()["requests"] == 3
    (same,) = operator.get("/api/tenants/acme/keys/?compromised=true").json()["results"]
    assert same["id"] == str(key.pk)
    assert operator.get("/api/tenants/acme/keys/").json()["results"] == []
    assert "secret" not in listed


@pytest.mark.parametrize(
    ("role", "own", "others"),
    [
        (TenantRole.OWNER, 200, 200),
        (TenantRole.ADMIN, 200, 200),
        (TenantRole.DEVELOPER, 200, 403),
        (TenantRole.VIEWER, 403, 403),
        (TenantRole.BILLING, 403, 403),
    ],
)
def test_who_may_mark_which_keys(acme: Tenant, role: TenantRole, own: int, others: int) -> None:
    user = person()
    add_member(acme, user, role=role, actor=SYSTEM)
    asking = client(user)
    mine = create_api_key(acme, name="mine", actor=SYSTEM, created_by=user.pk).key
    assert asking.post(keys(make_key(acme).key, "compromised"), {}, format="json").status_code == others
    assert asking.post(keys(mine, "compromised"), {}, format="json").status_code == own
    rotation = asking.post(keys(make_key(acme).key, "rotate"), {"overlap_seconds": 0}, format="json").status_code
    assert rotation == (201 if others == 200 else others)
    assert asking.get("/api/compromised-keys/").status_code == 403


def test_outsiders_find_no_keys_and_no_grants(acme: Tenant) -> None:
    outsider = member(make_tenant(), TenantRole.OWNER)
    key = make_key(acme).key
    for path in (keys(key), keys(key, "exposure"), "/api/tenants/acme/grants/"):
        assert outsider.get(path).status_code == 404
    for path in (keys(key, "rotate"), keys(key, "compromised"), "/api/tenants/acme/grants/"):
        assert outsider.post(path, {}, format="json").status_code == 404


def test_grants_are_made_listed_and_removed(acme: Tenant, operator: APIClient) -> None:
    key = make_key(acme).key
    soon = (timezone.now() + timedelta(hours=1)).isoformat()
    bodies: list[dict[str, Any]] = [
        {"model_pattern": "qwen*"},
        {"model_pattern": "qwen*", "key": str(key.pk), "actions": ["train"], "expires_at": soon},
        {"model_pattern": "*-secret", "effect": "deny", "actions": ["*"]},
        {"model_pattern": "*", "issuer": "https://issuer.example", "subject": "robot"},
        {"model_pattern": "*", "subject_id": str(uuid4())},
    ]
    made = [operator.post("/api/tenants/acme/grants/", body, format="json") for body in bodies]
    assert [answer.status_code for answer in made] == [201] * 5
    assert [answer.json()["principal"] for answer in made] == ["tenant", "key", "tenant", "subject", "subject"]
    assert made[3].json()["principal_id"] == str(subject_uuid("https://issuer.example", "robot"))
    viewer = member(acme, TenantRole.VIEWER)
    assert len(viewer.get("/api/tenants/acme/grants/").json()["results"]) == 5
    (denial,) = viewer.get("/api/tenants/acme/grants/?effect=deny").json()["results"]
    assert denial["model_pattern"] == "*-secret"
    (of_key,) = viewer.get(f"/api/tenants/acme/grants/?principal=key&principal_id={key.pk}").json()["results"]
    Grant.objects.filter(pk=of_key["id"]).update(expires_at=timezone.now())
    assert len(viewer.get("/api/tenants/acme/grants/").json()["results"]) == 4
    assert len(viewer.get("/api/tenants/acme/grants/?expired=true").json()["results"]) == 5
    address = f"/api/tenants/acme/grants/{denial['id']}/"
    assert viewer.get(address).json() == denial
    assert viewer.delete(address).status_code == 403
    assert member(acme, TenantRole.OWNER).post("/api/tenants/acme/grants/", bodies[0], format="json").status_code == 403
    assert operator.delete(address).status_code == 204
    assert operator.get(address).status_code == 404


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({}, "model_pattern"),
        ({"model_pattern": ""}, "model_pattern"),
        ({"model_pattern": "*", "actions": ["fly"]}, "actions"),
        ({"model_pattern": "*", "actions": []}, "actions"),
        ({"model_pattern": "*", "effect": "maybe"}, "effect"),
        ({"model_pattern": "*", "key": "6f7f2f0d-0000-7000-8000-000000000000"}, "key"),
        ({"model_pattern": "*", "issuer": "https://issuer.example"}, "subject"),
        ({"model_pattern": "*", "expires_at": "2020-01-01T00:00:00Z"}, "expires_at"),
    ],
)
def test_what_is_wrong_with_a_grant_is_named(
    acme: Tenant, operator: APIClient, body: dict[str, Any], field: str
) -> None:
    refused = operator.post("/api/tenants/acme/grants/", body, format="json")
    assert refused.status_code == 400
    assert next(iter(refused.json()["errors"])).startswith(field)
    assert not Grant.objects.exists()


def test_another_tenants_key_and_grant_are_not_there(acme: Tenant, operator: APIClient) -> None:
    other = make_tenant()
    stranger = make_key(other).key
    refused = operator.post("/api/tenants/acme/grants/", {"model_pattern": "*", "key": str(stranger.pk)}, format="json")
    assert refused.status_code == 400
    made = operator.post(f"/api/tenants/{other.slug}/grants/", {"model_pattern": "*"}, format="json").json()
    assert operator.delete(f"/api/tenants/acme/grants/{made['id']}/").status_code == 404
    assert operator.get(keys(stranger)).status_code == 404


def issuer_body(**said: Any) -> dict[str, Any]:
    return {"name": "House", "issuer": "https://i.example", "audiences": ["llm-api"], **said}


def test_an_issuer_is_made_changed_and_deleted(acme: Tenant, operator: APIClient) -> None:
    body = issuer_body(pinned_jwks=TokenMaker().key_set(), tenant="acme", role_scopes={"ml": ["train"]})
    made = operator.post("/api/issuers/", body, format="json")
    assert made.status_code == 201
    assert (made.json()["tenant"], made.json()["algorithms"], made.json()["leeway_seconds"]) == ("acme", ["RS256"], 30)
    address = f"/api/issuers/{made.json()['id']}/"
    assert operator.get(address)["etag"] == made["etag"]
    assert operator.patch(address, {"tenant": None}, format="json").status_code == 428
    changed = operator.patch(address, {"tenant": None}, format="json", headers={"if-match": made["etag"]})
    assert (changed.status_code, changed.json()["tenant"]) == (200, None)
    late = operator.patch(address, {"name": "x"}, format="json", headers={"if-match": made["etag"]})
    assert late.status_code == 412
    assert [row["name"] for row in operator.get("/api/issuers/").json()["results"]] == ["House"]
    assert operator.delete(address).status_code == 204
    assert not TokenIssuer.objects.exists()


@pytest.mark.parametrize(
    ("said", "field"),
    [
        ({}, "jwks_url"),
        ({"jwks_url": "http://i.example/keys"}, "jwks_url"),
        ({"jwks_url": "https://10.0.0.1/keys"}, "jwks_url"),
        ({"jwks_url": "https://i.example/keys", "leeway_seconds": 301}, "leeway_seconds"),
        ({"jwks_url": "https://i.example/keys", "audiences": []}, "audiences"),
        ({"jwks_url": "https://i.example/keys", "algorithms": ["HS256"]}, "algorithms"),
        ({"jwks_url": "https://i.example/keys", "tenant": "nobody"}, "tenant"),
        ({"pinned_jwks": '{"keys": [{"kty": "oct", "k": "AA"}]}'}, "pinned_jwks"),
        ({"jwks_url": "https://i.example/keys", "role_scopes": {"\ud800": ["infer"]}}, "role_scopes"),
    ],
)
def test_what_is_wrong_with_an_issuer_is_named(operator: APIClient, said: dict[str, Any], field: str) -> None:
    body = json.dumps(issuer_body(**said))
    refused = operator.post("/api/issuers/", body, content_type="application/json")
    assert refused.status_code == 400
    assert list(refused.json()["errors"]) == [field]
    assert not TokenIssuer.objects.exists()


@pytest.mark.parametrize("depth", [60, 900, 100_000])
def test_a_body_that_is_nested_without_end_is_refused(operator: APIClient, depth: int) -> None:
    body = '{"role_scopes": {"a": ' + "[" * depth + "]" * depth + "}}"
    assert operator.post("/api/issuers/", body, content_type="application/json").status_code == 400


def test_only_the_platform_sees_issuers_and_only_operators_change_them(acme: Tenant) -> None:
    body = issuer_body(pinned_jwks=TokenMaker().key_set())
    reader = client(person(PlatformRole.READ_ONLY))
    assert reader.get("/api/issuers/").status_code == 200
    assert reader.post("/api/issuers/", body, format="json").status_code == 403
    owner = member(acme, TenantRole.OWNER)
    assert owner.get("/api/issuers/").status_code == 403
    assert owner.post("/api/issuers/", body, format="json").status_code == 403
