"""Whose tokens are believed. Only the platform's operators say so: an issuer may speak for every tenant."""

import ipaddress
from collections.abc import Iterable, Mapping
from typing import Any, Final
from uuid import UUID

from django.db import IntegrityError, transaction

from core.epochs import Section, bump_epoch
from core.outbound import OutboundError, check_url
from tenants.actor import Actor
from tenants.models import Tenant, TokenIssuer
from tenants.policies.rbac import ACTIONS
from tenants.policies.token_keys import ALGORITHMS, BadKeySet, read_key_set
from tenants.services.audit import record_audit
from tenants.services.errors import InvalidInput

MOST_LEEWAY_SECONDS: Final = 300.0
_MOST_ENTRIES: Final = 100
_LONGEST_JWKS: Final = 64 * 1024
FIELDS: Final = frozenset(
    {
        "name", "issuer", "audiences", "algorithms", "jwks_url", "pinned_jwks", "allow_private", "leeway_seconds",
        "tenant", "tenant_claim", "scope_claim", "role_claim", "role_scopes", "default_scopes",
    }
)  # fmt: skip
"""What can be said of an issuer. `tenant` is a Tenant or None."""


@transaction.atomic
def create_token_issuer(*, actor: Actor, **values: Any) -> TokenIssuer:
    """Believe tokens of a further issuer; `values` are some of FIELDS. Raises InvalidInput."""
    issuer = TokenIssuer()
    _set(issuer, {"algorithms": ["RS256"], **values})
    _save(issuer, new=True)
    record_audit(
        "token_issuer.created", subject=issuer, actor=actor, tenant_id=issuer.tenant_id, after=_told(issuer, FIELDS)
    )
    bump_epoch(Section.ISSUERS, issuer.pk)
    return issuer


@transaction.atomic
def change_token_issuer(issuer_id: UUID, *, actor: Actor, **values: Any) -> TokenIssuer:
    """Other `values` for some of FIELDS; in force within a second everywhere, for tokens already seen, too.

    Raises InvalidInput and TokenIssuer.DoesNotExist.
    """
    issuer = TokenIssuer.objects.select_for_update().get(pk=issuer_id)
    before = _told(issuer, FIELDS)
    _set(issuer, values)
    after = _told(issuer, FIELDS)
    changed = {name for name in FIELDS if before[name] != after[name]}
    if changed:
        _save(issuer, new=False)
        record_audit(
            "token_issuer.changed",
            subject=issuer,
            actor=actor,
            tenant_id=issuer.tenant_id,
            before={name: before[name] for name in changed},
            after={name: after[name] for name in changed},
        )
        bump_epoch(Section.ISSUERS, issuer.pk)
    return issuer


@transaction.atomic
def delete_token_issuer(issuer_id: UUID, *, actor: Actor) -> None:
    """Believe its tokens no longer, within a second everywhere. Raises TokenIssuer.DoesNotExist."""
    issuer = TokenIssuer.objects.select_for_update().get(pk=issuer_id)
    record_audit(
        "token_issuer.deleted", subject=issuer, actor=actor, tenant_id=issuer.tenant_id, before=_told(issuer, FIELDS)
    )
    bump_epoch(Section.ISSUERS, issuer.pk)
    issuer.delete()


