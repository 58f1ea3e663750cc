"""What a live channel is made of: a feed reads, an encoder turns what was read into frames, a viewer may watch or not.

One process reads for all: a feed costs the database the same for one viewer and for a thousand.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Final, Protocol
from uuid import UUID

from tenants.policies.roles import Action, Object, may

Payload = str | bytes
"""A frame's payload. Text is one JSON object that has `ch`, `v`, `epoch`, `seq` and `at` (seconds since the epoch)."""

TENANT_SCOPE: Final = "tenant:"
NODE_SCOPE: Final = "node:"


@dataclass(frozen=True, slots=True)
class Viewer:
    """The person behind a socket as last read: every decision about what they may watch is made from this alone.

    `platform_role` is "" for people without one and for those who lack a second factor that they must have.
    `roles` and `suspended` are of the tenants that they are members of, by slug.
    """

    user_id: UUID | int
    platform_role: str = ""
    roles: Mapping[str, str] = field(default_factory=dict)
    suspended: frozenset[str] = frozenset()

    @property
    def reads_platform(self) -> bool:
        """Whether they may look at the whole pool."""
        return may(Action.VIEW, Object.POOL, platform_role=self.platform_role, tenant_role=None)

    def may_view(self, on: Object, *, tenant: str | None = None) -> bool:
        """Whether they may look at the tenant's `on` (by slug), or at the platform's where none is given.

        Members of a suspended tenant get no live frames: nothing happens there, and what they see stays as it was.
        """
        if tenant in self.suspended and not self.platform_role:
            return False
        role = self.roles.get(tenant) if tenant is not None else None
        return may(Action.VIEW, on, platform_role=self.platform_role, tenant_role=role)


def tenant_of(scope: str) -> str | None:
    """The slug of a tenant's scope, None of another scope."""
    return scope.removeprefix(TENANT_SCOPE) if scope.startswith(TENANT_SCOPE) else None


def node_of(scope: str) -> UUID | None:
    """The id of a node's scope, None of another scope, or of an id that is written otherwise: each is read once."""
    text = scope.removeprefix(NODE_SCOPE)
    if text == scope:
        return None
    try:
        node_id = UUID(text)
    except ValueError:
        return None
    return node_id if str(node_id) == text else None


class Encoder(Protocol):
    """Turns states into frames for one watched scope, and remembers what viewers have."""

    whole: bool
    """True: a keyframe is no news of another shape. The epoch then stays as it is when `delta` gives None."""

    def keyframe(self, state: object, *, epoch: int, seq: int, at: datetime) -> Payload:
        """A frame that needs no other; every viewer gets it, and forgets what came before."""

    def delta(self, state: object, *, epoch: int, seq: int, at: datetime) -> Payload | None:
        """What changed since the frame before; None where that cannot be said: a keyframe is sent, with the next epoch.

        Never asked before the first keyframe. A frame is due even when nothing changed: it says that this is so.
        """


class Feed(Protocol):
    """One channel, for all scopes: what viewers have, encoders remember."""

    name: str
    period_seconds: float

    def may_watch(self, viewer: Viewer, scope: str) -> bool:
        """Whether the viewer may watch the scope; no I/O. False, too, for a scope that this feed does not have."""

    def read(self, scope: str, *, now: datetime) -> object:
        """The scope's state. Blocks, in the publisher's thread, on its one connection with a statement timeout.

        A constant number of queries. Raises Gone for what no longer exists; database errors may pass.
        """

    def encoder(self) -> Encoder:
        """A new encoder for a scope that is watched from now on."""


class Gone(Exception):
    """The scope names nothing that exists (any longer); its viewers are told so."""
