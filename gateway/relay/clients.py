"""How many connections, or requests behind a proxy, one client address may have at once.

Counted for each process. Connections count by the peer's address. A trusted proxy's connections are many
clients', so there each request counts instead, by the address that the proxy says it is from.
"""

import time
from collections.abc import Callable, Sequence
from functools import lru_cache
from ipaddress import IPv4Address, IPv6Address, IPv6Network, ip_address, ip_network
from typing import ClassVar, Final

import structlog

from core.errors import RateLimited
from core.telemetry.seldom import Seldom
from gateway.relay.plan import Headers

__all__ = ["ClientGuard", "TooManyOfClient"]

DEFAULT_CAP: Final = 1000
_MOST_HOPS: Final = 16  # more proxies behind each other than anybody has
_IPV6_SITE_BITS: Final = 64  # what one subscriber has at least; by single addresses a cap would be none

log = structlog.get_logger(__name__)


class TooManyOfClient(RateLimited):
    code: ClassVar[str] = "too_many_connections"
    default_message: ClassVar[str] = "Your address has as many connections open as one client may have."


class ClientGuard:
    """Counts what is open by client. `trusted_proxies`: networks, e.g. 10.0.0.0/8, or single addresses.

    `on_refusal` is called for each refusal. Raises ValueError for a network that is none.
    """

    def __init__(
        self,
        cap: int = DEFAULT_CAP,
        trusted_proxies: Sequence[str] = (),
        *,
        on_refusal: Callable[[], None] = lambda: None,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self.cap = cap
        self._trusted = [ip_network(network, strict=False) for network in trusted_proxies]
        self._on_refusal = on_refusal
        self._now = now
        self._counts: dict[str, int] = {}
        self._lines = Seldom()

    def enter(self, client: str) -> int:
        """One more of this client's; how many over the cap that is, 0 when it may be. To be ended by `leave`."""
        count = self._counts[client] = self._counts.get(client, 0) + 1
        over = count - self.cap
        if over <= 0:
            return 0
        self._on_refusal()
        held_back = self._lines.due(self._now())
        if held_back is not None:  # a line for each would be a way to fill a disk
            log.warning("client_over_its_cap", client=client, open=count, cap=self.cap, held_back=held_back)
        return over

    def leave(self, client: str) -> None:
        """The end of what `enter` began."""
        count = self._counts[client] - 1
        if count:
            self._counts[client] = count
        else:
            del self._counts[client]

    def open(self, client: str) -> int:
        """How many this client has now."""
        return self._counts.get(client, 0)

    def is_proxy(self, host: str) -> bool:
        """Whether a peer is a proxy whose word counts."""
        if not self._trusted:
            return False
        address = _parse(host)
        return address is not None and self._trusts(address)

    def client_behind(self, host: str, headers: Headers) -> str:
        """The address that a request through the trusted proxy `host` is from.

        That is the right-most of X-Forwarded-For that is not itself a trusted proxy's: what is to the left of it
        the client may have written. `host` itself where the header is missing, malformed or names proxies only.
        """
        hops = b",".join([value for name, value in headers if name == b"x-forwarded-for"])
        for _ in range(_MOST_HOPS):
            hops, _, last = hops.rpartition(b",")
            address = _parse(_without_port(last.strip().decode("latin-1")))
            if address is None:
                return host
            if not self._trusts(address):
                return str(address)
        return host

    def _trusts(self, address: IPv4Address | IPv6Address) -> bool:
        return any(address in network for network in self._trusted)


@lru_cache(maxsize=4096)
def client_name(host: str) -> str:
    """What a client counts as: its IPv4 address, or the /64 network of an IPv6 one."""
    address = _parse(host)
    if address is None:
        return host
    if isinstance(address, IPv4Address):
        return str(address)
    return str(IPv6Network((int(address), _IPV6_SITE_BITS), strict=False))


def _parse(host: str) -> IPv4Address | IPv6Address | None:
    try:
        address = ip_address(host.partition("%")[0])
    except ValueError:
        return None
    if isinstance(address, IPv6Address) and address.ipv4_mapped is not None:
        return address.ipv4_mapped
    return address


def _without_port(hop: str) -> str:
    """Some proxies write 192.0.2.1:4711 or [2001:db8::1]:4711."""
    if hop.startswith("["):
        return hop[1:].partition("]")[0]
    host, _, port = hop.partition(":")
    return host if port.isdigit() and "." in host else hop
