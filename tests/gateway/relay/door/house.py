"""A door with a pipeline that admits everything, and a client that speaks raw HTTP."""

import asyncio
import json
import socket
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

from core.clock import SystemClock
from core.errors import GatehouseError
from core.ids import uuid7
from gateway.policies.breaker import AttemptOutcome
from gateway.relay.coalesce import Coalescer
from gateway.relay.deadlines import Deadlines
from gateway.relay.dialects.interpreter import Interpreter
from gateway.relay.door import Door, DoorLimits
from gateway.relay.exchange import Exchange
from gateway.relay.plan import Decision, Endpoint, Outcome, Ready, Rejected, Settlement, SlimRequest, Work
from gateway.relay.realtime.connection import RealtimeLimits
from gateway.relay.routes import ENGINE_PATHS
from gateway.relay.server import RelayServer, ServerLimits, listen
from gateway.relay.splice import parse_body
from gateway.relay.upstream import UpstreamClient, UpstreamLimits
from tenants.principal import Principal
from tests.ports import free_port as free_port

_TURN_SECONDS = 0.005
PRINCIPAL = Principal(uuid4(), "demo", uuid4(), frozenset({"infer"}), (), None)


class FirstPicker:
    """Picks in the order of the list; remembers what it was told."""

    def __init__(self, endpoints: Sequence[Endpoint]) -> None:
        self.endpoints = endpoints
        self.in_flight = 0
        self.failed: list[Endpoint] = []
        self.outcomes: list[AttemptOutcome] = []
        self.answers = 0

    def pick(self, exclude: frozenset[UUID]) -> Endpoint | None:
        return next((e for e in self.endpoints if e.instance_id not in exclude), None)

    def started(self, endpoint: Endpoint) -> None:
        self.in_flight += 1

    def why_not(self, exclude: frozenset[UUID]) -> dict[UUID, str]:
        return dict.fromkeys(exclude, "tried")

    def retry_after_seconds(self) -> float:
        return 1.0

    def spend_retry(self) -> bool:
        return True

    def answered(self) -> None:
        self.answers += 1

    def finished(self, endpoint: Endpoint, outcome: AttemptOutcome) -> None:
        self.in_flight -= 1
        self.outcomes.append(outcome)
        if outcome in (AttemptOutcome.FAILED, AttemptOutcome.REFUSED_CONNECTION):
            self.failed.append(endpoint)


@dataclass
class NotedTicket:
    """Keeps what it is settled with; the second time is a no-op."""

    settlements: list[Settlement]
    settled: bool = False

    def settle(self, settlement: Settlement) -> None:
        if not self.settled:
            self.settled = True
            self.settlements.append(settlement)


async def _admit_all(model: str) -> None:
    pass


@dataclass
class OpenPipeline:
    """Admits every well-formed request, or refuses all with `refuse`."""

    picker: FirstPicker
    settlements: list[Settlement] = field(default_factory=list)
    refuse: GatehouseError | None = None
    defect: Exception | None = None
    hold: asyncio.Event | None = None
    interpreter: Interpreter = field(default_factory=Interpreter)
    quick: bool = True  # requests are begun without a task
    prepared: int = 0
    admitted: int = 0

    def prepare_now(self, request: SlimRequest) -> Ready | None:
        if not self.quick or self.defect or self.hold or self.refuse or request.api not in ENGINE_PATHS:
            return None
        try:
            parsed = parse_body(request.api, request.body)
        except GatehouseError:
            return None
        self.prepared += 1
        self.admitted += 1
        work = Work(request.api, request.path, request.body, parsed)
        return Ready(request, PRINCIPAL, work, self.picker, NotedTicket(self.settlements))

    async def prepare(self, request: SlimRequest) -> Decision:
        self.prepared += 1
        if self.defect is not None:
            raise self.defect
        if self.hold is not None:
            await self.hold.wait()
        if self.refuse is not None:
            return Rejected(self.refuse)
        try:
            if request.api in ENGINE_PATHS:
                work = Work(request.api, request.path, request.body, parse_body(request.api, request.body))
            else:
                work = await self.interpreter.interpret(request, PRINCIPAL, _admit_all)
        except GatehouseError as error:
            return Rejected(error)
        self.admitted += 1
        return Ready(request, PRINCIPAL, work, self.picker, NotedTicket(self.settlements))

    async def models(self, request: SlimRequest) -> bytes:
        if failure := self.refuse or self.defect:
            raise failure
        return json.dumps({"path": request.path}).encode()


def endpoint(port: int, *, served_name: str = "served", authorization: str | None = None) -> Endpoint:
    return Endpoint(uuid7(), uuid7(), "double", "127.0.0.1", port, "", served_name, authorization)


@dataclass
class Answer:
    """A response as it came over the wire."""

    status: int
    headers: list[tuple[str, str]]
    body: bytes

    def header(self, name: str) -> str | None:
        return next((value for key, value in self.headers if key == name), None)

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def error(self) -> dict[str, Any]:
        error = self.json["error"]
        assert set(error) == {"message", "type", "param", "code"}
        return dict(error)


