"""The names under which secrets are known."""

import hashlib


def digest_secret(secret: str) -> str:
    """SHA-256 of a key's secret, as hex. No salt or stretching: the secret is 256 random bits."""
    return hashlib.sha256(secret.encode()).hexdigest()
