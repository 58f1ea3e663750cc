"""What is sealed is unreadable without the secret key, and opens for its own purpose alone."""

import pytest
from pytest_django import Settings

from core.sealing import Unreadable, seal, unseal


def test_what_is_sealed_comes_back_and_never_looks_the_same() -> None:
    sealed = [seal("JBSWY3DP 密", "a purpose") for _ in range(2)]
    assert sealed[0] != sealed[1]
    assert "JBSWY3DP" not in sealed[0]
    assert {unseal(one, "a purpose") for one in sealed} == {"JBSWY3DP 密"}


def test_another_purpose_or_key_opens_nothing(settings: Settings) -> None:
    sealed = seal("secret", "a purpose")
    with pytest.raises(Unreadable):
        unseal(sealed, "another purpose")
    old, settings.SECRET_KEY = settings.SECRET_KEY, "another-key" * 5
    with pytest.raises(Unreadable):
        unseal(sealed, "a purpose")
    settings.SECRET_KEY_FALLBACKS = [old]
    assert unseal(sealed, "a purpose") == "secret"


@pytest.mark.parametrize("damaged", ["", "x", "gAAAA", "\x00", "密"])
def test_what_is_damaged_is_said_to_be(damaged: str) -> None:
    with pytest.raises(Unreadable):
        unseal(damaged, "a purpose")
