"""Fixtures for the tests of tenants."""

import pytest
from pytest_django import Settings


@pytest.fixture(autouse=True)
def _cheap_passwords(settings: Settings) -> None:
    """People are made by the dozen here, and a password's real hash takes a third of a second each."""
    settings.PASSWORD_HASHERS = ["django.contrib.auth.hashers.MD5PasswordHasher"]
