"""Issuers: what is wrong is named and nothing is written, what is right is audited and published."""

import json
from typing import Any

import pytest

from core.epochs import Section, current_epoch
from gateway.relay.rows import ISSUERS, IssuerRow
from gateway.services.snapshot_source import DatabaseSnapshotSource
from tenants.actor import SYSTEM
from tenants.models import AuditEvent, TokenIssuer
from tenants.services import InvalidInput, change_token_issuer, create_token_issuer, delete_token_issuer
from tests.doubles.issuer import TokenMaker, new_key, public_jwk
from tests.factories import make_tenant

pytestmark = pytest.mark.django_db

MAKER = TokenMaker()
RIGHT: dict[str, Any] = {
    "name": "House",
    "issuer": MAKER.issuer,
    "audiences": ["llm-api"],
    "jwks_url": "https://issuer.example/keys",
}


def test_an_issuer_is_audited_and_published() -> None:
    before = current_epoch(Section.ISSUERS)
    issuer = create_token_issuer(actor=SYSTEM, **RIGHT, role_scopes={"ml": ["train", "infer"]})
    change_token_issuer(issuer.pk, actor=SYSTEM, leeway_seconds=5)
    change_token_issuer(issuer.pk, actor=SYSTEM, leeway_seconds=5.0)  # nothing changes
    delete_token_issuer(issuer.pk, actor=SYSTEM)
    assert current_epoch(Section.ISSUERS) == before + 3
    events = AuditEvent.objects.filter(subject_id=issuer.pk).order_by("id")
    assert [event.action for event in events] == [
        "token_issuer.created", "token_issuer.changed", "token_issuer.deleted",
    ]  # fmt: skip
    assert (events[1].before, events[1].after) == ({"leeway_seconds": 30.0}, {"leeway_seconds": 5})


@pytest.mark.django_db(transaction=True)
def test_a_snapshot_has_all_of_an_issuer() -> None:
    tenant = make_tenant()
    issuer = create_token_issuer(
        actor=SYSTEM,
        **RIGHT | {"jwks_url": "https://10.0.0.1/keys"},
        algorithms=["ES256", "RS256", "ES256"],
        pinned_jwks=MAKER.key_set(),
        allow_private=True,
        leeway_seconds=0,
        tenant=tenant,
        tenant_claim="org",
        scope_claim="scp",
        role_claim="groups",
        role_scopes={"ml": ["train", "infer"]},
        default_scopes=["embed"],
    )
    row = IssuerRow(
        id=issuer.pk,
        issuer=MAKER.issuer,
        audiences=("llm-api",),
        algorithms=("ES256", "RS256"),
        jwks_url="https://10.0.0.1/keys",
        pinned_jwks=MAKER.key_set(),
        allow_private=True,
        leeway_seconds=0.0,
        tenant_id=tenant.pk,
        tenant_claim="org",
        scope_claim="scp",
        role_claim="groups",
        role_scopes=(("ml", ("infer", "train")),),
        default_scopes=("embed",),
    )
    source = DatabaseSnapshotSource()
    try:
        assert list(source.load_section(ISSUERS).rows) == [row]
        assert list(source.load_objects(ISSUERS, [issuer.pk]).rows) == [row]
    finally:
        source.close()


PRIVATE_KEYS = json.dumps({"keys": [public_jwk(new_key("RS256"), "a", d="AA")]})
CURVE_KEYS = json.dumps({"keys": [public_jwk(new_key("ES256"), "a")]})


@pytest.mark.parametrize(
    ("wrong", "field"),
    [
        ({"name": " "}, "name"),
        ({"name": "x" * 81}, "name"),
        ({"issuer": ""}, "issuer"),
        ({"issuer": "x" * 501}, "issuer"),
        ({"audiences": []}, "audiences"),
        ({"audiences": "llm-api"}, "audiences"),
        ({"audiences": [""]}, "audiences"),
        ({"audiences": ["a"] * 101}, "audiences"),
        ({"algorithms": []}, "algorithms"),
        ({"algorithms": ["none"]}, "algorithms"),
        ({"algorithms": ["HS256"]}, "algorithms"),
        ({"algorithms": ["RS256", "PS256"]}, "algorithms"),
        ({"jwks_url": ""}, "jwks_url"),
        ({"jwks_url": "http://issuer.example/keys"}, "jwks_url"),
        ({"jwks_url": "https://127.0.0.1/keys"}, "jwks_url"),
        ({"jwks_url": "https://169.254.169.254/keys", "allow_private": True}, "jwks_url"),
        ({"jwks_url": "http://10.0.0.1/keys", "allow_private": True}, "jwks_url"),
        ({"jwks_url": "https://user:word@issuer.example/"}, "jwks_url"),
        ({"pinned_jwks": "{}"}, "pinned_jwks"),
        ({"pinned_jwks": PRIVATE_KEYS}, "pinned_jwks"),
        ({"pinned_jwks": CURVE_KEYS}, "pinned_jwks"),  # RS256 is the only algorithm
        ({"leeway_seconds": -1}, "leeway_seconds"),
        ({"leeway_seconds": 300.5}, "leeway_seconds"),
        ({"leeway_seconds": float("nan")}, "leeway_seconds"),
        ({"leeway_seconds": "30"}, "leeway_seconds"),
        ({"tenant_claim": ""}, "tenant_claim"),
        ({"role_scopes": {"ml": ["fly"]}}, "role_scopes"),
        ({"role_scopes": {"ml": "infer"}}, "role_scopes"),
        ({"role_scopes": ["ml"]}, "role_scopes"),
        ({"default_scopes": ["*"]}, "default_scopes"),
        ({"colour": "red"}, "colour"),
    ],
)
def test_what_is_wrong_is_named_and_nothing_is_written(wrong: dict[str, Any], field: str) -> None:
    with pytest.raises(InvalidInput) as refused:
        create_token_issuer(actor=SYSTEM, **RIGHT | wrong)
    assert refused.value.field == field
    good = create_token_issuer(actor=SYSTEM, **RIGHT)
    epoch = current_epoch(Section.ISSUERS)
    with pytest.raises(InvalidInput) as refused:
        change_token_issuer(good.pk, actor=SYSTEM, **wrong)
    assert refused.value.field == field
    assert (TokenIssuer.objects.count(), current_epoch(Section.ISSUERS)) == (1, epoch)
    assert TokenIssuer.objects.get().name == "House"


def test_an_issuer_is_there_once() -> None:
    create_token_issuer(actor=SYSTEM, **RIGHT)
    with pytest.raises(InvalidInput) as refused:
        create_token_issuer(actor=SYSTEM, **RIGHT)
    assert refused.value.field == "issuer"


def test_a_refused_private_key_is_kept_nowhere() -> None:
    with pytest.raises(InvalidInput) as refused:
        create_token_issuer(actor=SYSTEM, **RIGHT | {"pinned_jwks": PRIVATE_KEYS})
    assert "private" in refused.value.message
    assert not AuditEvent.objects.filter(subject_type="tenants.TokenIssuer").exists()
