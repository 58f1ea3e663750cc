"""Why an engine's answer did not come, or is none."""

from enum import StrEnum


class Phase(StrEnum):
    """What was being waited for when a deadline passed."""

    CONNECT = "connect"
    HEAD = "head"
    BODY = "body"


class UpstreamError(Exception):
    """An engine could not be reached, went away, or did not speak HTTP. The message is for logs."""


class ConnectFailed(UpstreamError):
    """No connection: refused, unreachable, or every allowed one busy."""


class ConnectionLost(UpstreamError):
    """The connection ended before the response did."""


class DeadlinePassed(UpstreamError):
    """The engine did not do its next step in time."""

    def __init__(self, phase: Phase) -> None:
        self.phase = phase
        super().__init__(f"deadline passed while waiting for {phase}")


class BadResponse(UpstreamError):
    """What came is not HTTP/1.1, not what was asked for, or more than this client accepts. `said`: its beginning."""

    def __init__(self, message: str, *, said: bytes = b"") -> None:
        self.said = said[:200]
        super().__init__(message)
