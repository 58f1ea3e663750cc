"""What a token says, once its signature holds: whose it is, what it may, and from when until when."""

import math
from collections.abc import Mapping
from typing import Any, Final
from uuid import UUID

import msgspec

from gateway.relay.rows import IssuerRow
from tenants.policies.rbac import ACTIONS
from tenants.principal import subject_uuid

_LONGEST_SUBJECT: Final = 1000
_MOST_NAMES: Final = 1000
_LAST_TIME: Final = 1e11  # seconds since the epoch: the year 5138


class Refused(Exception):
    """Why a token is not believed, in a word: for logs, never for its sender."""

    def __init__(self, reason: str, *, until: float = math.inf) -> None:
        self.reason = reason
        self.until = until  # seconds since the epoch: the verdict may be another one from then on
        super().__init__(reason)


class Claims(msgspec.Struct, frozen=True):
    """A token's claims as its issuer's row reads them."""

    subject_id: UUID
    tenant: UUID | str  # an id, or a slug
    scopes: frozenset[str]
    expires_at: float  # seconds since the epoch, the leeway included: from then on it is refused


def read_claims(payload: bytes, issuer: IssuerRow, now: float) -> Claims:
    """Raises Refused. `now`: seconds since the epoch."""
    try:
        claims: Any = msgspec.json.decode(payload)
    except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
        raise Refused("claims_malformed") from error
    if not isinstance(claims, dict):
        raise Refused("claims_malformed")
    if claims.get("iss") != issuer.issuer:
        raise Refused("wrong_issuer")
    if not _names(claims.get("aud"), split=False) & set(issuer.audiences):
        raise Refused("wrong_audience")
    expires_at = _check_times(claims, issuer.leeway_seconds, now)
    subject = claims.get("sub")
    if not isinstance(subject, str) or not 0 < len(subject) <= _LONGEST_SUBJECT:
        raise Refused("no_subject")
    return Claims(subject_uuid(issuer.issuer, subject), _tenant(claims, issuer), _scopes(claims, issuer), expires_at)


def _check_times(claims: Mapping[str, Any], leeway: float, now: float) -> float:
    expires, not_before, issued = (_time(claims, name) for name in ("exp", "nbf", "iat"))
    if expires is None:
        raise Refused("no_expiry")
    if now >= expires + leeway:
        raise Refused("expired")
    for name, moment in (("not_yet_valid", not_before), ("issued_in_the_future", issued)):
        if moment is not None and now < moment - leeway:
            raise Refused(name, until=moment - leeway)
    return expires + leeway


def _time(claims: Mapping[str, Any], name: str) -> float | None:
    value = claims.get(name)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= _LAST_TIME:
        raise Refused("times_malformed")
    return float(value)


def _tenant(claims: Mapping[str, Any], issuer: IssuerRow) -> UUID | str:
    if issuer.tenant_id is not None:
        return issuer.tenant_id
    name = _at(claims, issuer.tenant_claim)
    if not isinstance(name, str) or not name:
        raise Refused("no_tenant")
    try:
        tenant_id = UUID(name)
    except ValueError:
        return name
    return tenant_id if str(tenant_id) == name.lower() else name


def _scopes(claims: Mapping[str, Any], issuer: IssuerRow) -> frozenset[str]:
    found = _names(_at(claims, issuer.scope_claim)) & ACTIONS
    roles = _names(_at(claims, issuer.role_claim))
    for role, actions in issuer.role_scopes:
        if role in roles:
            found |= set(actions)
    return frozenset(found or issuer.default_scopes)


def _at(claims: Mapping[str, Any], name: str) -> object:
    """A claim by its name, or by the way to it: `realm_access.roles`. Names may have dots themselves."""
    if name in claims:
        return claims[name]
    value: object = claims
    for part in name.split("."):
        if not isinstance(value, Mapping):
            return None
        value = value.get(part)
    return value


def _names(value: object, *, split: bool = True) -> set[str]:
    """A list of texts, or one text: with `split` words between blanks."""
    if isinstance(value, str):
        return set(value.split()) if split else {value}
    if isinstance(value, list):
        return {one for one in value[:_MOST_NAMES] if isinstance(one, str)}
    return set()
