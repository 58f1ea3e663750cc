"""Checks one token: its shape and head, its issuer's key, its signature, its claims. No I/O, no cache.

PyJWT checks the signature; all else is decided before it is asked. What a token's head says is only ever compared
with what the issuer's row allows: it never chooses where keys come from (jku, x5u, jwk) or how they are used.
"""

from base64 import urlsafe_b64decode
from typing import Any, Final

import msgspec
from jwt import PyJWS
from jwt.exceptions import PyJWTError

from gateway.relay.rows import IssuerRow
from gateway.relay.tokens.claims import Claims, Refused, read_claims
from tenants.policies.token_keys import ALGORITHMS, KeySet

MOST_BYTES: Final = 8192
_LONGEST_HEAD: Final = 2048
_LONGEST_KID: Final = 200
_TYPES: Final = frozenset({"jwt", "at+jwt", "application/at+jwt", "application/jwt"})
_ALPHABET: Final = frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_")

_jws = PyJWS(algorithms=sorted(ALGORITHMS))


class UnknownKey(Refused):
    """The issuer's keys, as far as they are known here, have none of that name: there may be newer ones."""


class Head(msgspec.Struct, frozen=True):
    """What an unverified token says of itself."""

    issuer: str
    algorithm: str
    kid: str | None


def looks_like_token(credential: str) -> bool:
    """Three parts of base64url, the first one a JSON object. Our keys have no dots."""
    return credential.startswith("eyJ") and credential.count(".") == 2


def read_head(token: str) -> Head:
    """Whom a token is said to be from. Raises Refused for what cannot be one, or asks for what is not done here."""
    if len(token) > MOST_BYTES:
        raise Refused("too_large")
    if not set(token) <= _ALPHABET | {"."}:
        raise Refused("malformed")
    head, payload, signature = token.split(".")
    if not (payload and signature) or len(head) > _LONGEST_HEAD:
        raise Refused("malformed")
    header, claims = _object(head), _object(payload)
    algorithm, kid, issuer = header.get("alg"), header.get("kid"), claims.get("iss")
    if not isinstance(algorithm, str) or algorithm not in ALGORITHMS:
        raise Refused("algorithm_not_allowed")  # none and HS256 among them
    if "crit" in header or "b64" in header:
        raise Refused("extension_not_supported")
    if "typ" in header and str(header["typ"]).lower() not in _TYPES:
        raise Refused("wrong_type")
    if kid is not None and (not isinstance(kid, str) or not 0 < len(kid) <= _LONGEST_KID):
        raise Refused("malformed")
    if not isinstance(issuer, str):
        raise Refused("no_issuer")
    return Head(issuer, algorithm, kid)


def verify(token: str, head: Head, issuer: IssuerRow, keys: KeySet, now: float) -> Claims:
    """The claims of a token that is believed. Raises UnknownKey, Refused.

    50 to 120 us with RSA, P-256 and Ed25519 keys, 500 us with P-384 and P-521: no more than a hop to a thread and back,
    so it is done where it is called.
    """
    if head.algorithm not in issuer.algorithms:
        raise Refused("algorithm_not_allowed")
    key = keys.find(head.kid, head.algorithm)
    if key is None:
        if head.kid is not None and keys.has(head.kid):
            raise Refused("key_does_not_fit")
        raise UnknownKey("unknown_key")
    try:
        payload: bytes = _jws.decode_complete(token, key.key, algorithms=[head.algorithm])["payload"]
    except (PyJWTError, ValueError, TypeError) as error:
        raise Refused("bad_signature") from error
    return read_claims(payload, issuer, now)


def _object(part: str) -> dict[str, Any]:
    try:
        value: Any = msgspec.json.decode(urlsafe_b64decode(part + "=" * (-len(part) % 4)))
    except (msgspec.DecodeError, ValueError, RecursionError) as error:
        raise Refused("malformed") from error
    if not isinstance(value, dict):
        raise Refused("malformed")
    return value
