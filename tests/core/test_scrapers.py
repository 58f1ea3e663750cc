"""Metrics name models: they are for this machine, or for who has the token."""

import pytest

from core.errors import GatehouseError, InvalidApiKey, PermissionDenied
from core.telemetry.scrapers import check_scraper


def refusal(
    *headers: tuple[bytes, bytes], client_host: str | None = "127.0.0.1", token: str | None = None
) -> type[GatehouseError] | None:
    try:
        check_scraper(headers, client_host=client_host, token=token)
    except GatehouseError as error:
        return type(error)
    return None


@pytest.mark.parametrize("host", ["127.0.0.1", "127.0.0.9", "::1"])
def test_this_machine_is_told_without_a_token(host: str) -> None:
    assert refusal(client_host=host) is None


@pytest.mark.parametrize("host", ["10.0.0.7", "2001:db8::1", "not an address", "", None])
def test_other_machines_are_not(host: str | None) -> None:
    assert refusal(client_host=host) is PermissionDenied


@pytest.mark.parametrize("name", [b"x-forwarded-for", b"forwarded", b"x-real-ip"])
def test_what_a_proxy_brings_from_elsewhere_is_not_this_machine(name: bytes) -> None:
    assert refusal((name, b"127.0.0.1")) is PermissionDenied


@pytest.mark.shows("R93")
def test_with_a_token_set_only_the_token_counts() -> None:
    right = (b"authorization", b"Bearer scrape-me")
    assert refusal(right, client_host="10.0.0.7", token="scrape-me") is None
    assert refusal(client_host="127.0.0.1", token="scrape-me") is InvalidApiKey
    assert refusal((b"authorization", b"Bearer other"), token="scrape-me") is InvalidApiKey
    assert refusal((b"authorization", b"scrape-me"), token="scrape-me") is InvalidApiKey
