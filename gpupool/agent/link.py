"""The agent's one stream to the web process: observed state up, desired state down.

Kept open for ever; after a break it is tried again with a growing, jittered wait, so that a restarted
web process is not met by all nodes at once.
"""

import asyncio
import contextlib
import random
import ssl
from collections.abc import Callable
from typing import Final, assert_never
from urllib.parse import urlsplit, urlunsplit

import msgspec
import structlog
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, InvalidHandshake, InvalidStatus, InvalidURI

from core.tls import tls_failure
from gpupool.stream.messages import (
    HEARTBEAT_SECONDS,
    STREAM_PATH,
    Desired,
    Hello,
    Observed,
    Refused,
    ServerMessage,
    Welcome,
)

log = structlog.get_logger(__name__)

FIRST_WAIT_SECONDS: Final = 0.25
LONGEST_WAIT_SECONDS: Final = 10.0
_OPEN_DEADLINE_SECONDS: Final = 10.0
_PING_SECONDS: Final = 5.0
_SETTLED_SECONDS: Final = 5.0
_SHORTEST_GAP_SECONDS: Final = 0.1  # between two reports
_LARGEST_FRAME_BYTES: Final = 8 * 1024 * 1024


class NodeRefused(Exception):
    """The web process does not take this node; trying again would not help. The message is a sentence."""


class _Broken(Exception):
    """This connection cannot go on; the message says why."""


def stream_url(web_url: str) -> str:
    """The stream's address from the web process's (http or https). Raises NodeRefused for another kind of address."""
    parts = urlsplit(web_url)
    scheme = {"http": "ws", "https": "wss"}.get(parts.scheme)
    if scheme is None or not parts.netloc:
        raise NodeRefused(f"GATEHOUSE_WEB_URL={web_url!r} must look like http://host:port or https://host.")
    return urlunsplit((scheme, parts.netloc, parts.path.rstrip("/") + STREAM_PATH, "", ""))


def wait_before_attempt(failures: int, jitter: float) -> float:
    """Seconds before the next attempt after `failures` in a row; `jitter` in [0, 1) spreads it over half to whole."""
    ceiling = min(LONGEST_WAIT_SECONDS, FIRST_WAIT_SECONDS * 2.0 ** min(failures, 16))
    return ceiling * (0.5 + jitter / 2)