class RawClient:
    """One connection to the door."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    async def request(
        self,
        method: str,
        path: str,
        body: bytes | None = None,
        headers: Sequence[tuple[str, str]] = (),
    ) -> None:
        lines = [f"{method} {path} HTTP/1.1", "Host: door", *(f"{name}: {value}" for name, value in headers)]
        if body is not None and not any(name.lower() == "content-length" for name, _ in headers):
            lines.append(f"Content-Length: {len(body)}")
        self.writer.write("\r\n".join([*lines, "", ""]).encode() + (body or b""))
        await self.writer.drain()

    async def head(self) -> tuple[int, list[tuple[str, str]]]:
        lines = (await self.reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
        pairs = (line.partition(":") for line in lines[1:] if line)
        return int(lines[0].split(" ")[1]), [(name.lower(), value.strip()) for name, _, value in pairs]

    async def chunk(self) -> bytes:
        """The next piece of a chunked body, b"" at its end."""
        size = int((await self.reader.readuntil(b"\r\n")).strip(), 16)
        data = await self.reader.readexactly(size + 2)
        return data[:-2]

    async def answer(self, *, has_body: bool = True) -> Answer:
        status, headers = await self.head()
        named = dict(headers)
        body = b""
        if not has_body or status == 204:
            pass
        elif named.get("transfer-encoding") == "chunked":
            while piece := await self.chunk():
                body += piece
        else:
            body = await self.reader.readexactly(int(named["content-length"]))
        return Answer(status, headers, body)

    def leave(self) -> None:
        """Close at once, as a client does that is killed."""
        self.writer.transport.abort()


class DoorHouse:
    """A running door; `settlements` is what its requests were settled with."""

    def __init__(
        self, door: Door, server: RelayServer, pipeline: OpenPipeline, client: UpstreamClient, port: int
    ) -> None:
        self.door = door
        self.server = server
        self.pipeline = pipeline
        self.upstream = client
        self.port = port
        self.task: asyncio.Task[None] | None = None
        self._clients: list[RawClient] = []

    @classmethod
    async def start(
        cls,
        folder: Path,
        engine_ports: Sequence[int],
        *,
        served_name: str = "served",
        authorization: str | None = None,
        deadlines: Deadlines | None = None,
        door_limits: DoorLimits | None = None,
        realtime_limits: RealtimeLimits | None = None,
        limits: ServerLimits | None = None,
        upstream_limits: UpstreamLimits | None = None,
        readiness: Callable[[], str | None] = lambda: None,
        coalesce: bool = False,
    ) -> "DoorHouse":
        endpoints = [endpoint(port, served_name=served_name, authorization=authorization) for port in engine_ports]
        pipeline = OpenPipeline(FirstPicker(endpoints))
        client, clock = UpstreamClient(upstream_limits), SystemClock()
        bounds = deadlines or Deadlines()
        coalescer = Coalescer(lambda ready: Exchange(ready, client, clock, bounds), clock, bounds)
        door = Door(
            pipeline,
            client,
            clock,
            deadlines=bounds,
            limits=door_limits,
            realtime_limits=realtime_limits,
            readiness=readiness,
            coalescer=coalescer if coalesce else None,
        )
        port = free_port()
        server = RelayServer(
            door, listen("127.0.0.1", port, folder / "run"), limits or ServerLimits(drain_notice_seconds=0)
        )
        house = cls(door, server, pipeline, client, port)
        house.task = asyncio.create_task(server.run_until_stopped())
        await until(lambda: server.started)
        return house

    @property
    def settlements(self) -> list[Settlement]:
        return self.pipeline.settlements

    async def settled(self, count: int = 1) -> list[Settlement]:
        """The settlements, once there are `count`."""
        await until(lambda: len(self.settlements) >= count)
        assert len(self.settlements) == count
        return self.settlements

    async def outcome(self) -> Outcome:
        return (await self.settled())[0].outcome

    def signal(self) -> None:
        """As SIGTERM."""
        self.server.handle_exit(15, None)

    def end_notice(self, seconds: float) -> None:
        """As if the notice of so many seconds, which has begun, were over."""
        ends, now = self.server._notice_ends, asyncio.get_running_loop().time()
        assert ends is not None
        assert now <= ends <= now + seconds
        self.server._notice_ends = now

    async def stop(self) -> None:
        for client in self._clients:
            client.leave()
        if self.task is not None and not self.task.done():
            for _ in range(3):
                self.signal()
        if self.task is not None:
            await asyncio.wait_for(self.task, 30)
        await self.upstream.aclose()

    async def connect(self) -> RawClient:
        return self._client(*await asyncio.open_connection("127.0.0.1", self.port))

    async def connect_and_say(self, first: bytes) -> RawClient:
        """A connection that never was a silent one: what it says is there before the door looks at it."""
        connection = socket.create_connection(("127.0.0.1", self.port))
        connection.sendall(first)
        return self._client(*await asyncio.open_connection(sock=connection))

    def _client(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> RawClient:
        client = RawClient(reader, writer)
        self._clients.append(client)
        return client

    async def ask(
        self,
        body: bytes | dict[str, Any] | None = None,
        *,
        method: str = "POST",
        path: str = "/v1/chat/completions",
        headers: Sequence[tuple[str, str]] = (),
    ) -> Answer:
        """One request on a connection of its own, and its whole answer."""
        client = await self.connect()
        content = json.dumps(body).encode() if isinstance(body, dict) else body
        await client.request(method, path, content, headers)
        async with asyncio.timeout(30):
            return await client.answer(has_body=method != "HEAD")


def chat(*, stream: bool = False, model: str = "alias", **members: Any) -> dict[str, Any]:
    """A chat body."""
    body: dict[str, Any] = {"model": model, "messages": [{"role": "user", "content": "Hi"}], **members}
    if stream:
        body["stream"] = True
    return body


async def until(condition: Callable[[], bool], seconds: float = 30.0) -> None:
    """Return once `condition` holds; fails after `seconds`, in turns of the loop: who is not run meanwhile has none."""
    turns = round(seconds / _TURN_SECONDS)
    while not condition():
        assert turns, "it did not come to that"
        turns -= 1
        await asyncio.sleep(_TURN_SECONDS)
