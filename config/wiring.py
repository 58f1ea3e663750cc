"""The only place that chooses implementations: what the doors, the drain and the controller run on."""

import asyncio
import contextlib
import random
import threading
import time
from collections.abc import Awaitable, Callable, Coroutine
from functools import partial
from typing import Any, Final

import redis
import redis.asyncio
import structlog
from redis.exceptions import RedisError

from config.environment import Environment
from core.bus import epoch_channel
from core.clock import SystemClock
from core.ending import end_tasks
from core.env import SettingsError
from core.ids import uuid7
from core.outbound import OutboundClient
from core.telemetry import metrics
from core.tls import engine_context, outbound_context
from gateway.authentication import MachineAuthentication
from gateway.permissions import InferencePermission
from gateway.relay.adopt import Adopter, ValkeyNotes
from gateway.relay.breaker_board import BreakerBoard
from gateway.relay.carrier import Carrier
from gateway.relay.clients import ClientGuard, TooManyOfClient
from gateway.relay.coalesce import Coalesce, Coalescer
from gateway.relay.conversations import Conversations
from gateway.relay.deadlines import Deadlines
from gateway.relay.dialects.interpreter import Interpreter
from gateway.relay.dialects.responses import Responses, Retention
from gateway.relay.exchange import Exchange
from gateway.relay.follower import Follower
from gateway.relay.housekeeping import Housekeeping
from gateway.relay.limit_reader import LimitReader
from gateway.relay.limiting.layout import recall_channel
from gateway.relay.limiting.limiter import ValkeyLimiter
from gateway.relay.memory import MemoryBudget
from gateway.relay.outbox import Outbox
from gateway.relay.own_usage import OwnUsage
from gateway.relay.picker import Balancer
from gateway.relay.pipeline import Pipeline
from gateway.relay.plan import Api, Ready
from gateway.relay.realtime.connection import RealtimeLimits
from gateway.relay.realtime.session import SessionLimits
from gateway.relay.recount import EngineCounter
from gateway.relay.refusal_counts import RefusalCounts, RefusalOutbox
from gateway.relay.request_log import Mode, RequestLog
from gateway.relay.reserve import Reserver
from gateway.relay.settle import Settler
from gateway.relay.snapshot import Snapshot
from gateway.relay.spool import Spool, SpoolFull
from gateway.relay.stored import StoredResponses
from gateway.relay.subscriber import Subscriber
from gateway.relay.tokens.book import TokenBook
from gateway.relay.tokens.keysets import KeySets
from gateway.relay.tuning.answers import Tuning
from gateway.relay.upstream import UpstreamClient, UpstreamLimits
from gateway.relay.valkey import ValkeyClient, ValkeyRefused, ValkeyUnavailable
from gateway.services.conversation_store import DatabaseConversationStore
from gateway.services.drain import LedgerDrain
from gateway.services.limit_counters import LimitCounters
from gateway.services.limit_keeper import LimitKeeper
from gateway.services.refusals import RefusalDrain
from gateway.services.response_store import DatabaseResponseStore
from gateway.services.snapshot_source import DatabaseSnapshotSource
from gateway.services.tuning_store import DatabaseTuningStore
from gateway.services.usage_store import DatabaseUsageStore
from gpupool.engines.registry import engines
from gpupool.training.settings import training_settings

logger = structlog.get_logger(__name__)

SPOOL_FOLDER: Final = "spool"
_FLUSH_SECONDS: Final = 3.0
_FIRST_JOIN_SECONDS: Final = 3.0
"""A process that opens its door before it has a place among those who count tells limited requests 503. Without a
keeper or a Valkey there is none to be had: it opens all the same."""
_HINT_RETRY_SECONDS: Final = 1.0


