"""Fixtures for the tests of pages."""

from collections.abc import Iterator

import pytest
from django.conf import settings
from django.db import connections
from django.test import Client, override_settings
from pytest_django import Settings

from tests.dashboard.people import person


@pytest.fixture(autouse=True)
def _cheap_passwords(settings: Settings) -> None:
    """Hashing is meant to be slow; nothing here tests it."""
    settings.PASSWORD_HASHERS = ["django.contrib.auth.hashers.MD5PasswordHasher"]


@pytest.fixture(autouse=True, scope="module")
def _servers_are_waited_for() -> Iterator[None]:
    """Pages do without a Valkey or a database that does not answer at once: tests of them may not, where all stalls."""
    waits = {"socket_connect_timeout": 10, "socket_timeout": 10}
    with (
        override_settings(CACHES={"default": {**settings.CACHES["default"], "OPTIONS": waits}}),
        pytest.MonkeyPatch.context() as patch,
    ):
        patch.setattr("dashboard.reads.health.DEADLINE_SECONDS", 10.0)
        patch.setitem(connections.settings["default"]["OPTIONS"], "connect_timeout", 30)
        yield


@pytest.fixture
def operator(client: Client) -> Client:
    """A browser in which an operator is logged in."""
    client.force_login(person("olga", platform_role="operator"))
    return client


@pytest.fixture
def root(client: Client) -> Client:
    """A client that is logged in as somebody who may do everything."""
    client.force_login(person("root", platform_role="superuser"))
    return client
