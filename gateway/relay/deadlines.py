"""How long a request may wait for what."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Deadlines:
    """Longest waits of one request, in seconds. Heartbeats of an engine are no progress."""

    connect_seconds: float = 2.0
    first_token_seconds: float = 120.0  # of a streamed answer: its first content
    inter_token_seconds: float = 30.0  # of a streamed answer: from content to content
    total_seconds: float = 600.0
    keep_alive_seconds: float = 10.0  # of a streamed answer: silence after which the client is told that we live
    answer_bytes: int = 64 * 1024 * 1024  # bound of a non-streamed answer, which is held whole
    attempts: int = 3  # most attempts of one request
    retry_seconds: float = 150.0  # since its arrival: no further attempt begins later
