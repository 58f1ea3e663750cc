"""The words that the stages of a request use among each other: plain data, no behaviour.

`Pipeline.prepare` turns a SlimRequest into Ready, Held or Rejected; an Exchange carries a Ready to
one engine and ends in a Settlement, which the Settler writes to the spool.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Protocol
from uuid import UUID

import msgspec

from core.errors import GatehouseError
from gateway.policies.breaker import AttemptOutcome
from gateway.relay.memory import Claim
from tenants.policies.tiers import TrafficClass as TrafficClass
from tenants.principal import Principal

Headers = Sequence[tuple[bytes, bytes]]


class Api(StrEnum):
    """The inference endpoints, by the shape of their body; the ledger's `api` (at most 16 characters)."""

    CHAT = "chat"
    COMPLETIONS = "completions"
    EMBEDDINGS = "embeddings"
    RERANK = "rerank"
    TOKENIZE = "tokenize"
    RESPONSES = "responses"  # OpenAI's Responses; asked of engines as chat
    MESSAGES = "messages"  # Anthropic's Messages; asked of engines as chat
    COUNT_TOKENS = "count_tokens"  # of a Messages body; asked of engines as tokenize
    INFER = "infer"  # tensors, in the Open Inference Protocol
    REALTIME = "realtime"  # a turn of a conversation over a websocket; asked of engines as chat


class Outcome(StrEnum):
    """How a forwarded request ended. Every one of them is exactly one ledger row."""

    SUCCESS = "success"
    CANCELLED = "cancelled"  # the client left
    TRUNCATED = "truncated"  # the engine died, stalled or failed after the first content byte
    FAILED = "failed"  # no content byte reached the client
    LOST = "lost"  # this process died before it could say


class UsageSource(StrEnum):
    ENGINE = "engine"
    ESTIMATED = "estimated"
    APPORTIONED = "apportioned"
    NONE = "none"


class SlimRequest(msgspec.Struct, frozen=True):
    """A request as both doors see it: enough for authentication, permission and parsing."""

    request_id: UUID
    api: Api
    path: str  # the OpenAI path, e.g. /v1/chat/completions
    headers: Headers  # lower-case names
    body: bytes
    received_at: float  # monotonic seconds
    traffic_class: TrafficClass | None = None  # None until it is known who asks: then as the tenant's tier has it
    claim: Claim | None = None  # what it holds of the process's memory; whoever reads more for it puts that there


class ParsedBody(msgspec.Struct, frozen=True):
    """What the gateway needs to know of a body; offsets are bytes into it."""

    model: str
    stream: bool
    include_usage: bool  # the client itself asked for the usage chunk
    n: int
    max_tokens: int | None
    spans: dict[str, tuple[int, int, int, int]]
    """Top-level member name -> (key start, key end, value start, value end), quotes included."""


class Endpoint(msgspec.Struct, frozen=True):
    """A ready instance that requests can be sent to (a row of the snapshot)."""

    instance_id: UUID
    version_id: UUID
    engine: str  # llamacpp, vllm, ...
    host: str
    port: int
    base_path: str  # before /v1, usually empty
    served_name: str  # the model name that the engine expects
    authorization: str | None = None  # sent upstream when the engine wants a key of its own
    slots: int | None = None
    tls: bool = False  # https
    cap: int | None = None  # requests at once that it should have, over all processes; None: as many as come
    cap_firm: bool = False  # it gets no more than that; else only while another has room
    tenant_id: UUID | None = None  # whose requests alone it takes; None: everybody's


@dataclass(slots=True)
class Usage:
    """Token counts of one request; None where nobody said. Zero is not missing."""

    input_tokens: int | None = None
    cached_tokens: int | None = None
    output_tokens: int | None = None
    source: UsageSource = UsageSource.NONE


@dataclass(slots=True)
class Settlement:
    """How one forwarded request ended; times in seconds from `received_at`."""

    outcome: Outcome
    status: int
    usage: Usage
    duration_seconds: float
    ttft_seconds: float | None = None
    endpoint: Endpoint | None = None
    engine_request_id: str | None = None
    error_code: str | None = None
    attempts: int = 1
    unseen_output: int | None = None  # tokens that an engine may have made at most for who left before any was told
    queue_seconds: float | None = None  # until the (last) attempt began
    connect_seconds: float | None = None  # that it then took to have a connection
    first_decode_seconds: float | None = None  # from a stream's first content to its second


