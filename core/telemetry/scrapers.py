"""Who may read /metrics: they name models and tell volumes, which one tenant must not learn of another."""

import hmac
import ipaddress
from collections.abc import Iterable
from typing import Final

from core.errors import InvalidApiKey, PermissionDenied

_FORWARDED: Final = frozenset({b"forwarded", b"x-forwarded-for", b"x-real-ip"})


def check_scraper(headers: Iterable[tuple[bytes, bytes]], *, client_host: str | None, token: str | None) -> None:
    """Let a scraper in that gives `token`; where none is set, one on this machine that no proxy stands before.

    `headers` have lower-case names. Raises InvalidApiKey for a wrong token, PermissionDenied for another machine.
    """
    sent = dict(headers)
    if token:
        if not hmac.compare_digest(sent.get(b"authorization", b""), b"Bearer " + token.encode()):
            raise InvalidApiKey("Metrics need the token in GATEHOUSE_METRICS_TOKEN.")
    elif not _is_loopback(client_host) or _FORWARDED & sent.keys():
        raise PermissionDenied("Metrics are told to this machine alone, unless GATEHOUSE_METRICS_TOKEN is set.")


def _is_loopback(host: str | None) -> bool:
    try:
        return host is not None and ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
