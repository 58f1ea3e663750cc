"""Whose traffic an instance may serve: a signature that the node's agent checks before it switches. Pure.

An instance without a tenant serves whoever may use its model. One with a tenant serves that one alone, for as long as
its claim lasts: the row that names the tenant is signed over (tenant, instance, fencing token) with a key that only the
control plane and this node have. A signature made for another node, another instance or an earlier claim says nothing
here, and what was bound under a claim is never bound anew under it: the next tenant comes with the next claim.
"""

import hashlib
import hmac
from dataclasses import dataclass
from typing import Final, assert_never
from uuid import UUID

_PURPOSE: Final = b"gatehouse tenant switch v1"


@dataclass(frozen=True, slots=True)
class Binding:
    """What is signed."""

    tenant_id: UUID
    instance_id: UUID
    fencing_token: int

    def message(self) -> bytes:
        """Every field of a fixed length, so that no two bindings have the same bytes."""
        return b"".join((_PURPOSE, self.tenant_id.bytes, self.instance_id.bytes, self.fencing_token.to_bytes(8, "big")))


@dataclass(frozen=True, slots=True)
class Shared:
    """No tenant is asked for and none is bound: nothing to check."""


@dataclass(frozen=True, slots=True)
class Switched:
    """Its traffic may come. `tenant_id` is bound from now on."""

    tenant_id: UUID


@dataclass(frozen=True, slots=True)
class Barred:
    """It must not, and why, in a sentence for the operator."""

    reason: str


Decision = Shared | Switched | Barred


def token_digest(token: str) -> str:
    """What the control plane keeps of a node's token: SHA-256 as hex."""
    return hashlib.sha256(token.encode()).hexdigest()


def switch_key(digest: str) -> bytes:
    """The key of one node, from the digest of its token: HKDF-SHA256 (RFC 5869) without salt, one block.

    Both sides have the digest and neither sends it. A rotated token gives another key.
    """
    extracted = hmac.digest(bytes(32), digest.encode(), "sha256")
    return hmac.digest(extracted, _PURPOSE + b"\x01", "sha256")


def sign(key: bytes, binding: Binding) -> str:
    """HMAC-SHA256 as hex."""
    return hmac.digest(key, binding.message(), "sha256").hex()


def is_signed(key: bytes, binding: Binding, signature: str) -> bool:
    """Whether `signature` is this binding's; compared in constant time."""
    return hmac.compare_digest(sign(key, binding).encode(), signature.encode())


def decide_switch(
    *,
    key: bytes,
    instance_id: UUID,
    tenant_id: UUID | None,
    fencing_token: int,
    signature: str,
    bound: UUID | None,
    seen_token: int,
    serving: bool,
) -> Decision:
    """Whether a row's tenant may be switched to.

    `bound` is the tenant that was verified under `seen_token`, the highest fencing token known of the instance.
    `serving` is whether it takes requests now: an instance that others used is not handed to one tenant while its
    cache holds what they asked.
    """
    if fencing_token < seen_token:
        return Barred(f"The row's fencing token {fencing_token} is older than {seen_token}: its claim is over.")
    held = bound if fencing_token == seen_token else None
    if tenant_id is None:
        return Shared() if held is None else Barred("Under this claim it is bound to a tenant, and stays so.")
    if held is not None and held != tenant_id:
        return Barred("Under this claim it is bound to another tenant. Stop it, and start one for this tenant.")
    if not is_signed(key, Binding(tenant_id, instance_id, fencing_token), signature):
        return Barred("The tenant's signature does not match: it is forged, damaged or of another claim.")
    if held is None and serving:
        return Barred("It serves other tenants now. It must sleep before it is bound to one.")
    return Switched(tenant_id)


def routed_tenant(decision: Decision, bound: UUID | None) -> UUID | None:
    """The tenant that stays verified after the decision."""
    match decision:
        case Switched(tenant_id=tenant_id):
            return tenant_id
        case Barred():
            return bound
        case Shared():
            return None
        case _:
            assert_never(decision)
