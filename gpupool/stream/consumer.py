"""The stream of one node agent: reports in, desired state out. A disconnect stops nothing on the node.

A frame waits for nothing: what it says is noted, its node's liveness is renewed, and a task of the stream writes it
down as fast as the database takes it. While frames are taken, pings are answered.
"""

import asyncio
import contextlib
from typing import Any, Final
from uuid import UUID

import msgspec
import structlog
from channels.db import database_sync_to_async
from channels.generic.websocket import AsyncWebsocketConsumer
from django.conf import settings
from django.db import Error

from gpupool import services
from gpupool.leases.base import StoreUnavailable
from gpupool.leases.default import shared_store
from gpupool.leases.liveness import NodeLiveness
from gpupool.models import Node
from gpupool.stream.desired import read_desired
from gpupool.stream.intake import decode
from gpupool.stream.messages import (
    HEARTBEAT_SECONDS,
    AgentMessage,
    BadMessage,
    Desired,
    Hello,
    InstanceFact,
    Observed,
    Refused,
    ServerMessage,
    Welcome,
)
from gpupool.stream.newest import overtake, shared_gate
from gpupool.stream.watch import shared_watch

logger = structlog.get_logger(__name__)

RESYNC_SECONDS: Final = 10.0
SILENCE_SECONDS: Final = HEARTBEAT_SECONDS * 5
CLOSE_REFUSED: Final = 4400
CLOSE_SUPERSEDED: Final = 4409
CLOSE_TRY_AGAIN: Final = 1013
CLOSE_DEFECT: Final = 1011

_RENEWAL_PATIENCE_SECONDS: Final = 0.5

_SUPERSEDED: Final = "another stream speaks for this node now, or its token was changed"
_encoder: Final = msgspec.json.Encoder()


