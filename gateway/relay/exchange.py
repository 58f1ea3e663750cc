"""One admitted request on its way to an engine and back; both doors pull its answer from here.

Pull-based: `open` gives status and headers, `next_chunk` the bytes, b"" at the end, `aclose` is for
a client that leaves. The ticket is settled exactly once, before the last byte is handed out.
"""

import asyncio
from dataclasses import dataclass
from typing import Any, Final, NamedTuple
from uuid import UUID

import structlog

from core.clock import Clock
from core.errors import (
    GatehouseError,
    NoReadyInstance,
    UpstreamFailure,
    error_headers,
    render_openai,
    render_openai_event,
)
from gateway.relay.completion import CompletionStream, read_whole
from gateway.relay.connection import BadResponse, ConnectionLost, UpstreamError, UpstreamResponse
from gateway.relay.engine_errors import error_of_answer, error_of_event, error_of_transport
from gateway.relay.estimate import estimate_usage
from gateway.relay.inflated import InflatedResponse
from gateway.relay.plan import Endpoint, Outcome, Ready, Settlement, Usage
from gateway.relay.request_head import request_head
from gateway.relay.splice import MalformedJson, splice
from gateway.relay.sse import EventTooLarge
from gateway.relay.upstream import Origin, UpstreamClient

MAX_ATTEMPTS: Final = 3
CLIENT_LEFT: Final = 499
"""Status in the ledger of a request whose client left before it was told one (nginx's number)."""

log = structlog.get_logger(__name__)

_ERROR_BODY_BYTES: Final = 64 * 1024
_ERROR_BODY_SECONDS: Final = 5.0
_TAIL_SECONDS: Final = 1.0  # for what comes after [DONE], so that the connection can be used again
_RETRIED: Final = frozenset({401, 403, 407, 429, 500, 502, 503, 504})
_BACK_PRESSURE: Final = frozenset({429, 503})
_JSON: Final = (b"content-type", b"application/json")
_STREAM_HEADERS: Final = ((b"content-type", b"text/event-stream; charset=utf-8"), (b"cache-control", b"no-cache"))


@dataclass(frozen=True, slots=True)
class Deadlines:
    """Longest waits of one request, in seconds. Heartbeats of an engine are no progress."""

    connect_seconds: float = 2.0
    first_token_seconds: float = 120.0  # of a streamed answer: its first content
    inter_token_seconds: float = 30.0  # of a streamed answer: from content to content
    total_seconds: float = 600.0
    answer_bytes: int = 64 * 1024 * 1024  # bound of a non-streamed answer, which is held whole


class ResponseHead(NamedTuple):
    """What the door sends first."""

    status: int
    headers: list[tuple[bytes, bytes]]


class _AttemptFailed(Exception):
    """One attempt is over; `retry`: another endpoint may be asked if no content was told yet."""

    def __init__(self, error: GatehouseError, *, retry: bool, engine_fault: bool) -> None:
        self.error = error
        self.retry = retry
        self.engine_fault = engine_fault
        super().__init__(error.message)


