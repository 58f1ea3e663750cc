"""Guessing passwords is slowed down, for one account from one address, and nobody else is."""

from collections.abc import Iterator

import pytest
from django.core.cache import cache
from django.test import Client
from redis.exceptions import ConnectionError as RedisConnectionError

from dashboard.login_guard import ATTEMPTS, PAUSE_SECONDS
from tests.dashboard.people import PASSWORD, person

pytestmark = pytest.mark.django_db


@pytest.fixture(autouse=True)
def _fresh_cache() -> Iterator[None]:
    cache.clear()
    yield
    cache.clear()


def attempt(
    client: Client, *, password: str = "wrong", name: str = "olga", address: str = "10.0.0.1"
) -> tuple[int, str]:
    form = {"username": f"{name}@example.com", "password": password}
    response = client.post("/login/", form, REMOTE_ADDR=address)
    return response.status_code, response.headers.get("Retry-After", "")


def test_after_too_many_attempts_not_even_the_right_password_is_looked_at(client: Client) -> None:
    person("olga")
    assert {attempt(client)[0] for _ in range(ATTEMPTS)} == {200}
    assert attempt(client) == (429, str(PAUSE_SECONDS))
    assert attempt(client, password=PASSWORD) == (429, str(PAUSE_SECONDS))
    page = client.post("/login/", {"username": "Olga@example.com ", "password": "x"}, REMOTE_ADDR="10.0.0.1")
    assert "Too many attempts for this account. Try again in 15 minutes." in page.content.decode()


def test_the_same_account_elsewhere_and_another_account_here_are_let_in(client: Client) -> None:
    person("olga")
    person("rita")
    for _ in range(ATTEMPTS + 1):
        attempt(client)
    assert attempt(client, password=PASSWORD, address="10.0.0.2")[0] == 302
    assert attempt(Client(), password=PASSWORD, name="rita")[0] == 302


def test_addresses_of_one_ipv6_subscriber_are_one(client: Client) -> None:
    person("olga")
    for number in range(ATTEMPTS):
        attempt(client, address=f"2001:db8:1:2::{number:x}")
    assert attempt(client, password=PASSWORD, address="2001:db8:1:2:ffff::1")[0] == 429
    assert attempt(client, password=PASSWORD, address="2001:db8:1:3::1")[0] == 302


def test_a_success_clears_the_count(client: Client) -> None:
    person("olga")
    for _ in range(ATTEMPTS - 1):
        attempt(client)
    assert attempt(client, password=PASSWORD)[0] == 302
    assert {attempt(Client())[0] for _ in range(ATTEMPTS)} == {200}


def test_people_get_in_while_the_cache_is_away(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    person("olga")

    def away(*_: object, **__: object) -> None:
        raise RedisConnectionError("gone")

    monkeypatch.setattr(cache, "add", away)
    monkeypatch.setattr(cache, "delete", away)
    assert attempt(client, password=PASSWORD)[0] == 302


def test_the_backoffice_has_no_door_of_its_own(client: Client) -> None:
    root = person("root", platform_role="superuser")
    asked = client.get("/backoffice/tenants/tenant/", follow=True)
    assert asked.redirect_chain[-1][0] == "/login/?next=/backoffice/tenants/tenant/"
    assert client.post("/backoffice/login/", {"username": "root@example.com", "password": PASSWORD}).status_code == 302
    assert "_auth_user_id" not in client.session
    client.force_login(person("olga", platform_role="operator"))
    assert client.get("/backoffice/", follow=True).status_code == 403
    client.force_login(root)
    assert client.get("/backoffice/login/").headers["Location"] == "/backoffice/"
    assert client.get("/backoffice/").status_code == 200