class AgentConsumer(AsyncWebsocketConsumer):
    """One connection. The newest one of a node speaks for it; an older one is refused at its next word."""

    node: Node
    session_id: UUID | None = None
    orphans: tuple[InstanceFact, ...] = ()
    _renewal: "asyncio.Task[None] | None" = None
    _outwaited: "asyncio.Task[None] | None" = None  # the renewal that was waited for last
    _writer: "asyncio.Task[None] | None" = None  # from the hello on
    _report: Observed | None = None  # the newest one that is not being written yet
    _gone = False
    _ended = False

    async def dispatch(self, message: Any) -> None:
        """Without Channels' look at the database's connections before each message, which waits for its thread."""
        match message["type"]:
            case "websocket.receive":
                await self.websocket_receive(message)
            case "websocket.disconnect":
                await self.websocket_disconnect(message)
            case _:
                await super().dispatch(message)

    async def connect(self) -> None:
        self._tasks: list[asyncio.Task[None]] = []
        self._heard = asyncio.Event()
        self._reported = asyncio.Event()
        node = await database_sync_to_async(services.authenticate_node)(self._token())
        if node is None:
            await self.close()  # before accept: the handshake is answered with 403
            return
        self.node = node
        ttl_seconds: float = settings.GATEHOUSE.node_unreachable_seconds
        self._liveness = NodeLiveness(shared_store(), node.pk, ttl_seconds=ttl_seconds)
        self._changed = shared_watch().subscribe(node.pk)
        await self.accept()
        self._tasks.append(asyncio.create_task(self._close_when_silent()))

    async def disconnect(self, code: int) -> None:
        self._gone = self._ended = True
        await self._finish_writing()
        for task in [*self._tasks, self._renewal]:
            if task is not None:
                task.cancel()
        if hasattr(self, "_changed"):
            shared_watch().unsubscribe(self.node.pk, self._changed)
            logger.info("agent_stream_closed", node=self.node.name, code=code)

    async def _finish_writing(self) -> None:
        """What it said last counts. A hello that still waits does not: nobody hears its welcome, and it costs most."""
        if self._writer is None:
            return
        if self.session_id is None:
            self._writer.cancel()
        self._reported.set()
        await asyncio.wait({self._writer})

    async def receive(self, text_data: str | None = None, bytes_data: bytes | None = None) -> None:
        self._heard.set()
        if self._ended:
            return
        try:
            self._take(decode(text_data if text_data is not None else bytes_data or b""))
        except BadMessage as error:
            await self._refuse_message(error)

    def _take(self, message: AgentMessage) -> None:
        """Note it, to be written in its turn. Raises BadMessage."""
        if isinstance(message, Hello):
            self._check_hello(message)
        elif self._writer is None:
            raise BadMessage("the first message is a hello")
        self._renew()
        if isinstance(message, Hello):
            self._writer = asyncio.create_task(self._write(message))
        else:
            self._report = overtake(self._report, message)
            self._reported.set()

    def _check_hello(self, hello: Hello) -> None:
        if self._writer is not None:
            raise BadMessage("a stream has one hello")
        if hello.node != self.node.name:
            raise BadMessage(f"this token is node {self.node.name}'s, not {hello.node}'s")

    async def _write(self, hello: Hello) -> None:
        """The hello first, then each time the newest report, until the stream ends."""
        try:
            await self._greet(hello)
            while self._report is not None or not self._gone:
                await self._reported.wait()
                self._reported.clear()
                if self._report is not None:
                    await self._write_report()
        except BadMessage as error:
            await self._refuse_message(error)
        except services.SessionSuperseded:
            await self._make_room()
        except Error as error:
            # The database is away: the agent keeps its engines running and connects again.
            logger.warning("agent_report_not_written", node=self.node.name, error=str(error))
            await self._end(CLOSE_TRY_AGAIN)
        except Exception as error:  # a stream that goes on without being written would look alive
            logger.error("agent_stream_broke", node=self.node.name, exc_info=error)
            await self._end(CLOSE_DEFECT)

    async def _greet(self, hello: Hello) -> None:
        await self._alive_first()
        async with shared_gate():
            # Anew: a stream may be held open without a hello until after its token was changed.
            apply = database_sync_to_async(services.apply_hello)
            intake = await apply(self.node.pk, hello, token_digest=self.node.token_digest)
        self.session_id, self.orphans = intake.session_id, intake.orphans
        logger.info("agent_stream_open", node=self.node.name, session=str(self.session_id))
        ttl_seconds: float = settings.GATEHOUSE.node_unreachable_seconds
        heartbeat = min(HEARTBEAT_SECONDS, ttl_seconds / 3)  # one that is late must not make the node silent
        await self._say(Welcome(node_id=self.node.pk, heartbeat_seconds=heartbeat))
        self._tasks.append(asyncio.create_task(self._tell_desired()))

    async def _write_report(self) -> None:
        await self._alive_first()
        async with shared_gate():
            report, self._report = self._report, None
            if report is None or self.session_id is None:
                return
            intake = await database_sync_to_async(services.apply_observed)(self.node.pk, self.session_id, report)
        self._note_orphans(intake.orphans)
        if report.events:
            self._changed.set()  # it tells them until it hears that they are kept

    def _note_orphans(self, orphans: tuple[InstanceFact, ...]) -> None:
        if {fact.instance_id for fact in orphans} != {fact.instance_id for fact in self.orphans}:
            if orphans:
                logger.warning(
                    "engines_without_instance", node=self.node.name, instances=[str(f.instance_id) for f in orphans]
                )
            self._changed.set()
        self.orphans = orphans

    def _renew(self) -> None:
        """Say in the lease store that the node was heard; once at a time."""
        if self._renewal is None or self._renewal.done():
            self._renewal = asyncio.create_task(self._tell_store())

    async def _alive_first(self) -> None:
        """First its liveness, then its words: a node is never recorded as online without being alive.

        A store that does not answer keeps no report waiting: no renewal is waited for twice.
        """
        if self._renewal is not None and self._renewal is not self._outwaited:
            self._outwaited = self._renewal
            await asyncio.wait({self._renewal}, timeout=_RENEWAL_PATIENCE_SECONDS)

    async def _tell_store(self) -> None:
        try:
            await self._liveness.heard()
        except StoreUnavailable as error:
            logger.warning("node_liveness_not_renewed", node=self.node.name, error=str(error))

    async def _tell_desired(self) -> None:
        """Send the desired state at once, on every change, and now and then in case a change was missed."""
        while True:
            self._changed.clear()
            try:
                async with shared_gate():
                    desired = await database_sync_to_async(self._read_desired)()
            except Error as error:
                logger.warning("desired_not_read", node=self.node.name, error=str(error))
            else:
                if desired is None:
                    await self._make_room()
                    return
                await self._say(desired)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(RESYNC_SECONDS):
                    await self._changed.wait()

    def _read_desired(self) -> Desired | None:
        """None when this stream does not speak for the node any more."""
        if not Node.objects.filter(pk=self.node.pk, session_id=self.session_id).exists():
            return None
        return read_desired(self.node.pk, self.orphans)

    async def _close_when_silent(self) -> None:
        while True:
            self._heard.clear()
            try:
                async with asyncio.timeout(SILENCE_SECONDS):
                    await self._heard.wait()
            except TimeoutError:
                logger.warning("agent_silent", node=self.node.name)
                await self._end(CLOSE_TRY_AGAIN)
                return

    async def _make_room(self) -> None:
        """This stream does not speak for the node any more: a newer one does, or its token is void. The agent ends.

        Where its node was declared lost nobody speaks for it, and it may: it is asked to begin anew, with a hello.
        """
        try:
            lost = await database_sync_to_async(self._was_lost)()
        except Error as error:
            logger.warning("agent_report_not_written", node=self.node.name, error=str(error))
            lost = True
        await self._end(CLOSE_TRY_AGAIN if lost else CLOSE_SUPERSEDED, "" if lost else _SUPERSEDED)

    def _was_lost(self) -> bool:
        node = Node.objects.filter(pk=self.node.pk, session_id=None, token_revoked_at=None)
        return node.filter(token_digest=self.node.token_digest).exists()

    async def _refuse_message(self, error: BadMessage) -> None:
        logger.warning("agent_message_refused", node=self.node.name, error=str(error))
        await self._end(CLOSE_REFUSED, str(error))

    async def _end(self, code: int, refusal: str = "") -> None:
        """Close it, once: its tasks may find one after the other that it is at its end."""
        if self._ended:
            return
        self._ended = True
        if refusal:
            await self._say(Refused(reason=refusal))
        with contextlib.suppress(OSError):
            await self.close(code)

    async def _say(self, message: ServerMessage) -> None:
        with contextlib.suppress(OSError):  # where it has gone, its disconnect is on its way
            await self.send(text_data=_encoder.encode(message).decode())

    def _token(self) -> str:
        values = [value for name, value in self.scope["headers"] if name == b"authorization"]
        scheme, _, token = (values[0] if len(values) == 1 else b"").decode("latin-1").partition(" ")
        return token.strip() if scheme.lower() == "bearer" else ""
