"""What a token has to be to be believed, and all that it may not be."""

import base64
import hashlib
import hmac
import json
from typing import Any

import jwt
import pytest
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from gateway.relay.rows import IssuerRow
from gateway.relay.tokens.claims import Claims, Refused
from gateway.relay.tokens.verify import looks_like_token, read_head, verify
from tenants.policies.token_keys import read_key_set
from tenants.principal import subject_uuid
from tests.doubles.issuer import TokenMaker, new_key, public_jwk
from tests.gateway.relay.tokens.issuers import TENANT, issuer_row

NOW = 1_800_000_000.0
MAKER = TokenMaker()


def good(**claims: Any) -> dict[str, Any]:
    return {"iat": NOW, "exp": NOW + 60, **claims}


def check(token: str, row: IssuerRow | None = None, *, now: float = NOW, maker: TokenMaker = MAKER) -> Claims:
    return verify(token, read_head(token), row or issuer_row(maker), read_key_set(maker.key_set()), now)


def reason(token: str, row: IssuerRow | None = None, *, now: float = NOW) -> str:
    with pytest.raises(Refused) as refused:
        check(token, row, now=now)
    return refused.value.reason


def encode(part: object) -> str:
    raw = part if isinstance(part, bytes) else json.dumps(part).encode()
    return base64.urlsafe_b64encode(raw).rstrip(b"=").decode()


@pytest.mark.parametrize("algorithm", ["RS256", "RS384", "RS512", "ES256", "ES384", "ES512", "EdDSA"])
def test_a_good_token_of_each_algorithm_is_believed(algorithm: str) -> None:
    maker = TokenMaker(algorithm=algorithm)
    claims = check(maker.token(**good()), issuer_row(maker, algorithms=(algorithm,)), maker=maker)
    assert claims.subject_id == subject_uuid(maker.issuer, "robot@example.test")
    assert claims.tenant == TENANT
    assert claims.scopes == {"infer", "embed"}
    assert claims.expires_at == NOW + 60 + 30


def hmac_token(secret: bytes, algorithm: str = "HS256") -> str:
    signed = f"{encode({'alg': algorithm, 'typ': 'JWT', 'kid': 'key-0'})}.{encode(MAKER.claims(**good()))}"
    return f"{signed}.{encode(hmac.new(secret, signed.encode(), hashlib.sha256).digest())}"


def unsigned(algorithm: str) -> str:
    return f"{encode({'alg': algorithm, 'typ': 'JWT'})}.{encode(MAKER.claims(**good()))}."


PUBLIC_PEM = MAKER.key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
OTHER = TokenMaker(number=1)
FORGED_KEY: Any = new_key("RS256", 1)


def forged(**headers: Any) -> str:
    """Signed by another's key, whatever its head says."""
    head = {"kid": "key-0", **headers}
    return jwt.encode(MAKER.claims(**good()), FORGED_KEY, algorithm="RS256", headers=head)


def tampered() -> str:
    head, _, signature = MAKER.token(**good()).split(".")
    return f"{head}.{encode(MAKER.claims(**good(sub='another')))}.{signature}"


@pytest.mark.shows("R141")
@pytest.mark.parametrize(
    ("token", "why"),
    [
        (unsigned("none"), "malformed"),
        (f"{unsigned('none')}AA", "algorithm_not_allowed"),
        (f"{unsigned('None')}AA", "algorithm_not_allowed"),
        (hmac_token(PUBLIC_PEM), "algorithm_not_allowed"),  # key confusion: the public key as a shared secret
        (hmac_token(MAKER.key_set().encode()), "algorithm_not_allowed"),
        (hmac_token(b""), "algorithm_not_allowed"),
        (hmac_token(PUBLIC_PEM, "RS256"), "bad_signature"),
        (TokenMaker(algorithm="RS512").token(**good()), "algorithm_not_allowed"),  # not one of the issuer's
        (forged(), "bad_signature"),
        (forged(jwk=public_jwk(FORGED_KEY, "key-0")), "bad_signature"),  # keys of the token's own choosing
        (forged(jku="https://evil.example/keys", x5u="https://evil.example/chain"), "bad_signature"),
        (forged(x5c=["MIIB"]), "bad_signature"),
        (tampered(), "bad_signature"),
        (MAKER.token(headers={"kid": "key-9"}, **good()), "unknown_key"),
        (MAKER.token(headers={"kid": "../../etc/passwd"}, **good()), "unknown_key"),
        (OTHER.token(**good()), "unknown_key"),  # a key of another issuer
        (MAKER.token(headers={"crit": ["exp"], "exp": 1}, **good()), "extension_not_supported"),
        (MAKER.token(headers={"typ": "dpop+jwt"}, **good()), "wrong_type"),
        (MAKER.token(headers={"kid": "k" * 201}, **good()), "malformed"),
        (MAKER.token(pad="x" * 9000, **good()), "too_large"),
        ("eyJ.eyJ.sig", "malformed"),
        (f"{encode([])}.{encode({})}.AA", "malformed"),
        (f"{encode({'alg': 'RS256'})}.{encode({})}.AA", "no_issuer"),
        (f"{encode({'alg': 'RS256'})}.{encode({'iss': 'x'})}.A!", "malformed"),
        (f"{encode({'alg': ['RS256']})}.{encode({'iss': 'x'})}.AA", "algorithm_not_allowed"),
        (f"{encode(b'[' * 1400)}.{encode({'iss': 'x'})}.AA", "malformed"),
        (MAKER.token(**good(aud="other-api")), "wrong_audience"),
        (MAKER.token(**good(aud=["other-api", "llm-apix"])), "wrong_audience"),
        (MAKER.token(**good(aud="llm-api other-api")), "wrong_audience"),
        (MAKER.token(**good(aud=None)), "wrong_audience"),
        (MAKER.token(**good(iss="https://issuer.example/")), "wrong_issuer"),
        (MAKER.token(**good(exp=None)), "no_expiry"),
        (MAKER.token(**good(exp=NOW - 31)), "expired"),
        (MAKER.token(**good(exp=True)), "times_malformed"),
        (MAKER.token(**good(exp=1e300)), "times_malformed"),
        (MAKER.token(**good(exp=-5)), "times_malformed"),
        (MAKER.token(**good(nbf=NOW + 31)), "not_yet_valid"),
        (MAKER.token(**good(iat=NOW + 31)), "issued_in_the_future"),
        (MAKER.token(**good(sub=None)), "no_subject"),
        (MAKER.token(**good(sub="")), "no_subject"),
    ],
)
def test_what_is_not_believed(token: str, why: str) -> None:
    assert reason(token) == why


