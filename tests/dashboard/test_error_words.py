"""What the gateway's error codes mean is said beside them, in the reader's language."""

import importlib
import pkgutil
from collections.abc import Iterator

import pytest
from django.test import Client
from django.utils.translation import override

import gateway
from core.errors import GatehouseError
from dashboard import error_words
from dashboard.error_words import CODES, words_beside_english
from gateway.relay.engine_errors import error_of_answer
from tenants.models import TenantRole, User
from tests.dashboard.people import pool, tenant

NO_PAGE_SHOWS = {
    # Before a request is anybody's, and of no door that the playground asks.
    "invalid_http",
    "invalid_handshake",
    # Told within a realtime connection, of an event that no request came of.
    "unknown_event",
    "invalid_event",
    "item_not_found",
    "conversation_already_has_active_response",
    "response_cancel_not_active",
}


def _kinds(of: type[GatehouseError]) -> Iterator[type[GatehouseError]]:
    for kind in of.__subclasses__():
        yield kind
        yield from _kinds(kind)


def test_every_code_that_every_door_may_answer_has_words() -> None:
    for module in pkgutil.walk_packages(gateway.__path__, "gateway."):
        importlib.import_module(module.name)  # errors are where they arise: a kind exists once its module is read
    of_engines = {
        error_of_answer(status, b'{"detail": "no"}', retry_after=None, served_name="", client_model="").code
        for status in (400, 429, 503)
    }
    codes = {kind.code for kind in _kinds(GatehouseError)} | of_engines
    assert len(codes) > 40
    assert set(CODES) == codes - NO_PAGE_SHOWS
    assert codes >= NO_PAGE_SHOWS


def test_english_pages_have_the_gateways_own_message_alone() -> None:
    with override("en"):
        assert words_beside_english() == {}
    with override("zh-hans"):
        assert set(words_beside_english()) == set(CODES)


@pytest.mark.django_db
def test_the_playground_says_what_a_code_means_beside_the_gateways_english(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    tenant("acme", ada=TenantRole.OWNER)
    pool()
    client.force_login(User.objects.get(email="ada@example.com"))
    monkeypatch.setattr(error_words, "get_language", lambda: "zh-hans")
    assert '"rate_limit_exceeded": ' in client.get("/t/acme/playground/").content.decode()
