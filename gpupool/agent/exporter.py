"""Fetches the text of a dcgm-exporter that an operator runs beside the agent."""

from collections.abc import Awaitable, Callable
from typing import Final
from urllib.parse import urlsplit

from core.tls import outbound_context
from gpupool.agent.probe import ProbeFailed, ask
from gpupool.engines.base import WireRequest

_DEADLINE_SECONDS: Final = 0.5


def exporter_fetch(url: str) -> Callable[[], Awaitable[str | None]]:
    """A function that gets the metrics of `url`. Raises ValueError for an address that is none."""
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ValueError(f"GATEHOUSE_DCGM_URL={url!r} must look like http://host:9400/metrics.")
    host, port = parts.hostname, parts.port or (443 if parts.scheme == "https" else 9400)
    tls = outbound_context(None) if parts.scheme == "https" else None
    request = WireRequest("GET", parts.path if parts.path not in ("", "/") else "/metrics")

    async def fetch() -> str | None:
        try:
            answer = await ask(port, request, deadline_seconds=_DEADLINE_SECONDS, host=host, tls=tls)
        except ProbeFailed:
            return None
        return answer.body.decode(errors="replace") if answer.status == 200 else None

    return fetch
