"""One admitted request on its way to an engine and back; both doors pull its answer from here.

Pull-based: `open` gives status and headers, `next_chunk` the bytes, b"" at the end, `aclose` is for
a client that leaves. The ticket is settled exactly once, before the last byte is handed out.
"""

import asyncio
from collections.abc import Callable
from typing import Any, Final, NamedTuple
from uuid import UUID

from core.clock import Clock
from core.errors import GatehouseError, NoReadyInstance, UpstreamTimeout
from gateway.policies.breaker import AttemptOutcome
from gateway.relay.attempt import CLOCK_SECONDS, Attempt, Soon, Write
from gateway.relay.attempt_log import log_failed, log_unroutable
from gateway.relay.completion import WholeAnswer
from gateway.relay.counted import Counted
from gateway.relay.deadlines import Deadlines
from gateway.relay.dialects.base import error_answer, own_headers, render_error_event
from gateway.relay.engine_errors import error_of_transport
from gateway.relay.failure import AttemptFailed
from gateway.relay.plan import DialectStream, Endpoint, Outcome, Ready, Settlement
from gateway.relay.upstream import UpstreamClient
from gateway.relay.upstream_errors import BadResponse, ConnectFailed, DeadlinePassed, UpstreamError
from tenants.principal import Principal

__all__ = ["CLIENT_LEFT", "KEEP_ALIVE", "STREAM_HEADERS", "Exchange", "ResponseHead", "Soon"]

CLIENT_LEFT: Final = 499
"""Status in the ledger of a request whose client left before it was told one (nginx's number)."""

STREAM_HEADERS: Final = ((b"content-type", b"text/event-stream; charset=utf-8"), (b"cache-control", b"no-cache"))
KEEP_ALIVE: Final = b": keep-alive\n\n"
"""What a stream's client is told while there is nothing to say; a comment."""

_JSON: Final = (b"content-type", b"application/json")
_NONE: Final[frozenset[UUID]] = frozenset()


class ResponseHead(NamedTuple):
    """What the door sends first."""

    status: int
    headers: list[tuple[bytes, bytes]]