class Link:
    """Speaks for one node."""

    def __init__(
        self,
        *,
        url: str,
        token: str,
        hello: Callable[[], Hello],
        observed: Callable[[int], Observed],
        on_desired: Callable[[Desired], None],
        on_lost: Callable[[], None],
        changed: asyncio.Event,
        tls: ssl.SSLContext | None = None,
        jitter: Callable[[], float] = random.random,
    ) -> None:
        """`hello` and `observed` give the message to send now; `observed` takes its sequence number.

        `tls` is for a wss address; without it, what the system trusts is trusted.

        Setting `changed` makes it report at once instead of at the next heartbeat.
        """
        self._url = url
        self._token = token
        self._hello = hello
        self._observed = observed
        self._on_desired = on_desired
        self._on_lost = on_lost
        self._jitter = jitter
        self._tls = tls if urlsplit(url).scheme == "wss" else None
        self._changed = changed
        self._sequence = 0
        self._encoder = msgspec.json.Encoder()
        self._decoder = msgspec.json.Decoder(ServerMessage)

    async def run(self) -> None:
        """Keep the stream open until cancelled. Raises NodeRefused when the web process says so for good."""
        failures = 0
        while True:
            try:
                async with asyncio.timeout(_OPEN_DEADLINE_SECONDS):
                    connection = await self._open()
            except InvalidStatus as error:
                _raise_if_refused(error)
                reason = f"answered with status {error.response.status_code}"
            except OSError as error:
                reason = tls_failure(error) or str(error) or type(error).__name__
            except (InvalidHandshake, ConnectionClosed) as error:
                reason = str(error) or type(error).__name__
            except InvalidURI as error:
                raise NodeRefused(f"{self._url} is not an address that can be connected to.") from error
            else:
                begun = asyncio.get_running_loop().time()
                try:
                    reason = await self._speak(connection)
                    if asyncio.get_running_loop().time() - begun >= _SETTLED_SECONDS:
                        failures = 0  # one that is closed as soon as it is open must not be opened all the time
                except _Broken as error:
                    reason = str(error)
                finally:
                    self._on_lost()
                    with contextlib.suppress(OSError, TimeoutError):
                        async with asyncio.timeout(1.0):
                            await connection.close()
            wait = wait_before_attempt(failures, self._jitter())
            failures += 1
            log.warning("agent.web_away", url=self._url, reason=reason, retry_seconds=round(wait, 2))
            await asyncio.sleep(wait)

    async def _open(self) -> ClientConnection:
        return await connect(
            self._url,
            additional_headers={"Authorization": f"Bearer {self._token}"},
            max_size=_LARGEST_FRAME_BYTES,
            ping_interval=_PING_SECONDS,
            ping_timeout=_PING_SECONDS,
            open_timeout=_OPEN_DEADLINE_SECONDS,
            ssl=self._tls,
            proxy=None,  # nodes and web are one installation: a proxy meant for the internet is not asked
        )

    async def _speak(self, connection: ClientConnection) -> str:
        """One connection from Hello to its end; returns why it ended. Raises NodeRefused or _Broken."""
        try:
            async with asyncio.timeout(_OPEN_DEADLINE_SECONDS):
                await self._send(connection, self._hello())
                welcome = await self._receive(connection)
        except ConnectionClosed as error:
            raise _Broken(f"closed before a welcome: {_closing(error)}") from error
        except TimeoutError:
            raise _Broken("no welcome came") from None
        if not isinstance(welcome, Welcome):
            raise _Broken(f"said {type(welcome).__name__} where a welcome was due")
        log.info("agent.connected", url=self._url, node_id=str(welcome.node_id))
        heartbeat = min(HEARTBEAT_SECONDS, max(0.2, welcome.heartbeat_seconds))
        reporting = asyncio.create_task(self._report(connection, heartbeat))
        listening = asyncio.create_task(self._listen(connection))
        try:
            done, _ = await asyncio.wait({reporting, listening}, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
        except ConnectionClosed as error:
            return _closing(error)
        finally:
            for task in (reporting, listening):
                task.cancel()
            await asyncio.gather(reporting, listening, return_exceptions=True)
        return "the stream ended"

    async def _listen(self, connection: ClientConnection) -> None:
        revision: int | None = None
        while True:
            message = await self._receive(connection)
            match message:
                case Desired():
                    if revision is not None and message.revision < revision:
                        continue  # two writers overtook each other; the newer one has been read
                    revision = message.revision
                    self._on_desired(message)
                case Welcome():
                    continue
                case Refused():
                    continue  # raised by _receive
                case _:
                    assert_never(message)

    async def _report(self, connection: ClientConnection, heartbeat_seconds: float) -> None:
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(heartbeat_seconds):
                    await self._changed.wait()
            self._changed.clear()
            self._sequence += 1
            await self._send(connection, self._observed(self._sequence))
            await asyncio.sleep(_SHORTEST_GAP_SECONDS)

    async def _send(self, connection: ClientConnection, message: Hello | Observed) -> None:
        await connection.send(self._encoder.encode(message), text=True)

    async def _receive(self, connection: ClientConnection) -> ServerMessage:
        frame = await connection.recv()
        try:
            message: ServerMessage = self._decoder.decode(frame)
        except msgspec.MsgspecError as error:
            raise _Broken(f"a message could not be read: {error}") from error
        if isinstance(message, Refused):
            raise NodeRefused(f"The web process refused this node: {message.reason}")
        return message


def _raise_if_refused(error: InvalidStatus) -> None:
    if error.response.status_code in (401, 403):
        raise NodeRefused(
            "The web process does not accept this node's token (GATEHOUSE_NODE_TOKEN): it is wrong or was revoked. "
            "Rotate the node's token and start the agent with the new one."
        ) from error


def _closing(error: ConnectionClosed) -> str:
    close = error.rcvd or error.sent
    return "the connection broke" if close is None else f"closed with {close.code} {close.reason}".strip()