class RelayRuntime:
    """What one process needs to serve inference, started and stopped on its loop."""

    def __init__(self, environment: Environment, *, door: str) -> None:
        self._environment = environment
        self._clock = SystemClock()
        self.snapshot = Snapshot()
        self._outbound = OutboundClient()
        self._keysets = KeySets(self._outbound, self.snapshot.issuers, clock=self._clock)
        tokens = TokenBook(self.snapshot, self._keysets, time.time)
        self.authentication = MachineAuthentication(self.snapshot, time.time, tokens)
        self.permission = InferencePermission(self.snapshot, time.time)
        # One for each client at most: a smaller pool would be a queue that no deadline knows of.
        self.memory = MemoryBudget(environment.relay_memory_bytes, on_miss=metrics.memory_misses.labels(door).inc)
        self.upstream = UpstreamClient(
            UpstreamLimits(connections_per_origin=environment.connections), memory=self.memory
        )
        self.deadlines = Deadlines(
            connect_seconds=environment.connect_deadline_seconds,
            first_token_seconds=environment.first_token_deadline_seconds,
            inter_token_seconds=environment.inter_token_deadline_seconds,
            total_seconds=environment.total_deadline_seconds,
            keep_alive_seconds=environment.keep_alive_seconds,
            attempts=environment.attempts,
            retry_seconds=environment.retry_deadline_seconds,
        )
        self._conversation_store = DatabaseConversationStore()
        self.conversations = Conversations(
            self._conversation_store, self.snapshot.conversation_retention_days, now=time.time, door=door
        )
        self.coalescer: Coalescer | None = None
        """None where requests are not coalesced; set by `start`."""
        self._door = door
        self._tasks: list[asyncio.Task[None]] = []
        self._pipeline: Pipeline | None = None

    @property
    def pipeline(self) -> Pipeline:
        """Only after `start`."""
        assert self._pipeline is not None
        return self._pipeline

    @property
    def stored(self) -> StoredResponses:
        """Only after `start`."""
        return self._stored

    @property
    def usage(self) -> OwnUsage:
        """Only after `start`."""
        return self._usage

    @property
    def tuning(self) -> Tuning:
        """Only after `start`."""
        return self._tuning

    def exchange(self, ready: Ready) -> Exchange:
        return Exchange(ready, self.upstream, self._clock, self.deadlines)

    def carrier(self, ready: Ready) -> Carrier:
        return self.conversations.keep(ready, self.exchange if self.coalescer is None else self.coalescer.carry)

    def ready(self) -> str | None:
        """None when requests can be served; readiness survives Valkey's absence while the snapshot serves."""
        if self._pipeline is None:
            return "starting"
        return self._follower.unready_reason()

    async def start(self) -> None:
        """Open the spool, load the snapshot. Raises SettingsError where a setting is wrong."""
        env = self._environment
        self.coalescer = self._build_coalescer()
        self.upstream.tls = engine_context(env.engine_ca_file)
        self._outbound.tls = outbound_context(env.outbound_ca_file)
        engines()  # now, so that the first request does not wait for them, and broken plugins are told at the start
        try:
            spool = Spool.create(env.var_dir / SPOOL_FOLDER, uuid7(), cap_bytes=env.spool_cap_bytes)
        except (OSError, SpoolFull) as error:
            raise SettingsError(
                f"the usage spool under {env.var_dir / SPOOL_FOLDER} cannot be made: {error}"
            ) from error
        self._follower = Follower(
            DatabaseSnapshotSource(),
            self.snapshot,
            clock=self._clock,
            poll_seconds=env.snapshot_poll_seconds,
            stale_seconds=env.snapshot_stale_seconds,
        )
        request_log = RequestLog(Mode.of(env.request_log), door=self._door, slow_seconds=env.request_log_slow_seconds)
        self._settler = Settler(
            spool,
            door=self._door,
            clock=self._clock,
            on_row=self._row_added,
            price=self.snapshot.price,
            request_log=request_log,
        )
        self._outbox: Outbox | None = None
        refusals: RefusalCounts | None = None
        self._refusal_outbox: RefusalOutbox | None = None
        self._limiter: ValkeyLimiter | None = None
        if env.valkey_state_url:
            self._limit_client = ValkeyClient(env.valkey_state_url, deadline_seconds=env.valkey_deadline_seconds)
            self._ledger_client = ValkeyClient(env.valkey_state_url, deadline_seconds=env.valkey_deadline_seconds)
            limiter = self._limiter = ValkeyLimiter(
                self._limit_client, prefix=env.valkey_prefix, process_id=spool.process_id, clock=self._clock
            )
            self._spawn(limiter.run())
            recalls = Subscriber(env.valkey_state_url, recall_channel(env.valkey_prefix), limiter.recalled)
            self._spawn(recalls.run())
            self._outbox = Outbox(
                self._settler,
                self._ledger_client,
                prefix=env.valkey_prefix,
                clock=self._clock,
                read_mark=self._follower.read_mark,
                on_mark=limiter.acknowledged,
            )
            self._spawn(self._outbox.run())
            refusals = RefusalCounts(time.time)
            self._refusal_outbox = RefusalOutbox(
                refusals, self._ledger_client, prefix=env.valkey_prefix, process_id=uuid7()
            )
            self._spawn(self._refusal_outbox.run())
            notes = ValkeyNotes(self._ledger_client, prefix=env.valkey_prefix, process_id=spool.process_id)
            self._spawn(Adopter(self._settler, env.var_dir / SPOOL_FOLDER, notes=notes).run())
        if env.valkey_scratch_url:
            self._spawn(_follow_hints(env.valkey_scratch_url, self._follower))
        await self._follower.start()
        if self._limiter is not None:
            await self._limiter.wait_joined(_FIRST_JOIN_SECONDS)
        self._spawn(self._keysets.run())
        balancer = Balancer(
            self.snapshot,
            clock=self._clock,
            random=random.random,
            retry_share=env.retry_share,
            processes=env.relay_processes,
        )
        self._spawn(Housekeeping(balancer, self.upstream, sweep=self._settler.sweep).run())
        if env.valkey_state_url:
            board = BreakerBoard(
                balancer,
                self._ledger_client,
                prefix=env.valkey_prefix,
                process_id=uuid7(),
                door=self._door,
                clock=self._clock,
                now=time.time,
            )
            self._spawn(board.run())
        self._responses = DatabaseResponseStore()
        self._spawn(self.conversations.run())
        retention = Retention(time.time, self.snapshot.response_retention_days)
        self._pipeline = Pipeline(
            door=self._door,
            follower=self._follower,
            authentication=self.authentication,
            permission=self.permission,
            reserver=Reserver(
                self.snapshot,
                self._limiter,
                now=time.time,
                counter=EngineCounter(balancer, self.upstream, self.deadlines, now=self._clock.monotonic),
                default_max_tokens=env.default_max_tokens,
                template_tokens=env.template_tokens,
            ),
            balancer=balancer,
            tickets=self._settler,
            interpreter=Interpreter(Responses(self._responses, retention, most_bytes=env.body_cap_bytes)),
            request_log=request_log,
            refusals=refusals,
        )
        self._stored = StoredResponses(
            self._responses,
            retention,
            door=self._door,
            resolve=self._pipeline.resolve,
            authentication=self.authentication,
            permission=self.permission,
        )
        self._usage_store = DatabaseUsageStore()
        self._usage = OwnUsage(
            self._usage_store,
            LimitReader(self._ledger_client, prefix=env.valkey_prefix) if env.valkey_state_url else None,
            self.snapshot,
            door=self._door,
            now=time.time,
            resolve=self._pipeline.resolve,
            authentication=self.authentication,
        )

        training = training_settings()
        self._tuning_store = DatabaseTuningStore(training)
        self._tuning = Tuning(
            self._tuning_store,
            door=self._door,
            configured=bool(training.command),
            file_cap_bytes=training.file_cap_bytes,
            resolve=self._pipeline.resolve,
            authentication=self.authentication,
            permission=self.permission,
        )

    async def stop(self) -> None:
        """Bring what is owed to the ledger, as far as a moment allows; the rest stays in the spool.

        What fails on the way holds up nothing that comes after it, and is raised at the end.
        """
        async with contextlib.AsyncExitStack() as stack:
            for end in reversed(self._endings()):
                stack.push_async_callback(end)

    def _endings(self) -> "list[Callable[[], Awaitable[object]]]":
        """In order; the spool last, which keeps what was not brought to the ledger."""
        endings: list[Callable[[], Awaitable[object]]] = []
        if self._outbox is not None:
            endings += [partial(self._outbox.flush, _FLUSH_SECONDS)]
        if self._refusal_outbox is not None:
            endings += [self._send_refusals]
        endings += [self.conversations.flush, lambda: end_tasks(*self._tasks)]
        if self._limiter is not None:
            endings += [self._limiter.close]  # what this process held and did not use is free for others at once
        endings += [self.upstream.aclose, self._follower.stop, self._keysets.aclose, self._responses.aclose]
        endings += [self._conversation_store.aclose, self._usage_store.aclose, self._tuning_store.aclose]
        if self._outbox is not None:
            endings += [self._limit_client.close, self._ledger_client.close]
        return [*endings, self._settler.close]

    async def _send_refusals(self) -> None:
        assert self._refusal_outbox is not None
        with contextlib.suppress(ValkeyUnavailable, ValkeyRefused):
            await self._refusal_outbox.send()

    def _build_coalescer(self) -> Coalescer | None:
        try:
            mode = Coalesce(self._environment.coalesce)
        except ValueError as error:
            raise SettingsError(f"GATEHOUSE_COALESCE: {error}; it is {' or '.join(Coalesce)}") from error

        def joined(api: Api) -> None:
            metrics.coalesced.labels(self._door, api).inc()

        if mode is Coalesce.OFF:
            return None
        return Coalescer(self.exchange, self._clock, self.deadlines, on_join=joined)

    def _row_added(self) -> None:
        if self._outbox is not None:
            self._outbox.wake()

    def _spawn(self, coroutine: Coroutine[Any, Any, None]) -> None:
        self._tasks.append(asyncio.get_running_loop().create_task(coroutine))