class Exchange:
    """Carries `ready` to one engine, and to another if that one fails before the first content."""

    def __init__(self, ready: Ready, client: UpstreamClient, clock: Clock, deadlines: Deadlines) -> None:
        self.finished = False
        """The last bytes have been handed out."""
        self._ready = ready
        self._work = ready.work
        self._client = client
        self._now = clock.monotonic
        self._deadlines = deadlines
        received_at, own = ready.request.received_at, ready.timeout_seconds
        self._ends_at = received_at + (deadlines.total_seconds if own is None else min(own, deadlines.total_seconds))
        self._retry_until = min(self._ends_at, received_at + deadlines.retry_seconds)
        # Silence after which a stream's client is told that we live; None: never.
        self._quiet = deadlines.keep_alive_seconds if ready.keep_alive and ready.work.parsed.stream else None
        self._head: ResponseHead | None = None
        self._pending = b""
        self._endpoint: Endpoint | None = None  # chosen, and counted as in use
        self._last_endpoint: Endpoint | None = None
        self._attempt: Attempt | None = None
        self._dialect_stream: DialectStream | None = None
        self._content_told = False
        self._tried: tuple[UUID, ...] = ()
        self._attempts = 0
        self._ttft_seconds: float | None = None
        self._last_attempt: Attempt | None = None  # that was ended
        self._counted = Counted(ready.work, clock.monotonic)
        self._left = False  # the client's own wish ended it: it went away, or its own deadline passed
        self._aborted: GatehouseError | None = None
        self._cancelled_by_abort: asyncio.Task[Any] | None = None
        self._late_failure: AttemptFailed | None = None
        self._settlement: Settlement | None = None

    def start_now(self, news: Callable[[], None]) -> bool:
        """Send the request without a task, where nothing has to be waited for first.

        False: it was not sent, `open` does it. Else `news` is called when there is something to look at with
        `whole_now`.
        """
        if self._work.parsed.stream or self._work.dialect is not None:
            return False
        try:
            return self._begin_attempt().start_now(news)
        except AttemptFailed:
            return False  # `open` comes to the same, and tells the client

    def whole_now(self) -> tuple[ResponseHead, bytes] | Soon:
        """The whole answer, settled, if it is there and nothing is special about it; else `open` goes on from here."""
        attempt = self._attempt
        assert attempt is not None
        answer = attempt.whole_now()
        if isinstance(answer, Soon):
            return answer
        body = self._succeed(self._note_whole(answer, answer.body))
        assert self._head is not None
        self.finished = True
        return self._head, body

    @property
    def principal(self) -> Principal:
        """Who asks."""
        return self._ready.principal

    @property
    def content_told(self) -> bool:
        """Content has been handed out: a failure can no longer be made good elsewhere."""
        return self._content_told

    @property
    def endpoint(self) -> Endpoint | None:
        """The one that was tried last."""
        return self._last_endpoint

    async def open(self) -> ResponseHead:
        """Status and headers, once the first bytes for the client are there.

        Never raises a GatehouseError: a failure is an answer too, an error body in the client's shape.
        """
        self._pending = await self._produce(None)
        head = self._head
        if head is None:
            head = self._head = ResponseHead(200, [*STREAM_HEADERS, *own_headers(self._ready)])
        return head

    async def next_chunk(self, write: Write | None = None) -> bytes:
        """The next bytes, b"" at the end (`finished` is true from the last bytes on).

        With `write`, bytes of a stream are handed to it as they come, for as long as it returns True; what is
        returned comes after them, and b"" may then also mean that the client does not keep up.
        """
        if self._pending:
            chunk, self._pending = self._pending, b""
        elif self._settlement is not None:
            chunk = b""
        else:
            chunk = await self._produce(write)
        self.finished = self._settlement is not None
        return chunk

    def abort(self, error: GatehouseError, task: asyncio.Task[Any] | None) -> None:
        """End it with `error` (this process shuts down): the client is told, the ticket settled.

        `task` is the one that awaits `open` or `next_chunk`, None while none does (see `start_now`).
        """
        if self._settlement is not None or self._aborted is not None:
            return
        self._aborted = error
        if (self._attempt is None or not self._attempt.abort()) and task is not None:  # connecting
            self._cancelled_by_abort = task
            task.cancel()

    async def aclose(self, error: GatehouseError | None = None) -> None:
        """The client has left, or has everything: closes what is open. May be called at any time, and twice.

        With `error` it was not the client who gave up, but a defect of ours that it was told as.
        """
        self.close(error)

    def close(self, error: GatehouseError | None = None) -> None:
        """`aclose`, for those who cannot wait: nothing in it does."""
        self._end_attempt(AttemptOutcome.OK if self._content_told else AttemptOutcome.NEUTRAL)
        if self._settlement is not None:
            return
        self._left = error is None or isinstance(error, UpstreamTimeout)  # a member's of a flight: its own deadline
        if error is None:
            self._settle(Outcome.CANCELLED, self._head.status if self._head else CLIENT_LEFT)
        else:
            outcome = Outcome.TRUNCATED if self._content_told else Outcome.FAILED
            self._settle(outcome, self._head.status if self._head else error.status, error.code)

    # Bytes, over as many attempts as it takes

    async def _produce(self, write: Write | None) -> bytes:
        """The next bytes for the client; settled when they are the last."""
        while True:
            failure = self._late_failure
            if failure is None and self._aborted is not None and (self._attempt is None or not self._attempt.sent):
                failure = AttemptFailed(self._aborted, retry=False)  # before anyone waited for anything
            if failure is None:
                try:
                    attempt = self._attempt or self._begin_attempt()
                    if not attempt.opened and not await attempt.open(self._quiet):
                        return self._say_alive()
                    if attempt.stream is None:
                        return await self._tell_whole(attempt)
                    chunk = await self._tell_stream(attempt, write)
                    if chunk is None:
                        return self._say_alive()
                    if chunk or write is not None or self._settlement is not None:
                        return chunk
                    continue
                except UpstreamError as error:
                    said = error.said if isinstance(error, BadResponse) else b""
                    if self._aborted is None:  # else it is us who ended it
                        self._log_attempt(f"{type(error).__name__}: {error}", said=said)
                    failure = AttemptFailed(error_of_transport(error), retry=True, outcome=self._outcome_of(error))
                except AttemptFailed as error:
                    if error.outcome is AttemptOutcome.FAILED:
                        self._log_attempt(error.reason)
                    failure = error
                except asyncio.CancelledError:
                    if self._aborted is None or self._cancelled_by_abort is None:
                        raise
                    self._cancelled_by_abort.uncancel()
                    failure = AttemptFailed(self._aborted, retry=False)
            self._end_attempt(failure.outcome if self._aborted is None else AttemptOutcome.NEUTRAL)
            if self._aborted is not None or self._content_told or not failure.retry or not self._may_try_again():
                return self._fail(self._aborted or failure.error)

    def _log_attempt(self, reason: str, *, said: bytes = b"") -> None:
        log_failed(self._ready, self._last_endpoint, self._attempts, reason, said=said)

    def _outcome_of(self, error: UpstreamError) -> AttemptOutcome:
        if isinstance(error, ConnectFailed):
            return AttemptOutcome.REFUSED_CONNECTION
        if isinstance(error, DeadlinePassed) and self._ready.timeout_seconds is not None:
            # Whoever asks for an answer within a millisecond shall not have an engine taken from everybody.
            if self._now() < self._ends_at - CLOCK_SECONDS:
                return AttemptOutcome.FAILED
            self._left = self._ready.timeout_seconds <= self._deadlines.total_seconds
            return AttemptOutcome.NEUTRAL
        return AttemptOutcome.FAILED

    def _may_try_again(self) -> bool:
        if self._attempts >= self._deadlines.attempts or self._now() >= self._retry_until:
            return False
        picker = self._ready.picker
        endpoint = picker.pick(frozenset(self._tried))
        if endpoint is None or not picker.spend_retry():
            return False
        self._use(endpoint)
        return True

    def _use(self, endpoint: Endpoint) -> None:
        self._endpoint = endpoint
        self._ready.picker.started(endpoint)

    def _begin_attempt(self) -> Attempt:
        endpoint = self._endpoint
        if endpoint is None:
            endpoint = self._ready.picker.pick(frozenset(self._tried) if self._tried else _NONE)
            if endpoint is None:
                raise AttemptFailed(self._none_routable(), retry=False)
            self._use(endpoint)
        self._last_endpoint = endpoint
        self._attempts += 1
        self._tried = (*self._tried, endpoint.instance_id)
        self._dialect_stream = None
        attempt = self._attempt = Attempt(
            self._ready.request,
            self._work,
            endpoint,
            self._client,
            self._deadlines,
            now=self._now,
            ends_at=self._ends_at,
        )
        return attempt

    def _none_routable(self) -> NoReadyInstance:
        picker = self._ready.picker
        log_unroutable(self._ready.request.request_id, lambda: picker.why_not(frozenset(self._tried)), self._now())
        return NoReadyInstance(retry_after_seconds=picker.retry_after_seconds())

    def _say_alive(self) -> bytes:
        dialect = self._work.dialect
        return KEEP_ALIVE if dialect is None else dialect.keep_alive

    async def _tell_stream(self, attempt: Attempt, write: Write | None) -> bytes | None:
        """Bytes for the client from a stream under way; None when there was nothing for a while."""
        stream, dialect = attempt.stream, self._work.dialect
        assert stream is not None
        events = await attempt.read_stream(self._quiet, write if dialect is None else None)
        if events is None:
            return None
        if attempt.second_at is None and stream.content_events:
            self._note_content(attempt, stream.content_events)
        translated: DialectStream | None = None
        if dialect is None:
            out = events[0] if len(events) == 1 else b"".join(events)
        else:
            translated = self._dialect_stream
            if translated is None:
                translated = self._dialect_stream = dialect.stream()
            try:
                out = b"".join([translated.feed(event) for event in (events[:-1] if stream.done else events)])
            except ValueError as error:
                raise BadResponse(f"the stream is no completion: {error}") from error
        self._content_told = stream.committed
        if not stream.over:
            return out
        failure = None if stream.done else attempt.failure()
        if failure is not None:
            if not out:
                raise failure
            self._late_failure = failure
            return out
        if translated is not None:
            out += await translated.finish()
        return self._succeed(out)

    def _note_content(self, attempt: Attempt, content_events: int) -> None:
        """A stream's first or second content has come, or both."""
        now = self._now()
        if self._ttft_seconds is None:
            self._ttft_seconds = now - self._ready.request.received_at
            self._ready.picker.answered()
        if content_events > 1:
            attempt.second_at = now

    async def _tell_whole(self, attempt: Attempt) -> bytes:
        if self._head is not None:
            raise BadResponse("a whole answer, and the client has been told that a stream comes")
        answer = await attempt.read_whole()
        body = answer.body
        if self._work.dialect is not None:
            try:
                body = await self._work.dialect.whole(body)
            except ValueError as error:
                raise BadResponse(f"the answer is no completion: {error}", said=body) from error
        return self._succeed(self._note_whole(answer, body))

    def _note_whole(self, answer: WholeAnswer, body: bytes) -> bytes:
        """Remember what an answer says, and what the client is told with `body`."""
        self._counted.note_whole(answer)
        self._content_told = True
        self._head = ResponseHead(200, [_JSON, (b"content-length", b"%d" % len(body)), *own_headers(self._ready)])
        return body

    # Ends

    def _succeed(self, last: bytes) -> bytes:
        self._end_attempt(AttemptOutcome.OK, completed=True)
        self._settle(Outcome.SUCCESS, 200)
        return last

    def _fail(self, error: GatehouseError) -> bytes:
        request = self._ready.request
        headers, body = error_answer(request.api, error, request.request_id, own_headers(self._ready))
        told = self._head is not None or self._content_told
        if not told:
            self._head = ResponseHead(error.status, headers)
        outcome = Outcome.TRUNCATED if self._content_told else Outcome.FAILED
        self._settle(outcome, 200 if told else error.status, error.code)
        if not told:
            return body
        if self._work.dialect is not None:
            return self._work.dialect.error_event(error)
        return render_error_event(request.api, error, request.request_id)

    def _end_attempt(self, outcome: AttemptOutcome, *, completed: bool = False) -> None:
        attempt, self._attempt = self._attempt, None
        if attempt is not None:
            self._last_attempt = attempt
            self._counted.note_end(attempt)
            if completed:
                attempt.release()
            else:
                attempt.close()
        endpoint, self._endpoint = self._endpoint, None
        if endpoint is not None:
            self._ready.picker.finished(endpoint, outcome)

    def _settle(self, outcome: Outcome, status: int, error_code: str | None = None) -> None:
        if self._settlement is not None:
            return
        counted = self._counted
        worked = counted.sum_up(told=self._content_told, left=self._left)
        received_at, ttft = self._ready.request.received_at, self._ttft_seconds
        queue = connect = first_decode = None
        last = self._last_attempt
        if last is not None:
            queue, connect = last.sent_at - received_at, last.connect_seconds
            if last.second_at is not None and ttft is not None:
                first_decode = last.second_at - received_at - ttft
        settlement = self._settlement = Settlement(
            outcome=outcome,
            status=status,
            usage=worked.usage,
            duration_seconds=self._now() - received_at,
            ttft_seconds=ttft,
            endpoint=self._last_endpoint,
            engine_request_id=counted.engine_request_id,
            error_code=error_code,
            attempts=self._attempts,
            unseen_output=worked.unseen_output,
            queue_seconds=queue,
            connect_seconds=connect,
            first_decode_seconds=first_decode,
        )
        self._ready.ticket.settle(settlement)
