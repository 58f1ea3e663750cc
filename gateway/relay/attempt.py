"""One try at one endpoint: the request as that engine wants it, and what comes back, in OpenAI's words."""

from collections.abc import Callable
from enum import Enum, auto
from typing import Final

from core.errors import UpstreamFailure
from gateway.policies.breaker import AttemptOutcome
from gateway.relay.completion import CompletionStream, WholeAnswer, read_whole
from gateway.relay.deadlines import Deadlines
from gateway.relay.engine_request import shape_request, translates
from gateway.relay.failure import AttemptFailed, failure_of_answer, failure_of_event
from gateway.relay.inflated import InflatedResponse
from gateway.relay.members import MalformedJson
from gateway.relay.memory import Claim, RelayMemoryExhausted
from gateway.relay.plan import Endpoint, SlimRequest, Work
from gateway.relay.request_head import request_head
from gateway.relay.response import Sink, UpstreamResponse
from gateway.relay.upstream import Origin, PendingResponse, UpstreamClient
from gateway.relay.upstream_errors import BadResponse, ConnectionLost, DeadlinePassed, Phase, UpstreamError
from gpupool.engines.base import Translation

_ERROR_BODY_BYTES: Final = 64 * 1024
_ERROR_BODY_SECONDS: Final = 5.0
_STREAM: Final = b"text/event-stream"
_TAIL_SECONDS: Final = 1.0  # for what comes after the end, so that the connection can be used again
_MOST_STEPS: Final = 4
CLOCK_SECONDS: Final = 0.01
"""By how much a wait may end too early: the loop's clock counts milliseconds, and stands still during a turn."""
_SOON_BYTES: Final = 32 * 1024  # of an answer that is waited for without a task; below what stops the reading

Write = Callable[[bytes], bool]
"""Writes to the client at once; False once it does not keep up with what it is sent."""


class Soon(Enum):
    """What is to be done about an answer that is not there whole."""

    WAIT = auto()  # for more of it
    TASK = auto()  # in a task: it takes longer, or is not a plain success


