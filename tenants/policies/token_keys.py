"""Public keys that tokens are signed with, out of JSON key sets (RFC 7517).

Only asymmetric signatures: whoever can check a token must not be able to make one. Each key is bound to the
algorithms of its kind and curve, so that none is ever used as something that it is not.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import msgspec
from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePublicKey
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPublicKey
from jwt.algorithms import ECAlgorithm, OKPAlgorithm, RSAAlgorithm
from jwt.exceptions import PyJWTError

ALGORITHMS: Final = frozenset({"RS256", "RS384", "RS512", "ES256", "ES384", "ES512", "EdDSA"})
FEWEST_RSA_BITS: Final = 2048  # NIST SP 800-131A
MOST_RSA_BITS: Final = 8192  # larger ones only cost time
MOST_KEYS: Final = 100
_SECRET_MEMBERS: Final = frozenset({"d", "p", "q", "dp", "dq", "qi", "oth", "k"})
_RSA: Final = frozenset({"RS256", "RS384", "RS512"})
_CURVES: Final = {"secp256r1": "ES256", "secp384r1": "ES384", "secp521r1": "ES512"}

PublicKey = RSAPublicKey | EllipticCurvePublicKey | Ed25519PublicKey


class BadKeySet(ValueError):
    """What is given is no key set, or has no key in it that may be used; the message says why."""


@dataclass(frozen=True, slots=True)
class TokenKey:
    """`kid` is empty where the set gives none."""

    kid: str
    algorithms: frozenset[str]
    key: PublicKey


@dataclass(frozen=True, slots=True)
class KeySet:
    """`passed_over` says of each key that was left out, why."""

    keys: tuple[TokenKey, ...]
    passed_over: tuple[str, ...] = ()

    def find(self, kid: str | None, algorithm: str) -> TokenKey | None:
        """The one key of that name that fits the algorithm; without a name, the only one that fits at all."""
        fitting = [one for one in self.keys if algorithm in one.algorithms and (kid is None or one.kid == kid)]
        return fitting[0] if len(fitting) == 1 else None

    def has(self, kid: str) -> bool:
        return any(one.kid == kid for one in self.keys)


def read_key_set(text: str | bytes, *, strict: bool = False) -> KeySet:
    """The public keys of a set.

    A key that may not be used is passed over; with `strict` (keys that a person gives) it is refused. Raises
    BadKeySet, also where nothing is left.
    """
    try:
        data: Any = msgspec.json.decode(text)
    except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
        raise BadKeySet("It is not JSON.") from error
    entries = data.get("keys") if isinstance(data, dict) else None
    if not isinstance(entries, list):
        raise BadKeySet('It is not a key set: {"keys": [...]}.')
    if len(entries) > MOST_KEYS:
        raise BadKeySet(f"It has more than {MOST_KEYS} keys.")
    keys: list[TokenKey] = []
    reasons: list[str] = []
    for index, entry in enumerate(entries):
        try:
            keys.append(_read_key(entry))
        except BadKeySet as error:
            reasons.append(f"Key {index + 1}: {error}")
    if strict and reasons:
        raise BadKeySet(reasons[0])
    if not keys:
        raise BadKeySet(reasons[0] if reasons else "It has no key.")
    return KeySet(tuple(keys), tuple(reasons))


def _read_key(entry: object) -> TokenKey:
    if not isinstance(entry, dict):
        raise BadKeySet("It is not an object.")
    kind, kid, said = entry.get("kty"), entry.get("kid", ""), entry.get("alg")
    if not isinstance(kid, str) or len(kid) > 200:
        raise BadKeySet("Its kid is not a text of at most 200 characters.")
    if kind == "oct":
        raise BadKeySet("It is a shared secret: whoever checks tokens with it could make them, too.")
    if _SECRET_MEMBERS & entry.keys():
        raise BadKeySet("It is a private key: give the public one, and replace this one wherever it is used.")
    if entry.get("use", "sig") != "sig" or "verify" not in entry.get("key_ops", ["verify"]):
        raise BadKeySet("It is not for signatures.")
    algorithms, key = _public_key(kind, entry)
    if said is not None:
        algorithms &= {said} if isinstance(said, str) else frozenset()
    if not algorithms:
        raise BadKeySet(f"Its algorithm is none of {', '.join(sorted(ALGORITHMS))}, or not its kind's.")
    return TokenKey(kid, algorithms, key)


def _public_key(kind: object, entry: Mapping[str, Any]) -> tuple[frozenset[str], PublicKey]:
    try:
        match kind:
            case "RSA":
                key: object = RSAAlgorithm.from_jwk(dict(entry))
            case "EC":
                key = ECAlgorithm.from_jwk(dict(entry))
            case "OKP":
                key = OKPAlgorithm.from_jwk(dict(entry))
            case _:
                raise BadKeySet("Its kind is none of RSA, EC and OKP.")
    except (PyJWTError, ValueError, TypeError, KeyError, AttributeError) as error:
        if isinstance(error, BadKeySet):
            raise
        raise BadKeySet("It cannot be read.") from error
    match key:
        case RSAPublicKey():
            if not FEWEST_RSA_BITS <= key.key_size <= MOST_RSA_BITS:
                raise BadKeySet(f"RSA keys have {FEWEST_RSA_BITS} to {MOST_RSA_BITS} bits, this one {key.key_size}.")
            return _RSA, key
        case EllipticCurvePublicKey() if key.curve.name in _CURVES:
            return frozenset({_CURVES[key.curve.name]}), key
        case Ed25519PublicKey():
            return frozenset({"EdDSA"}), key
        case _:
            raise BadKeySet("Its curve is none of P-256, P-384, P-521 and Ed25519.")
