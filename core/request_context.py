"""Which request this code runs for, for what is written down far from it."""

from contextvars import ContextVar
from typing import Final

request_id: Final[ContextVar[str]] = ContextVar("request_id", default="")
"""The id that core.api.request_ids gave the web request; empty outside one."""
