"""What an engine has logged of its memory while it loaded."""

from pathlib import Path
from typing import Final

import structlog

from gpupool.engines.base import Engine, EngineMemory

log = structlog.get_logger(__name__)

_LOAD_LOG_BYTES: Final = 1 << 20  # from where its process began to write: loading takes some hundred lines


def logged_memory(engine: Engine, log_path: str | None, begins: int) -> EngineMemory:
    """By the engine's room, of the log from byte `begins` on; nothing known where there is no such log."""
    if engine.measured is None or log_path is None:
        return EngineMemory()
    try:
        with Path(log_path).open("rb") as file:
            file.seek(begins)
            text = file.read(_LOAD_LOG_BYTES).decode(errors="replace")
    except OSError:
        return EngineMemory()
    try:
        return engine.measured("", text)
    except Exception:  # a room that misreads a log is no reason to end an engine that serves
        log.warning("agent.engine_log_unread", engine=engine.name, exc_info=True)
        return EngineMemory()
