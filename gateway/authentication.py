"""Who makes a request. One object for both doors: DRF's request and the relay's SlimRequest.

It only looks into the snapshot; both doors first await `Follower.resolve`, so that the key is there.
"""

from collections.abc import Callable
from typing import Any, Final

from rest_framework.authentication import BaseAuthentication

from core.errors import InvalidApiKey, SnapshotStale, Unauthenticated
from gateway.relay.plan import SlimRequest
from gateway.relay.rows import KeyRow
from gateway.relay.snapshot import Snapshot, digest_credential
from tenants.principal import Principal

_SCHEME: Final = "bearer"
_KNOWN_CAP: Final = 10_000


def read_credential(request: Any) -> str:
    """The key that a request carries as `Authorization: Bearer KEY`, or else as Anthropic's `x-api-key: KEY`.

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


class ApiKeyAuthentication(BaseAuthentication):
    """API keys, from the snapshot. `now`: seconds since the epoch."""

    def __init__(self, snapshot: Snapshot, now: Callable[[], float]) -> None:
        self._snapshot = snapshot
        self._now = now
        self._known: dict[str, tuple[Principal, KeyRow]] = {}  # by digest, as of a version of the snapshot
        self._known_at = -1

    def credential(self, request: Any) -> str:
        """See `read_credential`."""
        return read_credential(request)

    def authenticate(self, request: Any) -> tuple[Principal, KeyRow]:
        """The principal and its key's row.

        Raises Unauthenticated without a key, InvalidApiKey for an unknown, revoked or expired one, and
        SnapshotStale when its tenant is not known here (yet).
        """
        return self.identify(digest_credential(read_credential(request)))

    def identify(self, digest: str) -> tuple[Principal, KeyRow]:
        """The same, for a credential whose digest is known already."""
        row = self._snapshot.key(digest)
        if row is None or row.revoked or (row.expires_at is not None and row.expires_at <= self._now()):
            raise InvalidApiKey()
        if self._known_at != self._snapshot.version:
            self._known.clear()
            self._known_at = self._snapshot.version
        known = self._known.get(digest)
        if known is not None and known[1] is row:
            return known
        tenant = self._snapshot.tenant(row.tenant_id)
        if tenant is None:
            raise SnapshotStale(retry_after_seconds=1)
        principal = Principal(
            tenant_id=row.tenant_id,
            tenant_slug=tenant.slug,
            key_id=row.id,
            scopes=row.scopes,
            allowed_models=row.allowed_models,
            rpm_limit=row.rpm_limit,
        )
        if len(self._known) >= _KNOWN_CAP:
            self._known.clear()
        known = self._known[digest] = (principal, row)
        return known

    def authenticate_header(self, request: Any) -> str:
        return 'Bearer realm="gatehouse"'