class Ticket(Protocol):
    """An `open` record in the spool. Settling it twice is a no-op after the first."""

    def settle(self, settlement: Settlement) -> None:
        """Append the settle record; it may be followed by the last byte once this returns."""


class EndpointPicker(Protocol):
    """Chooses among the model's ready endpoints; remembers load while one is in use. One for each request."""

    def pick(self, exclude: frozenset[UUID]) -> Endpoint | None:
        """The endpoint for the next attempt, None when all are excluded or none is ready."""

    def why_not(self, exclude: frozenset[UUID]) -> Mapping[UUID, str]:
        """Why each endpoint that is passed over is passed over; for the log."""

    def retry_after_seconds(self) -> float:
        """When it is worth asking again after `pick` found none."""

    def spend_retry(self) -> bool:
        """Whether the process can afford one more attempt of this request; it is counted when it can."""

    def started(self, endpoint: Endpoint) -> None:
        """An attempt is in flight on it."""

    def answered(self) -> None:
        """The attempt in flight has its first content."""

    def finished(self, endpoint: Endpoint, outcome: AttemptOutcome) -> None:
        """The attempt ended, and says this about the endpoint."""


class DialectStream(Protocol):
    """One streamed answer, in the client's words. Made anew for each attempt."""

    def feed(self, event: bytes) -> bytes:
        """One whole SSE event of OpenAI's (a chunk, or a comment) in the client's words, b"" for nothing.

        `[DONE]` is not fed: `finish` is called for it. Raises ValueError for a chunk of another shape.
        """

    async def finish(self) -> bytes:
        """The events that end the answer; what is to be kept of it has been kept when this returns."""


class Dialect(Protocol):
    """How a client that does not speak OpenAI's chat API is answered; made for one request.

    What it reads of an answer has been through CompletionStream: whole events, the client's model name, usage
    included. No clock and no network; `finish` and `whole` may await a store.
    """

    def stream(self) -> DialectStream:
        """A translator for one attempt at a streamed answer."""

    async def whole(self, body: bytes) -> bytes:
        """The whole answer `body` (OpenAI's JSON) in the client's words. Raises ValueError for one of another shape."""

    @property
    def keep_alive(self) -> bytes:
        """What is sent while there is nothing to say, so that nobody on the way closes the connection."""

    def error_event(self, error: GatehouseError) -> bytes:
        """An error in a stream that has already begun."""


@dataclass(frozen=True, slots=True)
class Work:
    """What an engine is asked, in OpenAI's words. The client's own bytes, unless a dialect translated them."""

    api: Api  # CHAT, COMPLETIONS, EMBEDDINGS, RERANK, TOKENIZE or INFER
    path: str  # e.g. /v1/chat/completions; of INFER what follows the model's name
    body: bytes
    parsed: ParsedBody  # of `body`
    dialect: Dialect | None = None  # None: the client speaks OpenAI's words itself
    most_tokens: int | None = None  # the end that each answer is to be given; None: as the body says


@dataclass(slots=True)
class Ready:
    """Admitted: everything an Exchange needs to carry the request."""

    request: SlimRequest
    principal: Principal
    work: Work
    picker: EndpointPicker
    ticket: Ticket
    response_headers: list[tuple[bytes, bytes]] = field(default_factory=list)  # x-request-id, x-ratelimit-*
    keep_alive: bool = True  # comments may be sent while a stream has nothing to say
    timeout_seconds: float | None = None  # the client's own deadline, where it is shorter than ours
    model: str = ""  # the model's own name; the body may have an alias, which may be another model's by the next one


@dataclass(frozen=True, slots=True)
class Held:
    """Waiting for an instance to wake. Both doors handle it; so far nothing decides it."""

    eta_seconds: float | None


@dataclass(frozen=True, slots=True)
class Rejected:
    """Refused before forwarding; counted, not a ledger row."""

    error: GatehouseError


Decision = Ready | Held | Rejected
