"""Fixtures for the tests of pages."""

import pytest
from pytest_django import Settings


@pytest.fixture(autouse=True)
def _cheap_passwords(settings: Settings) -> None:
    """Hashing is meant to be slow; nothing here tests it."""
    settings.PASSWORD_HASHERS = ["django.contrib.auth.hashers.MD5PasswordHasher"]
