"""Who does a write, as the audit log names them."""

from dataclasses import dataclass
from typing import Final
from uuid import UUID


@dataclass(frozen=True, slots=True)
class Actor:
    """`kind` is user, key, node or system; `id` is None for the system only."""

    kind: str
    id: UUID | None = None
    request_id: str = ""


SYSTEM: Final = Actor("system")


def user_actor(user_id: UUID, *, request_id: str = "") -> Actor:
    return Actor("user", user_id, request_id)


def node_actor(node_id: UUID) -> Actor:
    return Actor("node", node_id)
