"""Fixtures for the tests of pages."""

import pytest
from django.test import Client
from pytest_django import Settings

from tests.dashboard.people import person


@pytest.fixture(autouse=True)
def _cheap_passwords(settings: Settings) -> None:
    """Hashing is meant to be slow; nothing here tests it."""
    settings.PASSWORD_HASHERS = ["django.contrib.auth.hashers.MD5PasswordHasher"]


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