def build_client_guard(environment: Environment, *, door: str) -> ClientGuard:
    """What caps the connections of each client. Raises SettingsError."""

    def refused() -> None:
        metrics.record_refusal(door, TooManyOfClient.code)

    try:
        return ClientGuard(environment.client_connection_cap, environment.trusted_proxies, on_refusal=refused)
    except ValueError as error:
        raise SettingsError(f"GATEHOUSE_TRUSTED_PROXIES: {error}") from error


def build_realtime_limits(environment: Environment) -> RealtimeLimits:
    """Bounds on a conversation over a websocket, at both doors."""
    return RealtimeLimits(
        idle_seconds=environment.realtime_idle_seconds,
        message_bytes=environment.realtime_message_bytes,
        send_deadline_seconds=environment.send_deadline_seconds,
        session=SessionLimits(conversation_bytes=environment.realtime_conversation_bytes),
    )


def build_relay_runtime(environment: Environment) -> RelayRuntime:
    """The runtime of `manage.py relay`."""
    return RelayRuntime(environment, door="relay")


def build_web_runtime(environment: Environment) -> RelayRuntime:
    """The runtime behind the DRF views."""
    return RelayRuntime(environment, door="drf")


def build_drain(environment: Environment, stop: threading.Event) -> LedgerDrain:
    """What `manage.py drain` runs until `stop` is set. Needs VALKEY_STATE_URL."""
    assert environment.valkey_state_url is not None
    client = redis.Redis.from_url(environment.valkey_state_url, socket_timeout=5.0, socket_connect_timeout=2.0)
    return LedgerDrain(client, prefix=environment.valkey_prefix, spools=environment.var_dir / SPOOL_FOLDER, stop=stop)