def _set(issuer: TokenIssuer, values: Mapping[str, Any]) -> None:
    unknown = sorted(set(values) - FIELDS)
    if unknown:
        raise InvalidInput(unknown[0], "An issuer has no such field.")
    for name, value in values.items():
        setattr(issuer, name, value)
    issuer.name = _text("name", issuer.name, longest=80).strip()
    _text("issuer", issuer.issuer, longest=500)
    if not issuer.name or not issuer.issuer:
        raise InvalidInput("name" if not issuer.name else "issuer", "It may not be empty.")
    issuer.audiences = _texts("audiences", issuer.audiences, longest=500)
    if not issuer.audiences:
        raise InvalidInput("audiences", "Name at least one: a token for somebody else must not open this door.")
    issuer.algorithms = sorted(set(_texts("algorithms", issuer.algorithms, longest=16)))
    if not issuer.algorithms or not set(issuer.algorithms) <= ALGORITHMS:
        raise InvalidInput("algorithms", f"Some of {', '.join(sorted(ALGORITHMS))}.")
    _check_keys(issuer)
    leeway: object = issuer.leeway_seconds
    if isinstance(leeway, bool) or not isinstance(leeway, int | float) or not 0 <= leeway <= MOST_LEEWAY_SECONDS:
        raise InvalidInput("leeway_seconds", f"Give 0 to {MOST_LEEWAY_SECONDS:g} seconds.")
    if issuer.tenant is not None and not isinstance(issuer.tenant, Tenant):
        raise InvalidInput("tenant", "There is no such tenant.")
    for claim in ("tenant_claim", "scope_claim", "role_claim"):
        if not _text(claim, getattr(issuer, claim), longest=200):
            raise InvalidInput(claim, "Name the claim.")
    issuer.role_scopes = _role_scopes(issuer.role_scopes)
    issuer.default_scopes = _actions("default_scopes", issuer.default_scopes)


def _check_keys(issuer: TokenIssuer) -> None:
    _text("jwks_url", issuer.jwks_url, longest=2000)
    _text("pinned_jwks", issuer.pinned_jwks, longest=_LONGEST_JWKS)
    if not issuer.jwks_url and not issuer.pinned_jwks:
        raise InvalidInput("jwks_url", "Give the address of the issuer's keys, or pin the keys themselves.")
    if issuer.jwks_url:
        try:
            target = check_url(issuer.jwks_url, allow_private=issuer.allow_private, allow_http=issuer.allow_private)
        except OutboundError as error:
            raise InvalidInput("jwks_url", str(error)) from error
        if not target.tls and not _is_this_machine(target.host):
            # Whoever stands on the way could give keys of their own.
            raise InvalidInput("jwks_url", "Without https only an address of this machine itself (127.0.0.1) is taken.")
    if issuer.pinned_jwks:
        try:
            keys = read_key_set(issuer.pinned_jwks, strict=True)
        except BadKeySet as error:
            raise InvalidInput("pinned_jwks", str(error)) from error
        if not any(key.algorithms & set(issuer.algorithms) for key in keys.keys):
            raise InvalidInput("pinned_jwks", "None of the keys fits one of the algorithms.")


def _is_this_machine(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _role_scopes(value: object) -> dict[str, list[str]]:
    if not isinstance(value, Mapping) or len(value) > _MOST_ENTRIES:
        raise InvalidInput("role_scopes", f"An object of at most {_MOST_ENTRIES} roles, each with its actions.")
    _texts("role_scopes", [*value], longest=200)
    return {role: _actions("role_scopes", actions) for role, actions in value.items()}


def _actions(field: str, value: object) -> list[str]:
    actions = _texts(field, value, longest=16)
    if not set(actions) <= ACTIONS:
        raise InvalidInput(field, f"Actions are some of {', '.join(sorted(ACTIONS))}.")
    return sorted(set(actions))


def _texts(field: str, value: object, *, longest: int) -> list[str]:
    if isinstance(value, str) or not isinstance(value, Iterable) or isinstance(value, Mapping):
        raise InvalidInput(field, "A list of texts.")
    texts = [_text(field, one, longest=longest) for one in value]
    if len(texts) > _MOST_ENTRIES or not all(texts):
        raise InvalidInput(field, f"At most {_MOST_ENTRIES} texts, none of them empty.")
    return texts


def _text(field: str, value: object, *, longest: int) -> str:
    if not isinstance(value, str) or len(value) > longest or "\x00" in value:
        raise InvalidInput(field, f"A text of at most {longest} characters.")
    return value


def _save(issuer: TokenIssuer, *, new: bool) -> None:
    try:
        with transaction.atomic():
            issuer.save(force_insert=new)
    except IntegrityError as error:
        raise InvalidInput("issuer", "There is one already for this issuer.") from error


def _told(issuer: TokenIssuer, names: Iterable[str]) -> dict[str, Any]:
    """For the audit log. Pinned keys are public, and proven so."""
    told = {name: getattr(issuer, name) for name in names if name != "tenant"}
    return told | {"tenant": str(issuer.tenant_id) if issuer.tenant_id else None}
