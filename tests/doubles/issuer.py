"""An issuer of tokens of a test's own: its keys, the tokens that it signs, and the key set that it publishes."""

import json
import time
from collections.abc import Mapping
from functools import cache
from typing import Any, Final

import jwt
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from jwt.algorithms import ECAlgorithm, OKPAlgorithm, RSAAlgorithm

PrivateKey = rsa.RSAPrivateKey | ec.EllipticCurvePrivateKey | ed25519.Ed25519PrivateKey

AUDIENCE: Final = "llm-api"


@cache
def new_key(algorithm: str, number: int = 0) -> PrivateKey:
    """A key of the algorithm's kind; the same one for the same number, because RSA keys take their time."""
    if algorithm.startswith("RS"):
        return rsa.generate_private_key(public_exponent=65537, key_size=2048)
    if algorithm == "EdDSA":
        return ed25519.Ed25519PrivateKey.generate()
    curves = {"ES256": ec.SECP256R1(), "ES384": ec.SECP384R1(), "ES512": ec.SECP521R1()}
    return ec.generate_private_key(curves[algorithm])


def public_jwk(key: PrivateKey, kid: str | None, **members: Any) -> dict[str, Any]:
    """The public key as an entry of a key set."""
    public = key.public_key()
    if isinstance(public, rsa.RSAPublicKey):
        entry = RSAAlgorithm.to_jwk(public, as_dict=True)
    elif isinstance(public, ec.EllipticCurvePublicKey):
        entry = ECAlgorithm.to_jwk(public, as_dict=True)
    else:
        entry = OKPAlgorithm.to_jwk(public, as_dict=True)
    entry = {name: value for name, value in entry.items() if name != "key_ops"}
    return {**entry, **({"kid": kid} if kid else {}), **members}


class TokenMaker:
    """Signs as `issuer` with the newest of its keys, which `rotate` replaces."""

    def __init__(self, issuer: str = "https://issuer.example", *, algorithm: str = "RS256", number: int = 0) -> None:
        self.issuer = issuer
        self.algorithm = algorithm
        self._number = number
        self.kids = [f"key-{number}"]
        self._keys = {self.kids[0]: new_key(algorithm, number)}

    @property
    def key(self) -> PrivateKey:
        return self._keys[self.kids[-1]]

    def rotate(self, *, keep: bool = True) -> None:
        """Sign with another key from now on; without `keep` the one before is published no longer."""
        self._number += 1
        kid = f"key-{self._number}"
        self._keys[kid] = new_key(self.algorithm, self._number)
        self.kids = [*(self.kids if keep else ()), kid]

    def key_set(self) -> str:
        return json.dumps({"keys": [public_jwk(self._keys[kid], kid) for kid in self.kids]})

    def claims(self, **claims: Any) -> dict[str, Any]:
        """What a good token says; `None` leaves a claim out."""
        now = time.time()
        said = {
            "iss": self.issuer, "aud": AUDIENCE, "sub": "robot@example.test", "iat": now, "exp": now + 600,
            "scope": "infer embed", **claims,
        }  # fmt: skip
        return {name: value for name, value in said.items() if value is not None}

    def token(self, *, headers: Mapping[str, Any] | None = None, **claims: Any) -> str:
        head = {"kid": self.kids[-1], **(headers or {})}
        head = {name: value for name, value in head.items() if value is not None}
        signing: Any = self.key
        return jwt.encode(self.claims(**claims), signing, algorithm=self.algorithm, headers=head)
