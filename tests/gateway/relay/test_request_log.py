"""The request log: the same names at every door, nothing where nothing is to be said, no secret ever."""

from dataclasses import replace
from uuid import UUID

import pytest
import structlog
from django.http import HttpResponse
from django.test import Client, RequestFactory
from pytest_django import Settings
from structlog.testing import capture_logs

from core.env import SettingsError
from core.errors import GatehouseError, NoReadyInstance, RateLimited
from core.ids import uuid7
from gateway.api import request_log as web_log
from gateway.api.request_log import RequestLogMiddleware
from gateway.relay import request_log
from gateway.relay.plan import Api, Outcome, Settlement, SlimRequest, Usage
from gateway.relay.request_log import Mode, RequestLog
from tenants.principal import Principal
from tenants.usage import OpenRow
from tests.factories import make_user

TRACE = "0af7651916cd43dd8448eb211c80319c"
HEADERS = [(b"authorization", b"Bearer sk-gh-canary"), (b"traceparent", f"00-{TRACE}-b7ad6b7169203331-01".encode())]
PRINCIPAL = Principal(UUID(int=1), "acme", UUID(int=2), frozenset(), (), None)


@pytest.fixture(autouse=True)
def _uncached(monkeypatch: pytest.MonkeyPatch) -> None:
    """structlog's loggers keep what they were configured with at their first line; these see the test's."""
    for module in (request_log, web_log):
        monkeypatch.setattr(module, "logger", structlog.get_logger("gatehouse.request"))


def _settle(log: RequestLog, *, outcome: Outcome = Outcome.SUCCESS, status: int = 200, seconds: float = 0.5) -> None:
    opened = OpenRow(uuid7(), PRINCIPAL.tenant_id, PRINCIPAL.key_id, "llama", "relay", "chat", False, 0.0)
    usage = Usage()
    log.settled(opened, Settlement(outcome, status, usage, seconds, error_code="x"), PRINCIPAL, HEADERS)


def _refuse(log: RequestLog, error: GatehouseError | None = None, *, whose: Principal | None = None) -> None:
    request = SlimRequest(uuid7(), Api.CHAT, "/v1/chat/completions", HEADERS, b"", 0.0)
    log.refused(request, error or RateLimited(), whose=lambda _: whose)


@pytest.mark.shows("R134")
@pytest.mark.parametrize("ending", ["settled", "refused"])
def test_a_line_has_the_names_that_people_look_for(ending: str) -> None:
    log = RequestLog(Mode.ALL, monotonic=lambda: 1.5)
    with capture_logs() as lines:
        if ending == "settled":
            _settle(log, seconds=1.5)
        else:
            _refuse(log, whose=PRINCIPAL)
    (line,) = lines
    assert UUID(line["request_id"]).version == 7
    assert (line["trace_id"], line["duration_ms"]) == (TRACE, 1500.0)
    assert line["status_code"] == (200 if ending == "settled" else 429)
    assert line["tenant"] == "acme"
    assert "canary" not in str(line)


@pytest.mark.parametrize(
    ("mode", "written"), [(Mode.OFF, []), (Mode.ERRORS, [502, 499, 200, 429]), (Mode.ALL, [200, 502, 499, 200, 429])]
)
def test_which_requests_are_written(mode: Mode, written: list[int]) -> None:
    log = RequestLog(mode, slow_seconds=10, monotonic=lambda: 1.0)
    with capture_logs() as lines:
        _settle(log)
        _settle(log, outcome=Outcome.FAILED, status=502)
        _settle(log, outcome=Outcome.CANCELLED, status=499)
        _settle(log, seconds=10)
        _refuse(log)
    assert [line["status_code"] for line in lines] == written


def test_a_storm_of_refusals_is_counted_and_not_written() -> None:
    now = 100.0
    log = RequestLog(Mode.ERRORS, monotonic=lambda: now)
    with capture_logs() as lines:
        for _ in range(1000):
            _refuse(log)
        assert len(lines) == 20
        _refuse(log, NoReadyInstance())  # what is ours to mend is always written
        now = 101.0
        _refuse(log)
    assert [line.get("held_back") for line in lines[20:]] == [980, None]


def test_an_unknown_mode_is_refused_by_name() -> None:
    with pytest.raises(SettingsError, match="GATEHOUSE_REQUEST_LOG='some' is none of off, errors, all"):
        Mode.of("some")


@pytest.mark.shows("R134")
@pytest.mark.django_db
def test_pages_and_control_api_write_the_same_names(client: Client, settings: Settings) -> None:
    settings.GATEHOUSE = replace(settings.GATEHOUSE, request_log="all")
    client.force_login(make_user())
    with capture_logs() as lines:
        client.get("/api/tenants/nobody/?secret=canary", headers={"traceparent": f"00-{TRACE}-b7ad6b7169203331-01"})
    line = next(line for line in lines if line["event"] == "request")
    assert (line["status_code"], line["tenant"], line["trace_id"], line["method"]) == (400, "nobody", TRACE, "GET")
    assert (line["route"], line["duration_ms"] > 0) == ("api/tenants/<slug:slug>/", True)
    assert UUID(line["request_id"]).version == 7
    assert "canary" not in str(line)


@pytest.mark.parametrize(("mode", "status", "written"), [("errors", 404, 0), ("errors", 500, 1), ("off", 500, 0)])
def test_web_requests_are_chosen_by_the_same_setting(settings: Settings, mode: str, status: int, written: int) -> None:
    settings.GATEHOUSE = replace(settings.GATEHOUSE, request_log=mode)
    with capture_logs() as lines:
        RequestLogMiddleware(lambda request: HttpResponse(status=status))(RequestFactory().get("/"))
    assert len(lines) == written
