"""The stream of one node agent: reports in, desired state out. A disconnect stops nothing on the node."""

import asyncio
import contextlib
from typing import Final
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
    BadMessage,
    Desired,
    Hello,
    InstanceFact,
    Refused,
    ServerMessage,
    Welcome,
)
from gpupool.stream.watch import shared_watch

logger = structlog.get_logger(__name__)

RESYNC_SECONDS: Final = 10.0
SILENCE_SECONDS: Final = HEARTBEAT_SECONDS * 5
CLOSE_REFUSED: Final = 4400
CLOSE_SUPERSEDED: Final = 4409
CLOSE_TRY_AGAIN: Final = 1013

_RENEWAL_PATIENCE_SECONDS: Final = 0.5

_SUPERSEDED: Final = "another stream speaks for this node now, or its token was changed"
_encoder: Final = msgspec.json.Encoder()


class AgentConsumer(AsyncWebsocketConsumer):
    """One connection. The newest one of a node speaks for it; an older one is refused at its next word."""

    node: Node
    session_id: UUID | None = None
    orphans: tuple[InstanceFact, ...] = ()
    _renewal: "asyncio.Task[None] | None" = None

    async def connect(self) -> None:
        self._tasks: list[asyncio.Task[None]] = []
        self._heard = asyncio.Event()
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
        for task in [*self._tasks, self._renewal]:
            if task is not None:
                task.cancel()
        if hasattr(self, "_changed"):
            shared_watch().unsubscribe(self.node.pk, self._changed)
            logger.info("agent_stream_closed", node=self.node.name, code=code)

    async def receive(self, text_data: str | None = None, bytes_data: bytes | None = None) -> None:
        self._heard.set()
        try:
            message = decode(text_data if text_data is not None else bytes_data or b"")
            # First its liveness, then its words: a node is never recorded as online without being alive.
            await self._renew()
            if isinstance(message, Hello):
                await self._greet(message)
            elif self.session_id is None:
                raise BadMessage("the first message is a hello")
            else:
                intake = await database_sync_to_async(services.apply_observed)(self.node.pk, self.session_id, message)
                self._note_orphans(intake.orphans)
                if message.events:
                    self._changed.set()  # it tells them until it hears that they are kept
        except BadMessage as error:
            logger.warning("agent_message_refused", node=self.node.name, error=str(error))
            await self._refuse(str(error), CLOSE_REFUSED)
        except services.SessionSuperseded:
            await self._make_room()
        except Error as error:
            # The database is away: the agent keeps its engines running and connects again.
            logger.warning("agent_report_not_written", node=self.node.name, error=str(error))
            await self.close(CLOSE_TRY_AGAIN)

    async def _greet(self, hello: Hello) -> None:
        if self.session_id is not None:
            raise BadMessage("a stream has one hello")
        if hello.node != self.node.name:
            raise BadMessage(f"this token is node {self.node.name}'s, not {hello.node}'s")
        # Anew: a stream may be held open without a hello until after its token was changed.
        apply = database_sync_to_async(services.apply_hello)
        intake = await apply(self.node.pk, hello, token_digest=self.node.token_digest)
        self.session_id, self.orphans = intake.session_id, intake.orphans
        logger.info("agent_stream_open", node=self.node.name, session=str(self.session_id))
        ttl_seconds: float = settings.GATEHOUSE.node_unreachable_seconds
        heartbeat = min(HEARTBEAT_SECONDS, ttl_seconds / 3)  # one that is late must not make the node silent
        await self._say(Welcome(node_id=self.node.pk, heartbeat_seconds=heartbeat))
        self._tasks.append(asyncio.create_task(self._tell_desired()))

    def _note_orphans(self, orphans: tuple[InstanceFact, ...]) -> None:
        if {fact.instance_id for fact in orphans} != {fact.instance_id for fact in self.orphans}:
            if orphans:
                logger.warning(
                    "engines_without_instance", node=self.node.name, instances=[str(f.instance_id) for f in orphans]
                )
            self._changed.set()
        self.orphans = orphans

    async def _renew(self) -> None:
        """Say in the lease store that the node was heard. A store that does not answer keeps no report waiting."""
        if self._renewal is not None and not self._renewal.done():
            return
        self._renewal = asyncio.create_task(self._tell_store())
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
                await self.close(CLOSE_TRY_AGAIN)
                return

    async def _make_room(self) -> None:
        """This stream does not speak for the node any more: a newer one does, or its token is void. The agent ends.

        Where its node was declared lost nobody speaks for it, and it may: it is asked to begin anew, with a hello.
        """
        if await database_sync_to_async(self._was_lost)():
            await self.close(CLOSE_TRY_AGAIN)
        else:
            await self._refuse(_SUPERSEDED, CLOSE_SUPERSEDED)

    def _was_lost(self) -> bool:
        node = Node.objects.filter(pk=self.node.pk, session_id=None, token_revoked_at=None)
        return node.filter(token_digest=self.node.token_digest).exists()

    async def _refuse(self, reason: str, code: int) -> None:
        await self._say(Refused(reason=reason))
        await self.close(code)

    async def _say(self, message: ServerMessage) -> None:
        await self.send(text_data=_encoder.encode(message).decode())

    def _token(self) -> str:
        values = [value for name, value in self.scope["headers"] if name == b"authorization"]
        scheme, _, token = (values[0] if len(values) == 1 else b"").decode("latin-1").partition(" ")
        return token.strip() if scheme.lower() == "bearer" else ""
