"""The control API keeps to its own OpenAPI schema: whatever is sent, it answers as described, and never with 500.

Requests are made of the schema by schemathesis: valid ones, and ones with something wrong; of addresses half are those
of rows that are there. They run in this process with a superuser's token, and each is undone after it.
"""

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import schemathesis
from django.core.signals import request_finished, request_started
from django.core.wsgi import get_wsgi_application
from django.db import close_old_connections, transaction
from django.test import Client
from drf_spectacular.generators import SchemaGenerator
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st
from schemathesis import checks
from schemathesis.config import SchemathesisConfig
from schemathesis.core.failures import FailureGroup
from schemathesis.core.result import Ok
from schemathesis.generation.modes import GenerationMode
from schemathesis.specs.openapi import checks as described

from core.ids import uuid7
from tenants.actor import SYSTEM
from tenants.services import create_access_token
from tests.rows import one_of_everything

EXAMPLES = int(os.environ.get("GATEHOUSE_TEST_SCHEMA_EXAMPLES", "4"))
PARTS = 4
_SETTINGS = {
    "checks": {  # as it is, and 412: what does not match is refused before its body is looked at
        "negative_data_rejection": {"expected-statuses": [400, 401, 403, 404, 405, 406, 409, 412, 415, 422, 428]},
    }
}
_FILLED = re.compile(r"{(\w+)}")
_CHECKS: list[Any] = [
    checks.not_a_server_error,
    described.status_code_conformance,
    described.content_type_conformance,
    described.response_headers_conformance,
    described.response_schema_conformance,
    described.missing_required_header,
    described.unsupported_method,
    described.allow_header_conformance,
    described.negative_data_rejection,
]


class _Undone(Exception):
    pass


@pytest.fixture(autouse=True)
def _kept_connection() -> Iterator[None]:
    """As Django's own client does: the end of a request leaves the test's connection open."""
    for signal in (request_started, request_finished):
        signal.disconnect(close_old_connections)
    yield
    for signal in (request_started, request_finished):
        signal.connect(close_old_connections)


@contextmanager
def _undone() -> Iterator[None]:
    """What is written inside does not stay."""
    try:
        with transaction.atomic():
            yield
            raise _Undone
    except _Undone:
        pass


@pytest.mark.django_db
@pytest.mark.parametrize("part", range(PARTS))
def test_every_operation_answers_as_the_schema_says(part: int) -> None:
    schema = schemathesis.openapi.from_dict(_schema(), config=SchemathesisConfig.from_dict(_SETTINGS))
    schema.app = get_wsgi_application()
    rows = one_of_everything()
    token = create_access_token(rows.superuser, name="schema", actor=SYSTEM).secret
    operations = [found.ok() for found in schema.get_all_operations() if isinstance(found, Ok)]
    wanted = sorted((op for op in operations if op.path.startswith("/api/")), key=lambda op: op.label)
    failures = [failure for op in wanted[part::PARTS] for failure in _failures(op, token, rows.addresses)]
    assert not failures, "\n\n".join(failures)
    assert len(wanted) > 20


@pytest.mark.django_db
def test_every_operation_asks_who_it_is() -> None:
    """Without a session and with a token that nobody has."""
    rows = one_of_everything()
    for path, method in _operations():
        address = _FILLED.sub(lambda name: rows.addresses.get(name[1], str(uuid7())), path)
        for headers in ({}, {"authorization": "Token unknown"}):
            answer = Client().generic(method, address, "{}", content_type="application/json", headers=headers)
            assert (answer.status_code, answer["content-type"]) == (401, "application/problem+json"), (method, path)


def _operations() -> Iterator[tuple[str, str]]:
    for path, methods in _schema()["paths"].items():
        if path.startswith("/api/"):
            yield from ((path, method.upper()) for method in methods)


def _schema() -> dict[str, Any]:
    generator: Any = SchemaGenerator
    made: dict[str, Any] = generator().get_schema(request=None, public=True)
    return made


def _failures(operation: Any, token: str, addresses: dict[str, str]) -> list[str]:
    """What is wrong with an operation's answers, each in words with the request that shows it."""
    names = {parameter.name for parameter in operation.path_parameters}
    known = {name: addresses[name] for name in names if name in addresses}
    cases = [
        operation.as_strategy(generation_mode=mode, **({"path_parameters": known} if fixed else {}))
        for mode in (GenerationMode.POSITIVE, GenerationMode.NEGATIVE)
        for fixed in ((True, False) if known and names == set(known) else (False,))
    ]
    found: dict[str, str] = {}

    @seed(20_26)
    @settings(
        max_examples=EXAMPLES,
        deadline=None,
        database=None,
        phases=(Phase.explicit, Phase.generate),
        suppress_health_check=list(HealthCheck),
    )
    @given(st.one_of(cases))
    def ask(case: Any) -> None:
        with _undone():
            response = case.call(headers={"Authorization": f"Token {token}"})
        try:
            case.validate_response(response, checks=_CHECKS)
        except FailureGroup as group:
            for failure in group.exceptions:
                found.setdefault(f"{operation.label}: {failure.title}", _told(failure, case, response))

    ask()
    return [f"{title}\n{told}" for title, told in found.items()]


def _told(failure: Any, case: Any, response: Any) -> str:
    command = case.as_curl_command().replace(" -H 'Authorization: [Filtered]'", "")
    return f"{failure.message}\n{command}\n{response.status_code} {response.text[:600]}"
