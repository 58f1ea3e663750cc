"""What the control API says where no view of its own answers."""

import pytest
from django.db import InterfaceError, OperationalError
from django.test import Client, RequestFactory

from gateway.api.problems import server_error
from tests.dashboard.people import person

pytestmark = pytest.mark.django_db


@pytest.mark.parametrize("path", ["/api/nothing/", "/api/tenants/acme/keys/no-uuid/"])
def test_an_address_that_is_not_there_is_a_problem_too(client: Client, path: str) -> None:
    answer = client.get(path)
    assert (answer.status_code, answer["content-type"]) == (404, "application/problem+json")
    assert answer.json()["detail"] == "There is nothing at this address."


def test_pages_keep_their_own_error_pages(client: Client) -> None:
    client.force_login(person("eve"))
    answer = client.get("/console/nothing/")
    assert (answer.status_code, "There is nothing here" in answer.content.decode()) == (404, True)


@pytest.mark.parametrize(
    ("path", "shape"),
    [
        ("/v1/chat/completions", {"error": ["code", "message", "param", "type"]}),
        ("/v1/nothing", {"error": ["code", "message", "param", "type"]}),
        ("/tokenize", {"error": ["code", "message", "param", "type"]}),
        ("/v1/messages", {"error": ["message", "type"], "request_id": None, "type": None}),
        ("/v2/models/llama/infer", {"error": None}),
    ],
)
def test_an_unknown_host_is_told_to_applications_in_the_shape_of_their_api(
    client: Client, path: str, shape: dict[str, list[str] | None]
) -> None:
    answer = client.post(path, b"{}", content_type="application/json", headers={"host": "elsewhere.example"})
    assert (answer.status_code, answer["content-type"]) == (400, "application/json")
    told = answer.json()
    assert {name: sorted(part) if isinstance(part, dict) else None for name, part in told.items()} == shape
    assert "Host" in str(told["error"])


def test_unknown_hosts_do_not_fill_the_log(client: Client, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level("ERROR"):
        for _ in range(5):
            client.get("/login/", headers={"host": "x" * 5000})
    told = [record for record in caplog.records if record.name == "django.security.DisallowedHost"]
    assert len(told) <= 2  # one a second
    assert all(record.exc_info is None and len(record.getMessage()) < 400 for record in told)


def test_an_unknown_host_is_a_problem_to_the_control_api_and_a_page_to_people(client: Client) -> None:
    answer = client.get("/api/tenants/", headers={"host": "elsewhere.example"})
    assert (answer.status_code, answer["content-type"]) == (400, "application/problem+json")
    page = client.get("/login/", headers={"host": "elsewhere.example"})
    assert (page.status_code, page["content-type"]) == (400, "text/html; charset=utf-8")


def test_a_failure_says_nothing_of_its_cause() -> None:
    answer = server_error(RequestFactory().get("/api/tenants/"))
    assert (answer.status_code, answer["content-type"]) == (500, "application/problem+json")
    page = server_error(RequestFactory().get("/console/overview/"))
    assert (page.status_code, page["content-type"]) == (500, "text/html; charset=utf-8")


@pytest.mark.parametrize("error", [OperationalError("too many clients"), InterfaceError("connection already closed")])
def test_a_database_that_is_away_is_told_as_503(error: Exception) -> None:
    for path in ("/api/tenants/", "/console/overview/"):
        try:
            raise error
        except (OperationalError, InterfaceError):
            answer = server_error(RequestFactory().get(path))
        assert (answer.status_code, answer["retry-after"]) == (503, "5")
    assert server_error(RequestFactory().get("/api/tenants/")).status_code == 500
