"""Requests for more by the control API."""

from typing import Any

import pytest
from rest_framework.test import APIClient

from tenants.actor import SYSTEM
from tenants.models import AccessRequest, Grant, Limit, PlatformRole, Tenant, TenantRole, User
from tenants.services.limits import create_limit
from tests.factories import make_key, make_member, make_tenant, make_user

pytestmark = pytest.mark.django_db

ASK: dict[str, Any] = {"kind": "model", "model": "large", "reason": "A trial."}
MORE: dict[str, Any] = {"kind": "limit", "metric": "requests", "window": "minute", "amount": 60, "reason": "More."}
PATH = "/api/tenants/acme/requests/"


def client_of(user: User) -> APIClient:
    client = APIClient()
    client.force_authenticate(user)
    return client


@pytest.fixture
def tenant() -> Tenant:
    return make_tenant("acme")


@pytest.fixture
def developer(tenant: Tenant) -> APIClient:
    return client_of(make_member(tenant))


@pytest.fixture
def operator() -> APIClient:
    return client_of(make_user(platform_role=PlatformRole.OPERATOR))


def ask(client: APIClient, body: dict[str, Any]) -> str:
    answer = client.post(PATH, body)
    assert answer.status_code == 201, answer.json()
    assert answer["etag"]
    made: str = answer.json()["id"]
    return made


def decide(client: APIClient, request_id: str, etag: str | None = None, **body: Any) -> Any:
    headers = {"if-match": etag} if etag is not None else {}
    return client.post(f"/api/requests/{request_id}/decision/", body, headers=headers)


def test_a_model_is_asked_for_and_granted(developer: APIClient, operator: APIClient) -> None:
    made = ask(developer, {**ASK, "actions": ["infer"]})
    (listed,) = operator.get("/api/requests/?state=open").json()["results"]
    assert (listed["id"], listed["tenant"], listed["what"]) == (made, "acme", {"model": "large", "actions": ["infer"]})
    etag = operator.get(f"/api/requests/{made}/")["etag"]
    assert decide(operator, made, approved=True).status_code == 428
    decided = decide(operator, made, etag, approved=True, answer="Go on.")
    assert (decided.status_code, decided.json()["state"]) == (200, "approved")
    told = developer.get(f"{PATH}{made}/").json()
    assert (told["answer"], told["grant_id"]) == ("Go on.", str(Grant.objects.get().pk))
    assert decide(operator, made, etag, approved=False).status_code == 412
    assert decide(operator, made, "*", approved=False).status_code == 409


def test_a_limit_is_asked_for_and_made(tenant: Tenant, developer: APIClient, operator: APIClient) -> None:
    key = make_key(tenant).key
    made = ask(developer, {**MORE, "key": str(key.pk), "model": "tiny"})
    assert decide(operator, made, "*", approved=True, amount=30).status_code == 200
    limit = Limit.objects.get()
    assert (limit.key_id, limit.model, limit.amount) == (key.pk, "tiny", 30)


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({**ASK, "model": ""}, "model"),
        ({"kind": "model", "reason": "x"}, "model"),
        ({**ASK, "amount": 5}, "amount"),
        ({**ASK, "actions": ["fly"]}, "actions"),
        ({**ASK, "until": "2020-01-01T00:00:00Z"}, "until"),
        ({**ASK, "until": "soon"}, "until"),
        ({**ASK, "reason": ""}, "reason"),
        ({**ASK, "kind": "gift"}, "kind"),
        ({**MORE, "amount": -1}, "amount"),
        ({**MORE, "amount": 10**30}, "amount"),
        ({**MORE, "actions": ["infer"]}, "actions"),
        ({**MORE, "metric": "money"}, "window"),
        ({**MORE, "key": "00000000-0000-7000-8000-000000000000"}, "key"),
        ({"kind": "limit", "reason": "x"}, "metric"),
    ],
)
def test_requests_that_make_no_sense_are_refused(developer: APIClient, body: dict[str, Any], field: str) -> None:
    refused = developer.post(PATH, body)
    assert refused.status_code == 400, refused.json()
    assert field in str(refused.json())
    assert not AccessRequest.objects.exists()


def test_another_tenants_key_is_not_found(developer: APIClient) -> None:
    key = make_key(make_tenant()).key
    assert developer.post(PATH, {**MORE, "key": str(key.pk)}).status_code == 400


def test_a_request_is_withdrawn_by_who_made_it_or_manages(
    tenant: Tenant, developer: APIClient, operator: APIClient
) -> None:
    made = ask(developer, ASK)
    colleague = client_of(make_member(tenant))
    assert colleague.delete(f"{PATH}{made}/").status_code == 403
    assert developer.delete(f"{PATH}{made}/").status_code == 204
    assert developer.get(f"{PATH}{made}/").json()["state"] == "withdrawn"
    assert developer.delete(f"{PATH}{made}/").status_code == 409
    again = ask(developer, ASK)
    assert client_of(make_member(tenant, role=TenantRole.ADMIN)).delete(f"{PATH}{again}/").status_code == 204
    assert decide(operator, again, "*", approved=True).status_code == 409


@pytest.mark.parametrize(
    ("role", "status"),
    [(TenantRole.OWNER, 201), (TenantRole.DEVELOPER, 201), (TenantRole.VIEWER, 403), (TenantRole.BILLING, 403)],
)
def test_who_may_ask(tenant: Tenant, role: TenantRole, status: int) -> None:
    client = client_of(make_member(tenant, role=role))
    assert client.post(PATH, ASK).status_code == status
    assert client.get(PATH).status_code == 200


def test_nobody_decides_but_operators(tenant: Tenant, developer: APIClient) -> None:
    made = ask(developer, ASK)
    for user in (
        make_member(tenant, role=TenantRole.OWNER),
        make_user(platform_role=PlatformRole.READ_ONLY),
        make_user(),
    ):
        assert decide(client_of(user), made, "*", approved=True).status_code == 403
    assert AccessRequest.objects.get().state == "open"


def test_asking_twice_with_one_key_is_asking_once(developer: APIClient) -> None:
    answers = [developer.post(PATH, ASK, headers={"idempotency-key": "k"}) for _ in range(2)]
    assert answers[0].json() == answers[1].json()
    assert AccessRequest.objects.count() == 1
    assert developer.post(PATH, ASK).status_code == 409


def test_what_was_there_before_is_raised_for_a_time(tenant: Tenant, developer: APIClient, operator: APIClient) -> None:
    create_limit(metric="requests", window="minute", amount=10, tenant=tenant, actor=SYSTEM)
    made = ask(developer, MORE)
    assert decide(operator, made, "*", approved=True, until="2999-01-01T00:00:00Z").status_code == 400
    assert Limit.objects.get().boost_amount is None
    assert developer.get(f"{PATH}{made}/").json()["state"] == "open"
