"""A scriptable web process, as far as a node agent can see it: one websocket endpoint."""

import asyncio
import ssl
from collections.abc import Callable, Iterable
from types import TracebackType
from typing import Self
from uuid import UUID, uuid4

import msgspec
from websockets.asyncio.server import Server, ServerConnection, serve
from websockets.exceptions import ConnectionClosed
from websockets.http11 import Request, Response

from core.ids import uuid7
from gpupool.stream.messages import (
    STREAM_PATH,
    AgentMessage,
    Desired,
    DesiredInstance,
    Hello,
    InstanceFact,
    Observed,
    Refused,
    Welcome,
)

_decoder: "msgspec.json.Decoder[AgentMessage]" = msgspec.json.Decoder(AgentMessage)


class FakeWeb:
    """Welcomes agents, remembers what they say, and tells each the same desired state."""

    def __init__(
        self,
        *,
        token: str = "node-token",
        refuse: str | None = None,
        heartbeat_seconds: float = 0.3,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self.token = token
        self.refuse = refuse
        self.heartbeat_seconds = heartbeat_seconds
        self.tls = tls
        self.port = 0
        self.hellos: list[Hello] = []
        self.observed: list[Observed] = []
        self.connections: set[ServerConnection] = set()
        self.rows: dict[UUID, DesiredInstance] | None = None
        self.revision = 0
        self._waiting: list[tuple[Callable[[], bool], asyncio.Future[None]]] = []
        self._server: Server | None = None

    @property
    def url(self) -> str:
        return f"{'http' if self.tls is None else 'https'}://127.0.0.1:{self.port}"

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.stop()

    async def start(self) -> None:
        """Listen, on the same port as before when it was stopped."""
        self._server = await serve(self._talk, "127.0.0.1", self.port, process_request=self._admit, ssl=self.tls)
        self.port = next(iter(self._server.sockets)).getsockname()[1]

    async def stop(self) -> None:
        """Go away; agents lose their stream."""
        if self._server is not None:
            self._server.close()
            await self._server.wait_closed()
            self._server = None

    async def desire(self, *rows: DesiredInstance) -> None:
        """Tell every agent, and those that come later, that these are the rows of its node."""
        self.rows = {row.instance_id: row for row in rows}
        self.revision += 1
        for connection in list(self.connections):
            await self._tell(connection)

    async def until(self, condition: Callable[[], bool], *, deadline_seconds: float = 60.0) -> None:
        """Wait until what was heard fulfils `condition`; fails with what was heard last.

        It is asked with every message: of several that come at once none is passed over.
        """
        waiting = condition, asyncio.get_running_loop().create_future()
        self._waiting.append(waiting)
        self._ask(*waiting)
        try:
            async with asyncio.timeout(deadline_seconds):
                await waiting[1]
        except TimeoutError:
            raise AssertionError(f"not within {deadline_seconds} s; last heard: {self.latest()}") from None
        finally:
            self._waiting.remove(waiting)

    async def until_fact(
        self, instance_id: UUID, condition: Callable[[InstanceFact], bool], *, deadline_seconds: float = 60.0
    ) -> InstanceFact:
        """The first of what is said of the instance that fulfils `condition`, whatever was said since."""
        found: list[InstanceFact] = []

        def look() -> bool:
            fact = self.fact(instance_id)
            if fact is not None and condition(fact):
                found.append(fact)
            return bool(found)

        await self.until(look, deadline_seconds=deadline_seconds)
        return found[0]

    async def until_state(self, instance_id: UUID, *states: str, deadline_seconds: float = 60.0) -> InstanceFact:
        """The first report in which the instance is in one of `states`."""
        return await self.until_fact(instance_id, lambda fact: fact.state in states, deadline_seconds=deadline_seconds)

    def latest(self) -> Hello | Observed | None:
        """The newest message with facts in it."""
        return self.observed[-1] if self.observed else (self.hellos[-1] if self.hellos else None)

    def fact(self, instance_id: UUID) -> InstanceFact | None:
        """What was said last of an instance."""
        latest = self.latest()
        return next((f for f in latest.instances if f.instance_id == instance_id), None) if latest else None

    def forget(self) -> None:
        """Drop what was heard so far."""
        self.hellos.clear()
        self.observed.clear()

    def _admit(self, connection: ServerConnection, request: Request) -> Response | None:
        if request.path != STREAM_PATH:
            return connection.respond(404, "no such path\n")
        if request.headers.get("Authorization") != f"Bearer {self.token}":
            return connection.respond(403, "no\n")
        return None

    async def _talk(self, connection: ServerConnection) -> None:
        try:
            hello = _decoder.decode(await connection.recv())
            assert isinstance(hello, Hello), "the first message must be a Hello"
            if self.refuse is not None:
                await connection.send(msgspec.json.encode(Refused(reason=self.refuse)), text=True)
                return
            self.hellos.append(hello)
            self.observed.clear()
            await connection.send(
                msgspec.json.encode(Welcome(node_id=uuid4(), heartbeat_seconds=self.heartbeat_seconds)), text=True
            )
            self.connections.add(connection)
            await self._heard()
            await self._tell(connection)
            async for frame in connection:
                message = _decoder.decode(frame)
                assert isinstance(message, Observed)
                self.observed.append(message)
                await self._heard()
        except ConnectionClosed:
            pass
        finally:
            self.connections.discard(connection)
            await self._heard()

    async def _tell(self, connection: ServerConnection) -> None:
        if self.rows is not None:
            desired = Desired(revision=self.revision, instances=list(self.rows.values()))
            await connection.send(msgspec.json.encode(desired), text=True)

    async def _heard(self) -> None:
        for condition, met in list(self._waiting):
            self._ask(condition, met)

    @staticmethod
    def _ask(condition: Callable[[], bool], met: "asyncio.Future[None]") -> None:
        """What the condition fails with, the one who waits for it is told."""
        if met.done():
            return
        try:
            if condition():
                met.set_result(None)
        except Exception as error:  # noqa: BLE001  # raised where it is waited for
            met.set_exception(error)


def row(
    *,
    devices: Iterable[str],
    artefact_uri: str,
    instance_id: UUID | None = None,
    state: str = "running",
    fencing_token: int = 1,
    engine: str = "llamacpp",
    engine_args: object = None,
    drain_seconds: float = 0.0,
) -> DesiredInstance:
    """A desired row with plain values for everything that a test does not care about."""
    return DesiredInstance(
        instance_id=instance_id or uuid7(),
        state=state,
        lease_id=fencing_token * 10,
        fencing_token=fencing_token,
        device_ids=list(devices),
        memory_bytes=64 * 1024 * 1024,
        engine=engine,
        served_name="tiny",
        artefact_uri=artefact_uri,
        engine_args={"n_ctx": 512, "n_parallel": 2, "n_threads": 1} if engine_args is None else engine_args,
        drain_seconds=drain_seconds,
    )
