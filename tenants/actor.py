"""Who does a write, as the audit log names them."""

from dataclasses import dataclass
from typing import Final
from uuid import UUID

from core import request_context


@dataclass(frozen=True, slots=True)
class Actor:
    """`kind` is user, key, subject (of a token), node or system; `id` is None for the system only."""

    kind: str
    id: UUID | None = None
    request_id: str = ""


SYSTEM: Final = Actor("system")


def user_actor(user_id: UUID, *, request_id: str | None = None) -> Actor:
    """A person; `request_id` is that of the web request under way where it is not said."""
    return Actor("user", user_id, request_context.request_id.get() if request_id is None else request_id)


def machine_actor(key_id: UUID | None, subject_id: UUID | None, *, request_id: UUID) -> Actor:
    """The key that a request is made with, or the token's subject where it is made with none."""
    kind, actor_id = ("key", key_id) if key_id is not None else ("subject", subject_id)
    return Actor(kind, actor_id, str(request_id))


def node_actor(node_id: UUID) -> Actor:
    return Actor("node", node_id)
