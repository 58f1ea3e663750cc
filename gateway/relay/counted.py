"""What is known, at the end of a request, of the work that an engine did for it."""

from collections.abc import Callable
from typing import NamedTuple

from gateway.relay.attempt import Attempt
from gateway.relay.completion import WholeAnswer
from gateway.relay.estimate import estimate_unseen, estimate_usage
from gateway.relay.plan import Usage, Work


class Worked(NamedTuple):
    """`unseen_output`: see Settlement."""

    usage: Usage
    unseen_output: int | None = None


class Counted:
    """Gathers it from the attempts of one request. `now`: monotonic seconds."""

    __slots__ = ("_content_bytes", "_content_events", "_now", "_sent_at", "_usage", "_work", "engine_request_id")

    def __init__(self, work: Work, now: Callable[[], float]) -> None:
        self.engine_request_id: str | None = None
        self._work = work
        self._now = now
        self._usage: Usage | None = None
        self._content_bytes = 0
        self._content_events: int | None = None  # of a stream
        self._sent_at: float | None = None  # the attempt that came last; None: it never came to its engine

    def note_whole(self, answer: WholeAnswer) -> None:
        self._usage = answer.usage
        self._content_bytes = answer.content_bytes
        self.engine_request_id = answer.engine_request_id

    def note_end(self, attempt: Attempt) -> None:
        """An attempt is over, however it ended."""
        self._sent_at = attempt.sent_at if attempt.sent else None
        if (stream := attempt.stream) is not None:
            self._usage = stream.usage
            self._content_events = stream.content_events
            self.engine_request_id = stream.engine_request_id

    def sum_up(self, *, told: bool, left: bool) -> Worked:
        """The engine's word; where content was told without one, an estimate; else nothing was done that counts.

        Unless the client wished no more of it (`left`) once it was forwarded: leaving early makes no work free.
        """
        if self._usage is not None:
            return Worked(self._usage)
        if told:
            return Worked(
                estimate_usage(self._work, content_events=self._content_events, content_bytes=self._content_bytes)
            )
        if not left or self._sent_at is None:
            return Worked(Usage())
        return Worked(*estimate_unseen(self._work, self._now() - self._sent_at))