def build_refusal_drain(environment: Environment, stop: threading.Event) -> RefusalDrain:
    """What the drain runs beside itself on a thread of its own until `stop` is set. Needs VALKEY_STATE_URL."""
    assert environment.valkey_state_url is not None
    client = redis.Redis.from_url(environment.valkey_state_url, socket_timeout=5.0, socket_connect_timeout=2.0)
    return RefusalDrain(client, prefix=environment.valkey_prefix, stop=stop)


def build_keeper(environment: Environment, stop: threading.Event) -> LimitKeeper:
    """What the drain runs beside itself on a thread of its own until `stop` is set. Needs VALKEY_STATE_URL."""
    assert environment.valkey_state_url is not None
    client = redis.Redis.from_url(
        environment.valkey_state_url, socket_timeout=5.0, socket_connect_timeout=2.0, decode_responses=True
    )
    recovery = build_drain(environment, stop)  # with a connection and a state of its own
    return LimitKeeper(
        LimitCounters(client, prefix=environment.valkey_prefix),
        spools=environment.var_dir / SPOOL_FOLDER,
        recover=recovery.recover,
        stop=stop,
    )


async def _follow_hints(url: str, follower: Follower) -> None:
    """Poll as soon as a writer says that something changed; without hints the next poll finds it."""
    while True:
        with contextlib.suppress(RedisError, OSError):
            async with redis.asyncio.Redis.from_url(url, decode_responses=True) as client, client.pubsub() as hints:
                await hints.subscribe(epoch_channel())
                async for message in hints.listen():
                    if message["type"] == "message":
                        section, _, epoch = str(message["data"]).partition(":")
                        if epoch.isdigit():
                            follower.hasten(section, int(epoch))
        await asyncio.sleep(_HINT_RETRY_SECONDS)
