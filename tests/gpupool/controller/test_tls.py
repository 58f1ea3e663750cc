"""Attached engines behind https: probed with certificate and name verified, and attached by their address."""

from dataclasses import replace
from pathlib import Path

import pytest
from django.core.management import call_command
from pytest_django import Settings

from config.environment import Environment
from core.tls import engine_context
from gpupool import services
from gpupool.agent.probe import ProbeFailed, ask
from gpupool.engines.base import WireRequest
from gpupool.models import Instance
from gpupool.selectors import engine_address, list_ready_endpoints
from tenants.actor import SYSTEM
from tenants.models import AuditEvent
from tests.doubles.authority import Authority
from tests.gpupool.engine_stub import EngineStub

pytestmark = pytest.mark.django_db


def _trust(settings: Settings, ca_file: Path | None) -> None:
    environment: Environment = settings.GATEHOUSE
    settings.GATEHOUSE = replace(environment, engine_ca_file=ca_file)


def _attach(url: str, capsys: pytest.CaptureFixture[str]) -> str:
    call_command("attach", url, "--engine", "vllm", "--model", "llama")
    return capsys.readouterr().out


def test_an_engine_behind_https_is_attached_and_found(
    tmp_path: Path, settings: Settings, capsys: pytest.CaptureFixture[str]
) -> None:
    authority = Authority(tmp_path)
    _trust(settings, authority.ca_file)
    with EngineStub("llama", tls=authority.server("IP:127.0.0.1")) as engine:
        assert "takes requests from now on" in _attach(engine.url, capsys)
    (endpoint,) = list_ready_endpoints()
    assert endpoint.tls
    assert engine_address(Instance.objects.get()) == engine.url
    assert Instance.objects.get().reason == ""


@pytest.mark.parametrize(
    ("name", "trusted", "why"),
    [
        ("IP:127.0.0.1", False, "its certificate is not accepted: unable to get local issuer certificate."),
        ("DNS:engine.example", True, "its certificate is not accepted: IP address mismatch"),
    ],
)
def test_a_certificate_that_is_not_accepted_is_said(
    tmp_path: Path, settings: Settings, capsys: pytest.CaptureFixture[str], name: str, trusted: bool, why: str
) -> None:
    authority = Authority(tmp_path)
    _trust(settings, authority.ca_file if trusted else None)
    with EngineStub("llama", key="secret", tls=authority.server(name)) as engine:
        assert why in _attach(engine.url, capsys)
    assert engine.asked == []
    assert list_ready_endpoints() == []


async def test_an_engine_without_tls_is_told_apart() -> None:
    with EngineStub("llama") as engine:
        port = int(engine.url.rpartition(":")[2])
        with pytest.raises(ProbeFailed, match="/health: no TLS connection: "):
            await ask(port, WireRequest("GET", "/health"), deadline_seconds=5, tls=engine_context(None))


@pytest.mark.parametrize(
    ("url", "port", "tls"),
    [("https://engine.example", 443, True), ("https://engine.example:8443/v1", 8443, True), ("http://e", 80, False)],
)
def test_the_scheme_decides_port_and_tls(url: str, port: int, tls: bool) -> None:
    address = services.parse_engine_url(url)
    assert (address.port, address.tls) == (port, tls)
    assert address.url.startswith(url.partition(":")[0] + "://")


def test_attaching_the_same_address_by_another_scheme_changes_it() -> None:
    def attach(url: str) -> Instance:
        return services.attach_engine(url, engine="vllm", model_name="llama", actor=SYSTEM).instance

    first = attach("http://engine:8000")
    again = attach("https://engine:8000")
    assert (again.pk, again.tls) == (first.pk, True)
    event = AuditEvent.objects.get(action="instance.changed")
    assert (event.before["tls"], event.after["tls"]) == (False, True)
