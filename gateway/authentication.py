"""Who makes a request. One object for both doors: DRF's request and the relay's SlimRequest.

It only looks into the snapshot and the book of tokens; both doors first await `Pipeline.resolve`, so that the key or
the verdict is there.
"""

import time
from collections.abc import Callable
from typing import Any, Final

import structlog
from rest_framework.authentication import BaseAuthentication

from core.errors import InvalidApiKey, SnapshotStale, Unauthenticated
from core.telemetry.seldom import Seldom
from gateway.relay.plan import SlimRequest
from gateway.relay.rows import KeyRow
from gateway.relay.snapshot import Snapshot, digest_credential
from gateway.relay.tokens.book import TokenBook
from gateway.relay.tokens.claims import Claims
from gateway.relay.tokens.verify import looks_like_token
from tenants.policies.tiers import objectives_of
from tenants.principal import Principal

logger = structlog.get_logger(__name__)

_SCHEME: Final = "bearer"
_KNOWN_CAP: Final = 10_000


def read_credential(request: Any) -> str:
    """The key or token that a request carries as `Authorization: Bearer KEY`, or else as Anthropic's `x-api-key: KEY`.

    `request` is a SlimRequest or DRF's Request. Raises Unauthenticated without one, or with two that differ.
    """
    if isinstance(request, SlimRequest):
        # Given twice it is none, as for Django: who is before us may have looked at the other one.
        raw = other = ""
        for name, value in request.headers:
            if name == b"authorization":
                raw = f"{raw},{value.decode('latin-1')}" if raw else value.decode("latin-1")
            elif name == b"x-api-key":
                other = f"{other},{value.decode('latin-1')}" if other else value.decode("latin-1")
    else:
        raw = request.META.get("HTTP_AUTHORIZATION", "")
        other = request.META.get("HTTP_X_API_KEY", "")
    other = other.strip()
    if not raw and other:
        return other
    scheme, _, credential = raw.partition(" ")
    credential = credential.strip()
    if scheme.lower() != _SCHEME or not credential or (other and other != credential):
        raise Unauthenticated()
    return credential


class MachineAuthentication(BaseAuthentication):
    """API keys from the snapshot, and tokens from what was found out about them. `now`: seconds since the epoch."""

    def __init__(self, snapshot: Snapshot, now: Callable[[], float], tokens: TokenBook | None = None) -> None:
        self._snapshot = snapshot
        self._now = now
        self._tokens = tokens
        # By digest, as of a version of the snapshot, with what it was made from.
        self._known: dict[str, tuple[Principal, KeyRow | Claims]] = {}
        self._known_at = -1
        self._lines = Seldom()

    def credential(self, request: Any) -> str:
        """See `read_credential`."""
        return read_credential(request)

    def knows(self, digest: str) -> bool:
        """Whether `identify` can answer for this digest without anything being awaited before."""
        return self._snapshot.knows(digest) or (self._tokens is not None and self._tokens.knows(digest))

    async def resolve_token(self, digest: str, credential: str) -> bool:
        """Find out about a token; False for what is none. Raises KeysUnavailable where nobody can say."""
        if self._tokens is None or not looks_like_token(credential):
            return False
        await self._tokens.resolve(digest, credential)
        return True

    def authenticate(self, request: Any) -> tuple[Principal, KeyRow | Claims]:
        """The principal, and the key's row or the token's claims.

        Raises Unauthenticated without a credential, InvalidApiKey for a key that is unknown, revoked or expired and a
        token that is not believed, and SnapshotStale when its tenant is not known here (yet).
        """
        credential = read_credential(request)
        digest = digest_credential(credential)
        if self._tokens is not None and looks_like_token(credential) and not self._tokens.knows(digest):
            raise SnapshotStale(retry_after_seconds=1)  # its issuer changed since it was resolved
        return self.identify(digest)

    def identify(self, digest: str) -> tuple[Principal, KeyRow | Claims]:
        """The same, for a credential whose digest is known already."""
        row = self._snapshot.key(digest)
        source: KeyRow | Claims | None = row
        if row is None:
            source = self._tokens.claims(digest) if self._tokens is not None else None
        elif row.revoked or (row.expires_at is not None and row.expires_at <= self._now()):
            raise InvalidApiKey()
        if source is None:
            raise InvalidApiKey()
        if self._known_at != self._snapshot.version:
            self._known.clear()
            self._known_at = self._snapshot.version
        known = self._known.get(digest)
        if known is not None and known[1] is source:
            return known
        principal = self._of_key(source) if isinstance(source, KeyRow) else self._of_token(source)
        if len(self._known) >= _KNOWN_CAP:
            self._known.clear()
        known = self._known[digest] = (principal, source)
        return known

    def _of_key(self, row: KeyRow) -> Principal:
        tenant = self._snapshot.tenant(row.tenant_id)
        if tenant is None:
            raise SnapshotStale(retry_after_seconds=1)
        return Principal(
            tenant_id=row.tenant_id,
            tenant_slug=tenant.slug,
            key_id=row.id,
            scopes=row.scopes,
            allowed_models=row.allowed_models,
            rpm_limit=row.rpm_limit,
            lineage=row.lineage,
            keep_alive=row.keep_alive,
            store_conversations=row.store_conversations,
            traffic_class=objectives_of(tenant.sla_tier).traffic_class,
        )

    def _of_token(self, claims: Claims) -> Principal:
        tenant = self._snapshot.tenant_named(claims.tenant)
        if tenant is None:
            if (held_back := self._lines.due(time.monotonic())) is not None:
                logger.info("token_refused", reason="unknown_tenant", subject_id=str(claims.subject_id), more=held_back)
            raise InvalidApiKey()
        return Principal(
            tenant_id=tenant.id,
            tenant_slug=tenant.slug,
            key_id=None,
            scopes=claims.scopes,
            allowed_models=(),
            rpm_limit=None,
            subject_id=claims.subject_id,
            expires_at=claims.expires_at,
            traffic_class=objectives_of(tenant.sla_tier).traffic_class,
        )

    def authenticate_header(self, request: Any) -> str:
        return 'Bearer realm="gatehouse"'
