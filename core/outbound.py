"""Requests to addresses that people typed in: key sets of issuers, webhooks.

Such an address must not become a way into this network. The name is resolved here, each address is judged, and
the connection goes to the address that was judged: nothing is resolved a second time. Redirects are answers like
any other, and not followed. Blocking: for threads and tasks, never for an event loop.
"""

import http.client
import io
import ipaddress
import queue
import re
import socket
import ssl
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Final
from urllib.parse import quote, urlsplit

from core.tls import client_context, tls_failure

Address = ipaddress.IPv4Address | ipaddress.IPv6Address
Resolve = Callable[[str, int], Sequence[str]]
"""The IP addresses of a name, for a port. Raises OSError."""

_TRIED: Final = 3
_READ_BYTES: Final = 65536
_MOST_URL: Final = 2000
_NAT64: Final = ipaddress.IPv6Network("64:ff9b::/96")
_CARRIER_NAT: Final = ipaddress.IPv4Network("100.64.0.0/10")
_METADATA: Final = frozenset(
    ipaddress.ip_address(text)
    for text in ("169.254.169.254", "100.100.100.200", "168.63.129.16", "192.0.0.192", "fd00:ec2::254", "fd20:ce::254")
)
"""Where clouds hand out credentials to whoever asks from inside; the third is a public address."""
_NOBODYS: Final = tuple(map(ipaddress.ip_network, ("192.0.0.0/24", "3fff::/20")))
"""Networks for special purposes that older Pythons take for public ones."""

_unsafe = re.compile(r"[\x00-\x20\x7f\\]")
_header_unsafe = re.compile(r"[\r\n\x00]")


class OutboundError(Exception):
    """Base of what goes wrong; the message is for the person who typed the address in."""

    code: ClassVar[str] = "failed"


class BadAddress(OutboundError):
    """The URL cannot be used at all."""

    code = "bad_address"


class ForbiddenAddress(OutboundError):
    """The host is, or its name stands for, an address inside this network."""

    code = "forbidden_address"


class Unreachable(OutboundError):
    """No such name, no connection, or no TLS."""

    code = "unreachable"


class TooSlow(OutboundError):
    """Not done within the whole time that was given."""

    code = "too_slow"


class BadAnswer(OutboundError):
    """Not HTTP, cut off, compressed, or larger than asked for."""

    code = "bad_answer"


@dataclass(frozen=True, slots=True)
class OutboundLimits:
    """`total_seconds` is for all of it: name, connection, TLS, request and answer."""

    total_seconds: float = 10.0
    answer_bytes: int = 1 << 20
    allow_private: bool = False  # private, loopback and carrier networks; metadata services never
    allow_http: bool = False


@dataclass(frozen=True, slots=True)
class Answer:
    """What the server said. Header names are in lower case; of those given twice the last counts."""

    status: int
    headers: Mapping[str, str]
    body: bytes


@dataclass(frozen=True, slots=True)
class Target:
    """A URL taken apart. `host` is as TLS and DNS take it; `path` has the query too."""

    tls: bool
    host: str
    port: int
    path: str

    @property
    def authority(self) -> str:
        """As the `Host` header says it."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == (443 if self.tls else 80) else f"{host}:{self.port}"


def check_url(url: str, *, allow_private: bool = False, allow_http: bool = False) -> Target:
    """What a URL asks for, as far as it can be judged without asking anyone.

    Raises BadAddress, and ForbiddenAddress for a host that is written as an address and may not be used.
    """
    if len(url) > _MOST_URL or _unsafe.search(url):
        raise BadAddress(f"The address has blanks or control characters, or over {_MOST_URL} characters.")
    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port
    except ValueError as error:
        raise BadAddress("The address is not a URL.") from error
    if parts.scheme not in ("https", "http") or (parts.scheme == "http" and not allow_http):
        raise BadAddress("The address begins with https://." if not allow_http else "The address is not HTTP.")
    if not host or port == 0:
        raise BadAddress("The address names no host.")
    if parts.username is not None or parts.password is not None:
        raise BadAddress("The address carries a user name or password.")
    try:
        name = host if ":" in host else host.encode("idna").decode("ascii")
    except UnicodeError as error:
        raise BadAddress("The host name is not valid.") from error
    tls = parts.scheme == "https"
    path = quote(parts.path or "/", safe="/%:@!$&'()*+,;=~-._") + (
        f"?{quote(parts.query, safe='/%:@!$&()*+,;=~-._?')}" if parts.query else ""
    )
    target = Target(tls, name, port or (443 if tls else 80), path)
    literal = _literal(name)
    if literal is not None and not may_reach(literal, allow_private=allow_private):
        raise ForbiddenAddress("The address is inside this network.")
    return target


def may_reach(address: Address, *, allow_private: bool = False) -> bool:
    """Whether an address may be connected to; one that stands for another is judged as that one."""
    address = _embedded(address)
    if address in _METADATA or address.is_multicast or address.is_unspecified or address.is_link_local:
        return False
    if any(address in network for network in _NOBODYS):
        return False
    inside = (
        address.is_loopback
        or (address.is_private and not address.is_reserved)
        or (isinstance(address, ipaddress.IPv4Address) and address in _CARRIER_NAT)
    )
    if inside:
        return allow_private
    if isinstance(address, ipaddress.IPv6Address) and address.is_site_local:
        return False
    return address.is_global and not address.is_reserved


def resolve_name(host: str, port: int) -> list[str]:
    """The system's own resolver. Raises OSError."""
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, proto=socket.IPPROTO_TCP)
    return list(dict.fromkeys(str(entry[4][0]) for entry in found))


