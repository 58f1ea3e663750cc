"""What every control API view does: query parameters, ETags, idempotency keys, request ids, refusals as problems."""

import json
from collections.abc import Mapping
from datetime import timedelta
from threading import Event, Thread
from typing import Any

import pytest
from django.db import connection, connections, transaction
from django.http import HttpResponse
from django.test import Client, RequestFactory
from django.utils import timezone
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.test import APIRequestFactory, force_authenticate

from core.api.etags import check_match, etag_of, tagged
from core.api.filters import Query
from core.api.idempotency import RETENTION, IdempotentCreate, prune_idempotency_records
from core.api.request_ids import RequestIdMiddleware, request_id_of
from core.models import IdempotencyRecord
from core.refusals import Conflict, InvalidInput
from tenants.api.base import ControlView
from tenants.models import AuditEvent, TenantRole, User
from tests.factories import make_member, make_tenant, make_user

pytestmark = pytest.mark.django_db


class _Query(Query):
    count = serializers.IntegerField(required=False, min_value=0)
    only = serializers.BooleanField(required=False)


class _Body(serializers.Serializer[Any]):
    name = serializers.CharField(max_length=10)


class _View(IdempotentCreate, ControlView):
    query_class = _Query
    made: list[str] = []

    def get(self, request: Request) -> Response:
        return tagged({"query": self.query})

    def post(self, request: Request) -> Response:
        name = self.parsed(_Body)["name"]
        if name == "taken":
            raise Conflict("It is there already.")
        if name == "odd":
            raise InvalidInput("name", "No odd names.")
        self.made.append(name)
        return Response({"name": name, "secret": "told-once", "parts": [{"token": "told-once", "of": 1}]}, status=201)

    def patch(self, request: Request) -> Response:
        check_match(request, {"name": "now"})
        return tagged({"name": "then"})


@pytest.fixture
def person() -> User:
    _View.made.clear()
    return make_user()


def _ask(person: User, method: str, *, query: str = "", body: Any = None, **headers: str) -> Response:
    request = getattr(APIRequestFactory(), method)(f"/api/x/{query}", body, format="json", headers=headers)
    force_authenticate(request, person)
    response: Response = _View.as_view()(request).render()
    return response


def _create(person: User, name: str, key: str) -> Response:
    return _ask(person, "post", body={"name": name}, **{"Idempotency-Key": key})


def test_declared_parameters_are_typed_and_others_refused(person: User) -> None:
    assert _ask(person, "get", query="?count=3&only=true").data == {"query": {"count": 3, "only": True}}
    assert _ask(person, "get").data == {"query": {}}
    for query, wrong in (
        ("?cuont=3", "cuont"),
        ("?count=x", "count"),
        ("?count=1&count=2", "count"),
        ("?limit=1", "limit"),
    ):
        refused = _ask(person, "get", query=query)
        assert (refused.status_code, list(refused.data["errors"])) == (400, [wrong])
    assert _ask(person, "post", query="?count=1", body={"name": "a"}).status_code == 400


@pytest.mark.parametrize(
    ("name", "status", "kind", "named"),
    [
        ("odd", 400, "urn:gatehouse:problem:invalid-input", ["name"]),
        ("far too long a name", 400, "urn:gatehouse:problem:invalid-input", ["name"]),
        ("taken", 409, "urn:gatehouse:problem:conflict", None),
    ],
)
def test_what_a_service_refuses_is_a_problem(
    person: User, name: str, status: int, kind: str, named: list[str] | None
) -> None:
    refused = _ask(person, "post", body={"name": name}, **{"X-Request-Id": "abc-1"})
    assert (refused.status_code, refused["content-type"]) == (status, "application/problem+json")
    told = json.loads(refused.content)
    assert (told["type"], told["status"], told["request_id"]) == (kind, status, "abc-1")
    assert told["title"]
    assert told["detail"]
    assert (list(told["errors"]) if "errors" in told else None) == named


@pytest.mark.parametrize(
    ("headers", "status", "kind"),
    [
        ({}, 428, "urn:gatehouse:problem:precondition-required"),
        ({"If-Match": '"else"'}, 412, "urn:gatehouse:problem:precondition-failed"),
        ({"If-Match": '"else", ' + etag_of({"name": "now"})}, 200, None),
        ({"If-Match": "*"}, 200, None),
    ],
)
def test_an_update_says_what_it_saw(person: User, headers: Mapping[str, str], status: int, kind: str | None) -> None:
    answer = _ask(person, "patch", body={}, **headers)
    assert (answer.status_code, answer.data.get("type")) == (status, kind)
    if status == 200:
        assert answer["ETag"] == etag_of({"name": "then"})


