"""Whose traffic an instance may serve: signatures, claims, and what is bound already."""

from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpupool.policies.tenant_switch import (
    Barred,
    Binding,
    Decision,
    Shared,
    Switched,
    decide_switch,
    is_signed,
    routed_tenant,
    sign,
    switch_key,
    token_digest,
)

KEY = switch_key(token_digest("gn-one"))
OTHER_NODE = switch_key(token_digest("gn-two"))
A, B, INSTANCE = UUID(int=1), UUID(int=2), UUID(int=9)


def switch(
    tenant: UUID | None = A,
    *,
    token: int = 7,
    signature: str | None = None,
    bound: UUID | None = None,
    seen: int = 7,
    serving: bool = False,
) -> Decision:
    if signature is None:
        signature = sign(KEY, Binding(tenant, INSTANCE, token)) if tenant else ""
    return decide_switch(
        key=KEY,
        instance_id=INSTANCE,
        tenant_id=tenant,
        fencing_token=token,
        signature=signature,
        bound=bound,
        seen_token=seen,
        serving=serving,
    )


def refusal(decision: Decision) -> str:
    assert isinstance(decision, Barred)
    return decision.reason


@pytest.mark.shows("R17")
def test_a_signed_row_switches_to_its_tenant() -> None:
    assert switch() == Switched(A)
    assert switch(bound=A, serving=True) == Switched(A)  # it serves that tenant already
    assert switch(seen=0) == Switched(A)  # a first claim


@pytest.mark.shows("R17")
@pytest.mark.parametrize(
    "signature",
    [
        pytest.param("", id="none"),
        pytest.param("0" * 64, id="made up"),
        pytest.param("é" * 64, id="not even hexadecimal"),
        pytest.param(sign(OTHER_NODE, Binding(A, INSTANCE, 7)), id="of another node"),
        pytest.param(sign(KEY, Binding(B, INSTANCE, 7)), id="of another tenant"),
        pytest.param(sign(KEY, Binding(A, UUID(int=8), 7)), id="of another instance"),
        pytest.param(sign(KEY, Binding(A, INSTANCE, 6)), id="of an earlier claim"),
    ],
)
def test_a_forged_signature_switches_nothing(signature: str) -> None:
    assert "signature does not match" in refusal(switch(signature=signature))


@pytest.mark.shows("R17")
def test_a_stale_fencing_token_switches_nothing_however_well_it_is_signed() -> None:
    assert "older than 8" in refusal(switch(token=7, seen=8))


def test_what_is_bound_under_a_claim_stays_bound_under_it() -> None:
    assert "another tenant" in refusal(switch(B, bound=A))
    assert "stays so" in refusal(switch(None, bound=A))
    assert switch(B, token=8, bound=A, seen=7) == Switched(B)  # the next claim
    assert switch(None, token=8, bound=A, seen=7) == Shared()


def test_one_that_others_use_is_not_handed_to_a_tenant_awake() -> None:
    assert "must sleep" in refusal(switch(serving=True))
    assert switch(None, serving=True) == Shared()


def test_what_stays_verified() -> None:
    assert routed_tenant(Switched(A), None) == A
    assert routed_tenant(Barred("no"), A) == A
    assert routed_tenant(Shared(), None) is None


@given(st.integers(0, 2**63 - 1), st.uuids(), st.uuids(), st.integers(0, 255), st.integers(0, 55))
def test_no_bit_of_a_binding_is_free(token: int, tenant: UUID, instance: UUID, value: int, place: int) -> None:
    signature = sign(KEY, Binding(tenant, instance, token))
    assert is_signed(KEY, Binding(tenant, instance, token), signature)
    data = bytearray(tenant.bytes + instance.bytes + token.to_bytes(8, "big") + bytes(16))
    data[place % 40] ^= value or 1
    changed = Binding(UUID(bytes=bytes(data[:16])), UUID(bytes=bytes(data[16:32])), int.from_bytes(data[32:40], "big"))
    assert not is_signed(KEY, changed, signature)


def test_the_key_is_the_published_derivation() -> None:
    """HKDF-SHA256 as the cryptography package has it, over what the control plane keeps of the token."""
    from cryptography.hazmat.primitives import hashes
    from cryptography.hazmat.primitives.kdf.hkdf import HKDF

    kdf = HKDF(algorithm=hashes.SHA256(), length=32, salt=None, info=b"gatehouse tenant switch v1")
    assert kdf.derive(token_digest("gn-one").encode()) == KEY
    assert KEY != OTHER_NODE