class Attempt:
    """Sends `work` to `endpoint`. `now`: monotonic seconds; `ends_at`: when the request's time is over."""

    __slots__ = (
        "_claim",
        "_client",
        "_deadlines",
        "_due",
        "_ends_at",
        "_head_due",
        "_kept",
        "_late_error",
        "_now",
        "_pending",
        "_progress_seen",
        "_quiet_seconds",
        "_request",
        "_response",
        "_translation",
        "_work",
        "_write",
        "connect_seconds",
        "endpoint",
        "second_at",
        "sent_at",
        "stream",
    )

    def __init__(
        self,
        request: SlimRequest,
        work: Work,
        endpoint: Endpoint,
        client: UpstreamClient,
        deadlines: Deadlines,
        *,
        now: Callable[[], float],
        ends_at: float,
    ) -> None:
        self.endpoint = endpoint
        self.stream: CompletionStream | None = None
        """The streamed answer, once its head is there."""
        self.sent_at = now()  # about to be, if it is `sent`
        self.connect_seconds: float | None = None  # until there was a connection, once there was
        self.second_at: float | None = None  # when the second content of a stream had come
        self._request = request
        self._work = work
        self._client = client
        self._claim: Claim | None = None  # a whole answer that came in pieces
        self._deadlines = deadlines
        self._now = now
        self._ends_at = ends_at
        self._pending: PendingResponse | None = None
        self._response: UpstreamResponse | InflatedResponse | None = None
        self._translation: Translation | None = None
        self._write: Write | None = None
        self._kept: list[bytes] | None = None  # what the sink had to leave to the reader
        self._late_error: Exception | None = None
        self._progress_seen = 0
        self._quiet_seconds: float | None = None
        self._head_due = self._due = ends_at
        if work.parsed.stream:
            self._head_due = self._due = min(ends_at, now() + deadlines.first_token_seconds)

    @property
    def sent(self) -> bool:
        """The engine has the request, or is about to."""
        return self._pending is not None

    @property
    def opened(self) -> bool:
        """The head of the answer is there."""
        return self._response is not None

    def start_now(self, news: Callable[[], None]) -> bool:
        """Send the request over a connection that is open and idle; False where `open` has to be awaited for it.

        `news` is called as UpstreamResponse.listen says; look at `whole_now` then. Raises AttemptFailed.
        """
        if self._pending is not None or translates(self._work, self.endpoint):
            return False
        origin, head, body, connect_seconds = self._sendable(*self._first_request())
        self._pending = self._client.send_now(origin, head, body, connect_seconds=connect_seconds)
        if self._pending is None:
            return False
        self.connect_seconds = 0.0
        self._pending.response.listen(news, max(0.0, self._head_due - self._now()))
        return True

    def whole_now(self) -> WholeAnswer | Soon:
        """The answer, if it has come whole and is nothing special. What it leaves, `open` finds."""
        pending = self._pending
        assert pending is not None
        response = pending.response
        streamed = response.content_type.startswith(_STREAM)
        plain = response.status == 200 and not response.content_encoding and not streamed
        if not response.complete:
            if not response.failed and (plain or not response.status) and response.size < _SOON_BYTES:
                return Soon.WAIT
            response.listen(None)
            return Soon.TASK
        response.listen(None)
        if plain:
            try:
                answer = read_whole(self._work.api, response.peek(), client_model=self._work.parsed.model)
            except MalformedJson:
                answer = None
            if answer is not None and answer.error is None:
                self._response = response
                return answer
        return Soon.TASK

    async def open(self, quiet_seconds: float | None) -> bool:
        """Send the request and wait for the answer's head; False when nothing has come for `quiet_seconds`: call again.

        Raises UpstreamError or AttemptFailed.
        """
        if self._pending is None:
            await self._send(*self._first_request())
        return await self._wait_head(quiet_seconds)

    def _first_request(self) -> tuple[str, str, bytes]:
        """Method, path and body as this engine wants them."""
        method, path, body, self._translation = shape_request(self._work, self.endpoint)
        return method, path, body

    async def _send(self, method: str, path: str, body: bytes) -> None:
        origin, head, body, connect_seconds = self._sendable(method, path, body)
        began_at = self._now()
        self._pending = await self._client.send(origin, head, body, connect_seconds=connect_seconds)
        if self.connect_seconds is None:
            self.connect_seconds = self._now() - began_at

    def _sendable(self, method: str, path: str, body: bytes) -> tuple[Origin, bytes, bytes, float]:
        """What the client takes: where to, head, body, and how long connecting may take."""
        endpoint = self.endpoint
        left = self._left()
        head = request_head(
            self._request,
            endpoint,
            method=method,
            path=path,
            stream=self._work.parsed.stream,
            body_bytes=len(body),
            seconds_left=left,
        )
        origin = Origin(endpoint.host, endpoint.port, self._client.tls if endpoint.tls else None)
        return origin, head, body, min(self._deadlines.connect_seconds, left)

    async def _wait_head(self, quiet_seconds: float | None) -> bool:
        assert self._pending is not None
        left = self._head_due - self._now()
        if left <= 0:
            raise DeadlinePassed(Phase.HEAD)
        soft = quiet_seconds is not None and quiet_seconds < left
        response = await self._pending.wait(quiet_seconds if soft and quiet_seconds is not None else left, soft=soft)
        if response is None:
            return False
        self._response = response
        if response.content_encoding:
            self._response = InflatedResponse(response, self._deadlines.answer_bytes)
        if response.status != 200:
            raise await self._refused()
        parsed = self._work.parsed
        if response.content_type.startswith(_STREAM) or (parsed.stream and self._translation is not None):
            if not parsed.stream:
                raise BadResponse("a stream where none was asked for")
            self.stream = CompletionStream(client_model=parsed.model, drop_usage=not parsed.include_usage)
        return True

    async def _refused(self) -> AttemptFailed:
        response = self._response
        assert response is not None
        status = response.status
        try:
            body = await self._read_body(_ERROR_BODY_BYTES, min(_ERROR_BODY_SECONDS, self._left()))
        except UpstreamError:
            body = b""  # its status says enough
        return failure_of_answer(
            status,
            body,
            retry_after=response.header(b"retry-after"),
            served_name=self.endpoint.served_name,
            client_model=self._work.parsed.model,
        )

    # A streamed answer

    async def read_stream(self, quiet_seconds: float | None, write: Write | None) -> list[bytes] | None:
        """Events for the client; None when there was nothing for `quiet_seconds`. Raises UpstreamError.

        With `write`, those that may go at once are handed to it as they come, without a turn of this task, as long as
        it returns True; an empty list then says that the client does not keep up. Look at `stream` for how it stands.
        """
        response, stream, deadlines = self._response, self.stream, self._deadlines
        assert response is not None
        assert stream is not None
        while True:
            now = self._now()
            if self._progress_seen != stream.progress:
                # The wait for the next content begins here and not where the last one came: between
                # the two it was the client who made the engine wait.
                self._progress_seen = stream.progress
                self._due = min(self._ends_at, now + deadlines.inter_token_seconds)
            left = max(0.0, self._due - now)
            self._quiet_seconds = quiet_seconds
            sink: Sink | None = None
            if write is not None and stream.committed and self._translation is None:
                self._write, self._kept = write, None
                sink = self._consume
            seconds = left if quiet_seconds is None else min(quiet_seconds, left)
            data = await response.read(seconds, soft=True, sink=sink)
            if data is None:
                if self._late_error is not None:
                    raise self._late_error
                if sink is not None and self._kept is not None:
                    return self._kept
                if quiet_seconds is None or self._now() >= self._due - CLOCK_SECONDS:
                    raise DeadlinePassed(Phase.BODY)
                return None
            events = self._take(stream, data)
            if events or stream.over:
                return events

    def _take(self, stream: CompletionStream, data: bytes) -> list[bytes]:
        """The events of some bytes of the engine's, b"" being their end."""
        translation = self._translation
        try:
            if translation is None:
                return stream.take(data) if data else stream.take_rest()
            translated = translation.feed(data) if data else translation.end()
            events = stream.take(translated) if translated else []
            return events if data else [*events, *stream.take_rest()]
        except ValueError as error:  # too large, or not the engine's words
            raise BadResponse(str(error), said=data) from error

    def _consume(self, data: bytes) -> float | None:
        """As a sink: one arrival, handled at once. What is raised in it is raised again by the reader."""
        stream, write = self.stream, self._write
        assert stream is not None
        assert write is not None
        try:
            told = stream.piece(data)
            if told is None:
                events = stream.take(data)
                if stream.over:
                    self._kept = events  # the end is told only once it is settled
                    return None
                told = events[0] if len(events) == 1 else b"".join(events)
            if told and not write(told):
                self._kept = []
                return None
        except ValueError as error:  # as in `_take`
            self._late_error = BadResponse(str(error), said=data)
            return None
        except Exception as error:  # noqa: BLE001  # a defect of ours, and not the engine's
            self._late_error = error
            return None
        now = self._now()
        if self._progress_seen != stream.progress:
            self._progress_seen = stream.progress
            self._due = min(self._ends_at, now + self._deadlines.inter_token_seconds)
            if self.second_at is None and stream.content_events > 1:
                self.second_at = now
        left, quiet_seconds = self._due - now, self._quiet_seconds
        return left if quiet_seconds is None or quiet_seconds > left else quiet_seconds

    def failure(self) -> AttemptFailed | None:
        """What a stream that is over amounts to, if it is not a success: it said an error, or ended too early."""
        stream = self.stream
        assert stream is not None
        if stream.error is not None:
            return self.said(stream.error)
        if not stream.done and stream.finish_reasons < self._work.parsed.n:
            return AttemptFailed(
                UpstreamFailure(), retry=True, outcome=AttemptOutcome.FAILED, reason="the stream ended too early"
            )
        return None

    def said(self, data: bytes) -> AttemptFailed:
        """The failure that an engine's error under a good status amounts to."""
        return failure_of_event(data, served_name=self.endpoint.served_name, client_model=self._work.parsed.model)

    # A whole answer

    async def read_whole(self) -> WholeAnswer:
        """The answer, held whole, so that an engine's death in it can still be made good.

        Raises UpstreamError or AttemptFailed.
        """
        body = await self._read_body(self._deadlines.answer_bytes, self._left())
        for _ in range(_MOST_STEPS):
            if self._translation is None:
                break
            try:
                step = self._translation.whole(body)
            except ValueError as error:
                raise BadResponse(str(error), said=body) from error
            if isinstance(step, bytes):
                body = step
                break
            self.release()
            self._response = self._pending = None
            await self._send(step.method, step.path, step.body)
            await self._wait_head(None)
            body = await self._read_body(self._deadlines.answer_bytes, self._left())
        try:
            answer = read_whole(self._work.api, body, client_model=self._work.parsed.model)
        except MalformedJson as error:
            raise BadResponse(f"the answer is not JSON: {error}", said=body) from error
        if answer.error is not None:
            raise self.said(answer.error)
        return answer

    async def _read_body(self, limit: int, seconds: float) -> bytes:
        response = self._response
        assert response is not None
        data = await response.read(seconds)
        assert data is not None
        if response.drained and len(data) <= limit:
            return data  # as nearly always: it came in one piece
        until = self._now() + seconds
        parts: list[bytes] = []
        size = 0
        claim = self._claim = self._claim or Claim(self._client.memory)
        while data:
            size += len(data)
            if size > limit:
                raise BadResponse(f"an answer of more than {limit} bytes")
            try:
                claim.take(len(data))
            except RelayMemoryExhausted as error:
                raise AttemptFailed(error, retry=False) from error
            parts.append(data)
            data = await response.read(max(0.0, until - self._now()))
        return b"".join(parts)

    # Ends

    def release(self) -> None:
        """Done with it: the connection stays of use where the answer has come whole, or soon has."""
        self._let_go()
        response = self._response
        if response is not None and not response.complete:
            response.release(_TAIL_SECONDS)

    def close(self) -> None:
        """Done with it: the connection is closed unless the answer has come whole."""
        self._let_go()
        if self._response is not None:
            self._response.close()
        elif self._pending is not None:
            self._pending.close()

    def _let_go(self) -> None:
        if self._claim is not None:
            self._claim.release()

    def abort(self) -> bool:
        """Have whoever waits for the engine fail with ConnectionLost; False when it is not at the engine yet."""
        waiting = self._response or self._pending
        if waiting is None:
            return False
        waiting.fail(ConnectionLost("aborted"))
        return True

    def _left(self) -> float:
        return max(0.0, self._ends_at - self._now())
