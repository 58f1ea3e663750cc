"""What the gateway's error codes mean is said beside them, in the reader's language."""

from collections.abc import Iterator

import pytest
from django.test import Client
from django.utils.translation import override

from core.errors import GatehouseError
from dashboard import error_words
from dashboard.error_words import CODES, words_beside_english
from tenants.models import TenantRole, User
from tests.dashboard.people import pool, tenant


def _kinds(of: type[GatehouseError]) -> Iterator[type[GatehouseError]]:
    for kind in of.__subclasses__():
        yield kind
        yield from _kinds(kind)


def test_every_code_that_every_door_may_answer_has_words() -> None:
    codes = {kind.code for kind in _kinds(GatehouseError) if kind.__module__ == "core.errors"}
    assert len(codes) > 20
    assert codes <= set(CODES)


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
