"""Nodes and the tokens of their agents. A token leaves this module once, as a return value."""

import hashlib
import re
import secrets
from dataclasses import dataclass
from typing import Final
from uuid import UUID

from django.db import IntegrityError, transaction
from django.utils import timezone

from core.epochs import Section, bump_epoch
from gpupool.models import Node
from gpupool.services.healing import disown_cordon
from tenants.actor import Actor
from tenants.services import Conflict, InvalidInput, record_audit

TOKEN_PREFIX: Final = "gn-"  # noqa: S105  # a prefix, not a secret
_TOKEN_BYTES: Final = 32
_MAX_TOKEN_LENGTH: Final = 200
_LONGEST_REASON: Final = 500
_NAME: Final = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]{0,118}[A-Za-z0-9])?")


@dataclass(frozen=True, slots=True)
class NewNodeToken:
    """A node and its agent's token, which is shown now or never."""

    node: Node
    token: str


def _digest(token: str) -> str:
    """SHA-256 as hex. No salt or stretching: the token is 256 random bits."""
    return hashlib.sha256(token.encode()).hexdigest()


@transaction.atomic
def create_node(name: str, *, simulated: bool = False, actor: Actor) -> NewNodeToken:
    """A node that its agent may connect as. Raises InvalidInput for a malformed or taken name."""
    if not _NAME.fullmatch(name):
        raise InvalidInput("name", "A node's name has letters, digits, dots, dashes and underscores, at most 120.")
    if Node.objects.filter(name=name).exists():
        raise InvalidInput("name", f"There is a node {name!r} already.")
    token = TOKEN_PREFIX + secrets.token_urlsafe(_TOKEN_BYTES)
    try:
        with transaction.atomic():
            node = Node.objects.create(
                name=name, simulated=simulated, token_digest=_digest(token), token_last_four=token[-4:]
            )
    except IntegrityError as error:  # made by another at this moment
        raise InvalidInput("name", f"There is a node {name!r} already.") from error
    record_audit("node.created", subject=node, actor=actor, after={"name": name})
    bump_epoch(Section.POOL, node.pk)
    return NewNodeToken(node, token)


def _lock_with_token(node_id: UUID, seen: str | None) -> Node:
    """The node, its row locked until the transaction ends. Raises Node.DoesNotExist, Conflict for another token."""
    node = Node.objects.select_for_update(no_key=True).get(pk=node_id)
    if seen is not None and seen != node.token_mark:
        raise Conflict("The token was changed or revoked meanwhile.")
    return node


@transaction.atomic
def rotate_node_token(node_id: UUID, *, actor: Actor, seen: str | None = None) -> NewNodeToken:
    """A new token; the old one is refused at the next message of its stream.

    `seen`: the mark (`Node.token_mark`) of the token that is meant; None for whichever it is. Raises
    Node.DoesNotExist, and Conflict where it was changed or revoked since it was seen.
    """
    node = _lock_with_token(node_id, seen)
    token = TOKEN_PREFIX + secrets.token_urlsafe(_TOKEN_BYTES)
    node.token_digest, node.token_last_four, node.token_revoked_at = _digest(token), token[-4:], None
    node.session_id = None  # ends the stream that the old token opened
    node.save(update_fields=["token_digest", "token_last_four", "token_revoked_at", "session_id"])
    record_audit("node.token_rotated", subject=node, actor=actor)
    bump_epoch(Section.DESIRED, node.pk)
    return NewNodeToken(node, token)


@transaction.atomic
def revoke_node_token(node_id: UUID, *, actor: Actor, seen: str | None = None) -> Node:
    """Refuse the agent from now on. Its engines run on; nothing new is placed. `seen` as in `rotate_node_token`."""
    node = _lock_with_token(node_id, seen)
    if node.token_revoked_at is None:
        node.token_revoked_at, node.session_id = timezone.now(), None
        node.save(update_fields=["token_revoked_at", "session_id"])
        record_audit("node.token_revoked", subject=node, actor=actor)
        bump_epoch(Section.DESIRED, node.pk)
    return node


def authenticate_node(token: str) -> Node | None:
    """The node whose agent holds `token`; None for an unknown or revoked one."""
    if not token.startswith(TOKEN_PREFIX) or len(token) > _MAX_TOKEN_LENGTH:
        return None
    return Node.objects.filter(token_digest=_digest(token), token_revoked_at__isnull=True).first()


@transaction.atomic
def set_node_cordoned(node_id: UUID, cordoned: bool, *, actor: Actor) -> Node:
    """Place nothing new there (or place again); what runs keeps running. Raises Node.DoesNotExist."""
    node = Node.objects.select_for_update(no_key=True).get(pk=node_id)
    if cordoned:
        disown_cordon(node, actor=actor)
    if node.cordoned != cordoned:
        node.cordoned = cordoned
        node.save(update_fields=["cordoned"])
        record_audit("node.cordoned" if cordoned else "node.uncordoned", subject=node, actor=actor)
        bump_epoch(Section.POOL, node.pk)
    return node


@transaction.atomic
def set_node_maintenance(node_id: UUID, maintenance: bool, *, reason: str = "", actor: Actor) -> Node:
    """Take a node out of service for a while, or back: nothing new is placed there, and what runs there moves away.

    A replica that serves ends once another serves elsewhere in its place; where there is no room, it goes on serving.
    What does not serve yet, and what tenants acquired for themselves, ends without waiting. Being cordoned is its own
    matter and stays as it is. Raises Node.DoesNotExist; InvalidInput without a reason.
    """
    node = Node.objects.select_for_update(no_key=True).get(pk=node_id)
    reason = reason.strip()
    if maintenance and not reason:
        raise InvalidInput("reason", "Say why: people will ask what this node is out of service for.")
    if len(reason) > _LONGEST_REASON or "\x00" in reason:
        raise InvalidInput("reason", f"A reason has at most {_LONGEST_REASON} characters.")
    before = {"maintenance": node.maintenance, "reason": node.maintenance_reason}
    after = {"maintenance": maintenance, "reason": reason if maintenance else ""}
    if before != after:
        node.maintenance, node.maintenance_reason = maintenance, reason if maintenance else ""
        node.save(update_fields=["maintenance", "maintenance_reason"])
        record_audit("node.maintenance_changed", subject=node, actor=actor, before=before, after=after)
        bump_epoch(Section.POOL, node.pk)
    return node