def test_times_that_are_no_numbers_are_refused() -> None:
    for claims in ({"exp": "9999999999"}, {"exp": [1]}, {"nbf": "soon"}):
        payload = MAKER.claims(**good()) | claims
        signing: Any = MAKER.key
        token = jwt.PyJWS().encode(json.dumps(payload).encode(), signing, "RS256", {"kid": "key-0"})
        assert reason(token) == "times_malformed"


@pytest.mark.shows("G28")
@pytest.mark.parametrize("leeway", [0.0, 30.0, 300.0])
def test_the_leeway_is_the_issuers_own_and_ends_to_the_second(leeway: float) -> None:
    row = issuer_row(MAKER, leeway_seconds=leeway)
    token = MAKER.token(**good(nbf=NOW))
    assert check(token, row, now=NOW + 60 + leeway - 0.001).expires_at == NOW + 60 + leeway
    assert reason(token, row, now=NOW + 60 + leeway) == "expired"
    assert check(token, row, now=NOW - leeway).tenant == TENANT
    assert reason(token, row, now=NOW - leeway - 0.001) == "not_yet_valid"


def test_a_token_that_is_not_valid_yet_says_when_to_look_again() -> None:
    token = MAKER.token(**good(nbf=NOW + 100))
    with pytest.raises(Refused) as refused:
        check(token)
    assert refused.value.until == NOW + 70


def test_without_a_kid_the_only_key_that_fits_is_taken() -> None:
    maker = TokenMaker()
    assert check(maker.token(headers={"kid": None}, **good()), maker=maker).tenant == TENANT
    maker.rotate()
    with pytest.raises(Refused):
        check(maker.token(headers={"kid": None}, **good()), maker=maker)


def test_a_key_is_used_for_its_own_algorithm_only() -> None:
    """An elliptic key under the kid that the token names, which says RS256."""
    curve = new_key("ES256")
    keys = read_key_set(json.dumps({"keys": [public_jwk(curve, "key-0")]}))
    token = MAKER.token(**good())
    with pytest.raises(Refused) as refused:
        verify(token, read_head(token), issuer_row(MAKER), keys, NOW)
    assert refused.value.reason == "key_does_not_fit"


@pytest.mark.shows("R141")
@pytest.mark.parametrize(
    ("claims", "scopes"),
    [
        ({"scope": "infer embed"}, {"infer", "embed"}),
        ({"scope": ["infer"]}, {"infer"}),
        ({"scope": "openid profile train"}, {"train"}),
        ({"scope": None, "roles": ["ml"]}, {"infer", "train"}),
        ({"scope": "embed", "roles": "ml"}, {"embed", "infer", "train"}),
        ({"scope": None, "roles": ["nobody"]}, {"embed"}),
        ({"scope": None}, {"embed"}),
        ({"scope": 7, "roles": {"ml": 1}}, {"embed"}),
    ],
)
def test_scopes_come_from_the_scope_claim_and_the_roles_or_else_the_default(
    claims: dict[str, Any], scopes: set[str]
) -> None:
    row = issuer_row(MAKER, role_scopes=(("ml", ("infer", "train")),), default_scopes=("embed",))
    assert check(MAKER.token(**good(**claims)), row).scopes == scopes


def test_claims_are_found_by_their_name_or_by_the_way_to_them() -> None:
    row = issuer_row(MAKER, role_claim="realm_access.roles", role_scopes=(("ml", ("train",)),))
    assert check(MAKER.token(**good(scope=None, realm_access={"roles": ["ml"]})), row).scopes == {"train"}
    row = issuer_row(MAKER, role_claim="https://x.example/roles", role_scopes=(("ml", ("train",)),))
    assert check(MAKER.token(**good(scope=None, **{"https://x.example/roles": ["ml"]})), row).scopes == {"train"}


@pytest.mark.shows("R141")
def test_the_tenant_is_the_issuers_or_the_claims() -> None:
    row = issuer_row(MAKER, tenant_id=None)
    assert check(MAKER.token(**good(tid="acme")), row).tenant == "acme"
    assert check(MAKER.token(**good(tid=str(TENANT))), row).tenant == TENANT
    assert reason(MAKER.token(**good()), row) == "no_tenant"
    assert reason(MAKER.token(**good(tid=7)), row) == "no_tenant"
    assert check(MAKER.token(**good(tid="other")), issuer_row(MAKER)).tenant == TENANT


def test_what_looks_like_a_token() -> None:
    assert looks_like_token(MAKER.token(**good()))
    assert not looks_like_token("sk-gh-abc")
    assert not looks_like_token("eyJhbGciOi")
    assert not looks_like_token("eyJ.a.b.c.d")  # encrypted ones have five parts
