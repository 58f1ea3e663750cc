"""What was found out about tokens, by the digest of their text: each is checked once, and again when that may be over.

A verdict ends with the token's own time, with a change of its issuer, and with a change of the issuer's keys. What
follows from a verdict (tenant, rights) is read anew from the snapshot whenever that changes.
"""

import time
from collections import OrderedDict
from collections.abc import Callable
from typing import Final, TypeVar

import msgspec
import structlog

from core.telemetry.seldom import Seldom
from gateway.relay.rows import IssuerRow
from gateway.relay.snapshot import Snapshot
from gateway.relay.tokens.claims import Claims, Refused
from gateway.relay.tokens.keysets import KeySets
from gateway.relay.tokens.verify import Head, UnknownKey, read_head, verify
from tenants.policies.token_keys import KeySet

logger = structlog.get_logger(__name__)

T = TypeVar("T")

VERIFIED_CAPACITY: Final = 20_000
REFUSED_CAPACITY: Final = 10_000


class _Verified(msgspec.Struct, frozen=True):
    claims: Claims
    issuer: IssuerRow
    keys: KeySet


class _Refusal(msgspec.Struct, frozen=True):
    version: int  # of the snapshot that it was found with
    issuer: IssuerRow | None
    keys: KeySet | None  # that it was found with
    until: float


class TokenBook:
    """Only touched on the event loop, but for `claims`. `now`: seconds since the epoch."""

    def __init__(
        self,
        snapshot: Snapshot,
        keysets: KeySets,
        now: Callable[[], float],
        *,
        verified_capacity: int = VERIFIED_CAPACITY,
        refused_capacity: int = REFUSED_CAPACITY,
    ) -> None:
        self._snapshot = snapshot
        self._keysets = keysets
        self._now = now
        self._verified: OrderedDict[str, _Verified] = OrderedDict()
        self._refused: OrderedDict[str, _Refusal] = OrderedDict()
        self._verified_capacity = verified_capacity
        self._refused_capacity = refused_capacity
        self._lines = Seldom()

    def knows(self, digest: str) -> bool:
        """Whether `claims` can answer for this digest."""
        verified = self._verified.get(digest)
        if verified is not None:
            if self._holds(verified):
                self._verified.move_to_end(digest)
                return True
            del self._verified[digest]
        refused = self._refused.get(digest)
        if refused is not None:
            if self._stands(refused):
                return True
            del self._refused[digest]
        return False

    def claims(self, digest: str) -> Claims | None:
        """Of a token that was verified, and holds still; None for every other digest."""
        verified = self._verified.get(digest)
        return verified.claims if verified is not None and self._holds(verified) else None

    async def resolve(self, digest: str, token: str) -> None:
        """Make `claims` answer for this token. Raises KeysUnavailable where nobody can say whether it is good."""
        if self.knows(digest):
            return
        issuer: IssuerRow | None = None
        keys: KeySet | None = None
        try:
            head = read_head(token)
            issuer = self._issuer(head)
            keys = self._keysets.get(issuer)
            while keys is None:
                await self._keysets.first(issuer)
                issuer = self._issuer(head)  # which may have changed meanwhile
                keys = self._keysets.get(issuer)
            claims = verify(token, head, issuer, keys, self._now())
        except Refused as refused:
            if issuer is not None and isinstance(refused, UnknownKey):
                self._keysets.refresh_soon(issuer)
            self._refuse(digest, issuer, keys, refused)
            return
        _keep(self._verified, digest, _Verified(claims, issuer, keys), self._verified_capacity)

    def _issuer(self, head: Head) -> IssuerRow:
        issuer = self._snapshot.issuer(head.issuer)
        if issuer is None:
            raise Refused("unknown_issuer")
        return issuer

    def _refuse(self, digest: str, issuer: IssuerRow | None, keys: KeySet | None, refused: Refused) -> None:
        refusal = _Refusal(self._snapshot.version, issuer, keys, refused.until)
        _keep(self._refused, digest, refusal, self._refused_capacity)
        held_back = self._lines.due(time.monotonic())
        if held_back is not None:
            logger.info(
                "token_refused",
                reason=refused.reason,
                issuer_id=str(issuer.id) if issuer else None,
                digest=digest[:12],
                more=held_back,
            )

    def _holds(self, verified: _Verified) -> bool:
        issuer = verified.issuer
        return (
            self._now() < verified.claims.expires_at
            and self._snapshot.issuer(issuer.issuer) is issuer
            and self._keysets.get(issuer) is verified.keys
        )

    def _stands(self, refusal: _Refusal) -> bool:
        return (
            refusal.version == self._snapshot.version
            and self._now() < refusal.until
            and (refusal.issuer is None or self._keysets.get(refusal.issuer) is refusal.keys)
        )


def _keep(book: OrderedDict[str, T], digest: str, entry: T, capacity: int) -> None:
    book[digest] = entry
    book.move_to_end(digest)
    if len(book) > capacity:
        book.popitem(last=False)
