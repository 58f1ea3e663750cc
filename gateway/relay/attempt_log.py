"""What the log says of attempts: why an engine is at fault, why none can be asked. Never a word of the prompt."""

import re
from collections.abc import Callable, Mapping
from typing import Final
from uuid import UUID

import structlog

from core.telemetry.seldom import Seldom
from gateway.relay.context import logged_as
from gateway.relay.plan import Endpoint, Ready

log = structlog.get_logger(__name__)

_word = re.compile(rb"[\w.@+-]{4,}")
_unroutable: Final = Seldom()
"""Lines of the whole process: without an endpoint every request is refused, and a line for each could fill a disk."""


def log_failed(ready: Ready, endpoint: Endpoint | None, attempt: int, reason: str, *, said: bytes = b"") -> None:
    """The `attempt`th of a request failed at an engine, which said `said`."""
    with logged_as(ready.request, ready.principal):
        log.warning(
            "attempt_failed",
            request_id=str(ready.request.request_id),
            instance_id=str(endpoint.instance_id) if endpoint else None,
            attempt=attempt,
            reason=reason,
            **({"said": _quote(said, ready.request.body)} if said else {}),
        )


def log_unroutable(request_id: UUID, why_not: Callable[[], Mapping[UUID, str]], now: float) -> None:
    """No endpoint can be asked, and why; at most a line in a while. `now`: monotonic seconds."""
    if (held_back := _unroutable.due(now)) is not None:
        reasons = {str(each): str(reason) for each, reason in why_not().items()}
        log.warning("no_endpoint_routable", request_id=str(request_id), reasons=reasons, held_back=held_back)


def _quote(said: bytes, body: bytes) -> str:
    """An engine's own bytes for the log: printable, and without words that the client sent."""
    shown = _word.sub(lambda match: b"***" if match[0] in body else match[0], said)
    return shown.decode("ascii", "backslashreplace")
