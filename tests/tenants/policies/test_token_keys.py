"""Key sets: public, strong and for signatures, or passed over; given by hand, refused."""

import json
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric import ec, ed448, rsa
from jwt.algorithms import ECAlgorithm, OKPAlgorithm, RSAAlgorithm

from tenants.policies.token_keys import MOST_KEYS, BadKeySet, read_key_set
from tests.doubles.issuer import new_key, public_jwk

GOOD = public_jwk(new_key("RS256"), "good")
WEAK = RSAAlgorithm.to_jwk(rsa.generate_private_key(public_exponent=65537, key_size=1024).public_key(), as_dict=True)
ODD_CURVE = ECAlgorithm.to_jwk(ec.generate_private_key(ec.SECP256K1()).public_key(), as_dict=True)
PRIVATE_RSA: Any = new_key("RS256")
PRIVATE_EC: Any = new_key("ES256")


@pytest.mark.parametrize(
    ("algorithm", "fits"),
    [
        ("RS256", {"RS256", "RS384", "RS512"}),
        ("ES256", {"ES256"}),
        ("ES384", {"ES384"}),
        ("ES512", {"ES512"}),
        ("EdDSA", {"EdDSA"}),
    ],
)
def test_a_key_fits_the_algorithms_of_its_kind_and_curve(algorithm: str, fits: set[str]) -> None:
    entry = public_jwk(new_key(algorithm), "one")
    (key,) = read_key_set(json.dumps({"keys": [entry]})).keys
    assert (key.kid, {*key.algorithms}) == ("one", fits)
    (bound,) = read_key_set(json.dumps({"keys": [entry | {"alg": algorithm}]}), strict=True).keys
    assert bound.algorithms == {algorithm}


@pytest.mark.parametrize(
    ("entry", "why"),
    [
        ({"kty": "oct", "k": "c2VjcmV0"}, "shared secret"),
        (RSAAlgorithm.to_jwk(PRIVATE_RSA, as_dict=True), "private key"),
        (ECAlgorithm.to_jwk(PRIVATE_EC, as_dict=True), "private key"),
        (WEAK, "1024"),
        (ODD_CURVE, "curve"),
        (OKPAlgorithm.to_jwk(ed448.Ed448PrivateKey.generate().public_key(), as_dict=True), "curve"),
        ({"kty": "OKP", "crv": "X25519", "x": "A" * 43}, "cannot be read"),
        (GOOD | {"use": "enc"}, "not for signatures"),
        (GOOD | {"key_ops": ["encrypt"]}, "not for signatures"),
        (GOOD | {"alg": "PS256"}, "algorithm"),
        (GOOD | {"alg": "ES256"}, "algorithm"),
        (GOOD | {"alg": 7}, "algorithm"),
        (GOOD | {"n": "!!"}, "cannot be read"),
        (GOOD | {"n": None}, "cannot be read"),
        ({"kty": "RSA"}, "cannot be read"),
        ({"kty": "EC", "crv": "P-256", "x": "AA", "y": "AA"}, "cannot be read"),
        ({"kty": "WEIRD"}, "none of RSA"),
        ({}, "none of RSA"),
        (GOOD | {"kid": 7}, "kid"),
        (GOOD | {"kid": "k" * 201}, "kid"),
        ("key", "not an object"),
    ],
)
def test_what_may_not_be_used_is_passed_over_or_refused(entry: Any, why: str) -> None:
    both = json.dumps({"keys": [GOOD, entry]})
    found = read_key_set(both)
    assert [key.kid for key in found.keys] == ["good"]
    assert why in found.passed_over[0]
    with pytest.raises(BadKeySet, match=why):
        read_key_set(both, strict=True)
    with pytest.raises(BadKeySet, match=why):
        read_key_set(json.dumps({"keys": [entry]}))


@pytest.mark.parametrize(
    "text", ["", "[]", "{}", "null", '{"keys": {}}', '{"keys": []}', "<html>", "[" * 100_000, '{"keys": "x"}', b"\xff"]
)
def test_what_is_no_key_set_is_refused(text: str | bytes) -> None:
    with pytest.raises(BadKeySet):
        read_key_set(text)


def test_a_set_has_bounds() -> None:
    with pytest.raises(BadKeySet, match="more than"):
        read_key_set(json.dumps({"keys": [GOOD] * (MOST_KEYS + 1)}))


def test_two_keys_of_one_name_are_no_key() -> None:
    twice = read_key_set(json.dumps({"keys": [GOOD, public_jwk(new_key("RS256", 1), "good")]}))
    assert twice.find("good", "RS256") is None
    kinds = read_key_set(json.dumps({"keys": [GOOD, public_jwk(new_key("ES256"), "good")]}))
    assert kinds.find("good", "ES256") is kinds.keys[1]
