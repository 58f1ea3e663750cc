"""Secrets that the database must hold, such that it holds nothing readable."""

import base64
from functools import lru_cache

from cryptography.fernet import Fernet, InvalidToken, MultiFernet
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from django.conf import settings


class Unreadable(Exception):
    """It was sealed with another secret key or for another purpose, or is damaged."""


def seal(text: str, purpose: str) -> str:
    """Encrypt with a key derived from SECRET_KEY for this purpose alone."""
    return _box(purpose).encrypt(text.encode()).decode("ascii")


def unseal(sealed: str, purpose: str) -> str:
    """Raises Unreadable. Keys in SECRET_KEY_FALLBACKS still open what they sealed."""
    try:
        return _box(purpose).decrypt(sealed.encode()).decode()
    except InvalidToken as error:
        raise Unreadable(f"a sealed {purpose} cannot be read: was SECRET_KEY changed?") from error


def _box(purpose: str) -> MultiFernet:
    keys = (settings.SECRET_KEY, *settings.SECRET_KEY_FALLBACKS)
    return MultiFernet([Fernet(_derived(key, purpose)) for key in keys])


@lru_cache(maxsize=64)
def _derived(key: str, purpose: str) -> bytes:
    kdf = HKDF(algorithm=hashes.SHA256(), length=32, salt=None, info=f"gatehouse sealing: {purpose}".encode())
    return base64.urlsafe_b64encode(kdf.derive(key.encode()))
