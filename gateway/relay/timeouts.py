"""A client's own deadline: it may ask for less time than the gateway gives, never for more.

Only our own header counts. OpenAI's clients send `x-stainless-timeout` with every request, their users' patience
with a connection, which is no wish to have the answer cut.
"""

from typing import Final

from core.errors import InvalidRequest
from gateway.relay.plan import Headers

HEADER: Final = b"x-gatehouse-timeout-ms"
_LONGEST_DIGITS: Final = 12


def client_timeout_seconds(headers: Headers) -> float | None:
    """What the client allows for the whole request; None where it says nothing. Raises InvalidRequest."""
    for name, value in headers:
        if name == HEADER:
            if not value.isdigit() or len(value) > _LONGEST_DIGITS or int(value) == 0:
                raise InvalidRequest(f"{HEADER.decode()} is a whole number of milliseconds, at least 1.")
            return int(value) / 1000
    return None