class Exchange:
    """Carries `ready` to one engine, and to another if that one fails before the first content."""

    def __init__(self, ready: Ready, client: UpstreamClient, clock: Clock, deadlines: Deadlines) -> None:
        self.finished = False
        """The last bytes have been handed out."""
        self._ready = ready
        self._client = client
        self._now = clock.monotonic
        self._deadlines = deadlines
        self._ends_at = ready.request.received_at + deadlines.total_seconds
        self._request_id = str(ready.request.request_id).encode()
        self._head: ResponseHead | None = None
        self._pending = b""
        self._endpoint: Endpoint | None = None  # of the attempt in flight
        self._last_endpoint: Endpoint | None = None
        self._response: UpstreamResponse | InflatedResponse | None = None
        self._stream: CompletionStream | None = None
        self._content_told = False
        self._tried: frozenset[UUID] = frozenset()
        self._attempts = 0
        self._progress_seen = 0
        self._due = self._ends_at  # monotonic seconds at which the next content is late
        self._ttft_seconds: float | None = None
        self._usage: Usage | None = None
        self._answer_content_bytes = 0
        self._engine_request_id: str | None = None
        self._aborted: GatehouseError | None = None
        self._cancelled_by_abort: asyncio.Task[Any] | None = None
        self._late_failure: _AttemptFailed | None = None
        self._settlement: Settlement | None = None

    async def open(self) -> ResponseHead:
        """Status and headers, once the first bytes for the client are there.

        Never raises a GatehouseError: a failure is an answer too, an error body in OpenAI's shape.
        """
        self._pending = await self._produce()
        head = self._head
        if head is None:
            head = self._head = ResponseHead(200, [*_STREAM_HEADERS, *self._own_headers()])
        return head

    async def next_chunk(self) -> bytes:
        """The next bytes, b"" at the end (`finished` is true from the last bytes on)."""
        if self._pending:
            chunk, self._pending = self._pending, b""
        elif self._settlement is not None:
            chunk = b""
        else:
            chunk = await self._produce()
        self.finished = self._settlement is not None
        return chunk

    def abort(self, error: GatehouseError, task: asyncio.Task[Any]) -> None:
        """End it with `error` (this process shuts down): the client is told, the ticket settled.

        `task` is the one that awaits `open` or `next_chunk`.
        """
        if self._settlement is not None or self._aborted is not None:
            return
        self._aborted = error
        if self._response is not None:
            self._response.fail(ConnectionLost("aborted"))
        else:  # connecting, or waiting for the answer's head
            self._cancelled_by_abort = task
            task.cancel()

    async def aclose(self, error: GatehouseError | None = None) -> None:
        """The client has left, or has everything: closes what is open. May be called at any time, and twice.

        With `error` it was not the client who gave up, but a defect of ours that it was told as.
        """
        self._end_attempt(failed=False)
        if self._settlement is not None:
            return
        if error is None:
            await self._settle(Outcome.CANCELLED, self._head.status if self._head else CLIENT_LEFT)
        else:
            outcome = Outcome.TRUNCATED if self._content_told else Outcome.FAILED
            await self._settle(outcome, self._head.status if self._head else error.status, error.code)

    # Bytes, over as many attempts as it takes

    async def _produce(self) -> bytes:
        """The next bytes for the client; settled when they are the last."""
        while True:
            failure = self._late_failure
            if failure is None:
                try:
                    if self._response is None:
                        await self._attempt()
                    if self._stream is None:
                        return await self._read_whole()
                    return await self._read_stream(self._stream)
                except UpstreamError as error:
                    self._log_attempt(f"{type(error).__name__}: {error}")
                    failure = _AttemptFailed(error_of_transport(error), retry=True, engine_fault=True)
                except _AttemptFailed as error:
                    if error.engine_fault:
                        self._log_attempt(f"{error.error.status} {error.error.code}")
                    failure = error
                except asyncio.CancelledError:
                    if self._aborted is None or self._cancelled_by_abort is None:
                        raise
                    self._cancelled_by_abort.uncancel()
                    failure = _AttemptFailed(self._aborted, retry=False, engine_fault=False)
            self._end_attempt(failed=failure.engine_fault and self._aborted is None)
            if self._aborted is not None or self._content_told or not failure.retry or not self._may_try_again():
                return await self._fail(self._aborted or failure.error)

    def _log_attempt(self, reason: str) -> None:
        """Log why an engine is at fault; never in its own words, which may quote the prompt."""
        endpoint = self._last_endpoint
        log.warning(
            "attempt_failed",
            request_id=str(self._ready.request.request_id),
            instance_id=str(endpoint.instance_id) if endpoint else None,
            attempt=self._attempts,
            reason=reason,
        )

    def _may_try_again(self) -> bool:
        if self._attempts >= MAX_ATTEMPTS or self._total_left() <= 0:
            return False
        return self._pick() is not None

    def _pick(self) -> Endpoint | None:
        endpoint = self._ready.picker.pick(self._tried)
        if endpoint is not None:
            self._endpoint = endpoint
            self._ready.picker.started(endpoint)
        return endpoint

    async def _attempt(self) -> None:
        """Send the request to an endpoint and wait for the head of its answer."""
        endpoint = self._endpoint or self._pick()
        if endpoint is None:
            raise _AttemptFailed(NoReadyInstance(retry_after_seconds=1.0), retry=False, engine_fault=False)
        ready = self._ready
        parsed = ready.parsed
        now = self._now()
        self._last_endpoint = endpoint
        self._attempts += 1
        self._tried |= {endpoint.instance_id}
        self._due = min(self._ends_at, now + self._deadlines.first_token_seconds)
        self._progress_seen = 0
        self._stream = None
        left = max(0.0, self._ends_at - now)
        body = splice(ready.request.body, parsed, served_name=endpoint.served_name)
        response: UpstreamResponse | InflatedResponse
        response = self._response = await self._client.request(
            Origin(endpoint.host, endpoint.port),
            request_head(ready.request, endpoint, self._request_id, stream=parsed.stream, body_bytes=len(body)),
            body,
            connect_seconds=min(self._deadlines.connect_seconds, left),
            head_seconds=min(self._deadlines.first_token_seconds, left) if parsed.stream else left,
        )
        if response.content_encoding:
            response = self._response = InflatedResponse(response, self._deadlines.answer_bytes)
        if response.status != 200:
            raise await self._refused(endpoint, response)
        if response.content_type.startswith(b"text/event-stream"):
            if not parsed.stream:
                raise BadResponse("a stream where none was asked for")
            self._stream = CompletionStream(client_model=parsed.model, drop_usage=not parsed.include_usage)

    async def _refused(self, endpoint: Endpoint, response: UpstreamResponse | InflatedResponse) -> _AttemptFailed:
        """The failure that an error answer amounts to."""
        status = response.status
        try:
            body = await self._read_body(response, _ERROR_BODY_BYTES, min(_ERROR_BODY_SECONDS, self._total_left()))
        except UpstreamError:
            body = b""  # its status says enough
        error = error_of_answer(
            status,
            body,
            retry_after=response.header(b"retry-after"),
            served_name=endpoint.served_name,
            client_model=self._ready.parsed.model,
        )
        fault = error.status >= 500 and status not in _BACK_PRESSURE
        return _AttemptFailed(error, retry=status in _RETRIED, engine_fault=fault)

    async def _read_stream(self, stream: CompletionStream) -> bytes:
        """Bytes for the client from a stream under way."""
        response = self._response
        assert response is not None
        deadlines = self._deadlines
        while True:
            now = self._now()
            if self._progress_seen != stream.progress:
                # The wait for the next content begins here and not where the last one came: between
                # the two it was the client who made the engine wait.
                self._progress_seen = stream.progress
                self._due = min(self._ends_at, now + deadlines.inter_token_seconds)
            data = await response.read(max(0.0, self._due - now))
            ended = not data
            try:
                out = stream.end() if ended else stream.feed(data)
            except EventTooLarge as error:
                raise BadResponse(str(error)) from error
            if self._ttft_seconds is None and stream.content_events:
                self._ttft_seconds = self._now() - self._ready.request.received_at
            self._content_told = stream.committed
            if stream.error is not None or (ended and not stream.done):
                failure = self._stream_failure(stream)
                if failure is not None:
                    if not out:
                        raise failure
                    self._late_failure = failure
                    return out
            if stream.done or ended:
                return await self._succeed(out)
            if out:
                return out

    def _stream_failure(self, stream: CompletionStream) -> _AttemptFailed | None:
        """Of a stream that said an error, or ended without [DONE]."""
        if stream.error is not None:
            return self._said(stream.error)
        if stream.finish_reasons < self._ready.parsed.n:
            return _AttemptFailed(UpstreamFailure(), retry=True, engine_fault=True)
        return None

    def _said(self, data: bytes) -> _AttemptFailed:
        """The failure that an engine's error under a good status amounts to."""
        served_name = self._last_endpoint.served_name if self._last_endpoint else ""
        error = error_of_event(data, served_name=served_name, client_model=self._ready.parsed.model)
        return _AttemptFailed(error, retry=error.status >= 500, engine_fault=error.status >= 500)

    async def _read_whole(self) -> bytes:
        """A non-streamed answer: held whole, so that an engine's death in it can still be made good."""
        response = self._response
        assert response is not None
        body = await self._read_body(response, self._deadlines.answer_bytes, self._total_left())
        try:
            answer = read_whole(body, client_model=self._ready.parsed.model)
        except MalformedJson as error:
            raise BadResponse(f"the answer is not JSON: {error}") from error
        if answer.error is not None:
            raise self._said(answer.error)
        self._usage = answer.usage
        self._answer_content_bytes = answer.content_bytes
        self._engine_request_id = answer.engine_request_id
        self._content_told = True
        self._head = ResponseHead(200, [_JSON, (b"content-length", b"%d" % len(answer.body)), *self._own_headers()])
        return await self._succeed(answer.body)

    async def _read_body(self, response: UpstreamResponse | InflatedResponse, limit: int, seconds: float) -> bytes:
        data = await response.read(seconds)
        if response.drained and len(data) <= limit:
            return data  # as nearly always: it came in one piece
        until = self._now() + seconds
        parts: list[bytes] = []
        size = 0
        while data:
            size += len(data)
            if size > limit:
                raise BadResponse(f"an answer of more than {limit} bytes")
            parts.append(data)
            data = await response.read(max(0.0, until - self._now()))
        return b"".join(parts)

    def _own_headers(self) -> list[tuple[bytes, bytes]]:
        return [*self._ready.response_headers, (b"x-request-id", self._request_id)]

    # Ends

    async def _succeed(self, last: bytes) -> bytes:
        response, self._response = self._response, None
        if response is not None and not response.complete:
            response.release(_TAIL_SECONDS)
        self._end_attempt(failed=False)
        await self._settle(Outcome.SUCCESS, 200)
        return last

    async def _fail(self, error: GatehouseError) -> bytes:
        body = render_openai(error)
        told = self._head is not None or self._content_told
        if not told:
            headers = [*error_headers(error), (b"content-length", b"%d" % len(body)), *self._own_headers()]
            self._head = ResponseHead(error.status, headers)
        outcome = Outcome.TRUNCATED if self._content_told else Outcome.FAILED
        await self._settle(outcome, 200 if told else error.status, error.code)
        return render_openai_event(error) if told else body

    def _end_attempt(self, *, failed: bool) -> None:
        response, self._response = self._response, None
        if response is not None:
            response.close()
        endpoint, self._endpoint = self._endpoint, None
        if endpoint is not None:
            self._ready.picker.finished(endpoint, failed=failed)

    async def _settle(self, outcome: Outcome, status: int, error_code: str | None = None) -> None:
        if self._settlement is not None:
            return
        settlement = self._settlement = Settlement(
            outcome=outcome,
            status=status,
            usage=self._counted_usage(),
            duration_seconds=self._now() - self._ready.request.received_at,
            ttft_seconds=self._ttft_seconds,
            endpoint=self._last_endpoint,
            engine_request_id=self._stream.engine_request_id if self._stream is not None else self._engine_request_id,
            error_code=error_code,
            attempts=self._attempts,
        )
        ticket = self._ready.ticket
        try:
            await ticket.settle(settlement)
        except asyncio.CancelledError:
            await ticket.settle(settlement)  # interrupted at an unknown point; the second time is no harm
            raise

    def _counted_usage(self) -> Usage:
        """The engine's word; where content was told without one, an estimate; else nothing."""
        stream = self._stream
        said = stream.usage if stream is not None else self._usage
        if said is not None:
            return said
        if not self._content_told:
            return Usage()
        events = stream.content_events if stream is not None else None
        return estimate_usage(self._ready.parsed, content_events=events, content_bytes=self._answer_content_bytes)

    def _total_left(self) -> float:
        return max(0.0, self._ends_at - self._now())