class OutboundClient:
    """Fetches. `clock` is monotonic seconds; `tls` trusts what the system trusts where none is given or set."""

    def __init__(
        self,
        *,
        tls: ssl.SSLContext | None = None,
        resolve: Resolve = resolve_name,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.tls = tls or client_context()
        self._resolve = resolve
        self._clock = clock

    def check(self, url: str, *, limits: OutboundLimits | None = None) -> Target:
        """What `fetch` would judge, without a connection: for an address that is kept. Raises OutboundError."""
        limits = limits or OutboundLimits()
        target = check_url(url, allow_private=limits.allow_private, allow_http=limits.allow_http)
        try:
            self._addresses(target, limits, _Deadline(self._clock, limits.total_seconds))
        except TimeoutError as error:
            raise TooSlow(f"The name {target.host} was not resolved within {limits.total_seconds:g} s.") from error
        return target

    def fetch(
        self,
        url: str,
        *,
        method: str = "GET",
        headers: Mapping[str, str] | None = None,
        body: bytes | None = None,
        limits: OutboundLimits | None = None,
    ) -> Answer:
        """One request and its answer, whatever its status. Raises OutboundError."""
        limits = limits or OutboundLimits()
        deadline = _Deadline(self._clock, limits.total_seconds)
        target = check_url(url, allow_private=limits.allow_private, allow_http=limits.allow_http)
        request = _encode(target, method, headers or {}, body)
        try:
            with self._connect(target, self._addresses(target, limits, deadline), deadline) as connection:
                connection.settimeout(deadline.left())
                connection.sendall(request)
                return _read(connection, method, limits.answer_bytes, deadline)
        except TimeoutError as error:
            raise TooSlow(f"{target.host} did not answer within {limits.total_seconds:g} s.") from error
        except (http.client.HTTPException, ValueError) as error:
            raise BadAnswer(f"{target.host} did not answer in HTTP.") from error
        except OSError as error:
            raise Unreachable(f"The connection to {target.host} broke: {_why(error)}.") from error

    def _addresses(self, target: Target, limits: OutboundLimits, deadline: "_Deadline") -> list[Address]:
        literal = _literal(target.host)
        if literal is not None:
            return [literal]  # judged with the URL
        try:
            found = _in_time(lambda: self._resolve(target.host, target.port), deadline)
        except TimeoutError:
            raise
        except (OSError, UnicodeError) as error:
            raise Unreachable(f"The name {target.host} cannot be resolved.") from error
        addresses = [ipaddress.ip_address(text.partition("%")[0]) for text in found]
        allowed = [one for one in addresses if may_reach(one, allow_private=limits.allow_private)]
        if not addresses:
            raise Unreachable(f"The name {target.host} cannot be resolved.")
        if not allowed:
            raise ForbiddenAddress(f"The name {target.host} stands for an address inside this network.")
        return allowed[:_TRIED]

    def _connect(self, target: Target, addresses: Sequence[Address], deadline: "_Deadline") -> socket.socket:
        failure: OSError | None = None
        for index, address in enumerate(addresses):
            share = deadline.left() / (len(addresses) - index)  # one that is silent leaves time for the next
            raw = socket.socket(socket.AF_INET if address.version == 4 else socket.AF_INET6, socket.SOCK_STREAM)
            try:
                raw.settimeout(share)
                raw.connect((str(address), target.port))
                if not target.tls:
                    return raw
                raw.settimeout(deadline.left())
                return self.tls.wrap_socket(raw, server_hostname=target.host)
            except OSError as error:
                raw.close()
                failure = error
                if isinstance(error, ssl.SSLError):
                    break
        assert failure is not None
        if isinstance(failure, TimeoutError):
            raise failure
        raise Unreachable(f"No connection to {target.host}: {_why(failure)}.") from failure


class _Deadline:
    def __init__(self, clock: Callable[[], float], seconds: float) -> None:
        self._clock = clock
        self._ends = clock() + seconds

    def left(self) -> float:
        """Seconds, never 0 (which would mean: do not wait at all). Raises TimeoutError."""
        left = self._ends - self._clock()
        if left <= 0:
            raise TimeoutError
        return left


class _Reader(io.RawIOBase):
    """What a socket says, each piece within what is left of the whole time: a server that drips gains nothing."""

    def __init__(self, connection: socket.socket, deadline: _Deadline) -> None:
        self._connection = connection
        self._deadline = deadline

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        self._connection.settimeout(self._deadline.left())
        return self._connection.recv_into(buffer)


class _Readable:
    """As much of a socket as http.client reads an answer from."""

    def __init__(self, connection: socket.socket, deadline: _Deadline) -> None:
        self._raw = _Reader(connection, deadline)

    def makefile(self, *_: Any, **__: Any) -> io.BufferedReader:
        return io.BufferedReader(self._raw, _READ_BYTES)


def _read(connection: socket.socket, method: str, most: int, deadline: _Deadline) -> Answer:
    readable: Any = _Readable(connection, deadline)
    response = http.client.HTTPResponse(readable, method=method)
    response.begin()
    headers = {name.lower(): value for name, value in response.getheaders()}
    if headers.get("content-encoding", "identity").lower() != "identity":
        raise BadAnswer("The answer is compressed, which was not asked for.")
    if response.length is not None and response.length > most:
        raise BadAnswer(f"The answer is larger than {most} bytes.")
    body = bytearray()
    while piece := response.read(min(_READ_BYTES, most + 1 - len(body))):
        body += piece
        if len(body) > most:
            raise BadAnswer(f"The answer is larger than {most} bytes.")
    if response.length:
        raise BadAnswer("The answer was cut off.")
    return Answer(response.status, headers, bytes(body))


def _encode(target: Target, method: str, headers: Mapping[str, str], body: bytes | None) -> bytes:
    fields = {"host": target.authority, "user-agent": "gatehouse", "accept-encoding": "identity", "connection": "close"}
    if body is not None:
        fields["content-length"] = str(len(body))
    fields = {name.lower(): value for name, value in headers.items()} | fields
    if any(_header_unsafe.search(name + value) for name, value in fields.items()):
        raise BadAddress("A header has a line break in it.")
    head = f"{method} {target.path} HTTP/1.1\r\n" + "".join(f"{name}: {value}\r\n" for name, value in fields.items())
    return head.encode("latin-1", "replace") + b"\r\n" + (body or b"")


def _in_time(call: Callable[[], Sequence[str]], deadline: _Deadline) -> Sequence[str]:
    """The system's resolver knows no deadline; one that hangs is left behind. Raises TimeoutError."""
    done: queue.SimpleQueue[Sequence[str] | Exception] = queue.SimpleQueue()

    def run() -> None:
        try:
            done.put(call())
        except Exception as error:  # noqa: BLE001 - raised again where it is waited for
            done.put(error)

    threading.Thread(target=run, daemon=True, name="resolve").start()
    try:
        found = done.get(timeout=deadline.left())
    except queue.Empty:
        raise TimeoutError from None
    if isinstance(found, Exception):
        raise found
    return found


def _literal(host: str) -> Address | None:
    try:
        return ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return None


def _embedded(address: Address) -> Address:
    """The IPv4 address that an IPv6 one stands for, where it stands for one."""
    if isinstance(address, ipaddress.IPv4Address):
        return address
    if address in _NAT64:
        return ipaddress.IPv4Address(int(address) & 0xFFFFFFFF)
    teredo = address.teredo
    return address.ipv4_mapped or address.sixtofour or (teredo[1] if teredo else None) or address


def _why(error: OSError) -> str:
    return tls_failure(error) or error.strerror or type(error).__name__