def test_members_that_change_on_their_own_are_no_edit() -> None:
    assert etag_of({"a": 1, "last": 2}, without=("last",)) == etag_of({"last": 3, "a": 1}, without=("last",))
    assert etag_of({"a": 1}) != etag_of({"a": 2})


def test_a_post_that_is_sent_again_is_done_once_and_its_secret_is_not_kept(person: User) -> None:
    first = _create(person, "a", "k")
    again = _create(person, "a", "k")
    assert (first.status_code, first.data["secret"]) == (201, "told-once")
    assert (again.status_code, again.data) == (201, {"name": "a", "parts": [{"of": 1}]})
    assert (again["Idempotent-Replayed"], first.has_header("Idempotent-Replayed")) == ("true", False)
    assert _View.made == ["a"]
    with connection.cursor() as cursor:
        cursor.execute("SELECT string_agg(r::text, '') FROM core_idempotencyrecord r")
        assert "told-once" not in cursor.fetchone()[0]


def test_keys_are_a_persons_own_and_mean_one_request(person: User) -> None:
    _create(person, "a", "k")
    assert _create(person, "b", "k").status_code == 422
    assert _create(make_user(), "b", "k").status_code == 201
    assert _create(person, "c", "other").status_code == 201
    assert _View.made == ["a", "b", "c"]
    assert _create(person, "a", "x" * 256).status_code == 400


def test_what_was_refused_may_be_tried_again_with_the_same_key(person: User) -> None:
    assert _create(person, "taken", "k").status_code == 409
    assert _create(person, "a", "k").status_code == 201


def test_a_key_is_free_again_after_a_day(person: User) -> None:
    _create(person, "a", "k")
    IdempotencyRecord.objects.update(created_at=timezone.now() - RETENTION - timedelta(seconds=1))
    assert _create(person, "b", "k").status_code == 201
    IdempotencyRecord.objects.update(created_at=timezone.now() - RETENTION - timedelta(seconds=1))
    assert (prune_idempotency_records(), prune_idempotency_records()) == (1, 0)


@pytest.mark.django_db(transaction=True)
def test_the_same_key_at_once_is_a_conflict_and_not_a_wait() -> None:
    person = make_user()
    holds, over = Event(), Event()

    def hold() -> None:
        try:
            with transaction.atomic():
                assert _create(person, "a", "k").status_code == 201  # its transaction is this one
                holds.set()
                over.wait(60)
        finally:
            connections.close_all()

    thread = Thread(target=hold)
    thread.start()
    try:
        assert holds.wait(30)
        assert _create(person, "a", "k").status_code == 409
    finally:
        over.set()
        thread.join()
    assert _create(person, "a", "k")["Idempotent-Replayed"] == "true"


@pytest.mark.parametrize(
    ("said", "taken"), [("from-me_1.2:3", True), ("", False), ("x" * 65, False), ("a b", False), ('a"}\n', False)]
)
def test_a_request_keeps_the_id_of_its_caller_if_that_can_stand_in_a_log(said: str, taken: bool) -> None:
    seen: list[str] = []

    def view(request: Any) -> HttpResponse:
        seen.append(request_id_of(request))
        return HttpResponse()

    response = RequestIdMiddleware(view)(RequestFactory().get("/api/", headers={"X-Request-Id": said}))
    assert seen == [response["X-Request-Id"]]
    assert (seen == [said]) is taken
    RequestIdMiddleware(view)(RequestFactory().get("/v1/models", headers={"X-Request-Id": said}))
    assert seen[1] != said


def test_the_id_reaches_the_answer_and_the_audit_log(client: Client) -> None:
    client.force_login(make_user(platform_role="operator"))
    answer = client.post(
        "/api/tenants/",
        {"slug": "named", "name": "Named"},
        content_type="application/json",
        headers={"X-Request-Id": "from-outside"},
    )
    assert (answer.status_code, answer["X-Request-Id"]) == (201, "from-outside")
    assert AuditEvent.objects.get(action="tenant.created").request_id == "from-outside"
    assert client.get("/login/")["X-Request-Id"]


def test_pages_name_their_request_in_the_audit_log_too(client: Client) -> None:
    owner = make_member(make_tenant("acme"), role=TenantRole.OWNER)
    client.force_login(owner)
    answer = client.post("/t/acme/keys/new/", {"name": "k"})
    written = AuditEvent.objects.filter(actor_id=owner.pk).values_list("request_id", flat=True)
    assert set(written) == {answer["X-Request-Id"]}


def test_a_body_has_the_types_that_are_declared(person: User) -> None:
    for body in ({"name": 3}, {"name": ["a"]}, {"name": None}, ["name"], "name"):
        assert _ask(person, "post", body=body).status_code == 400, body
