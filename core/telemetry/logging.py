"""Structured logs: one JSON object a line on standard error, or readable lines for a terminal."""

import logging
import logging.config
from typing import Any

import structlog

from core.env import SettingsError
from core.telemetry.seldom import SeldomFilter

_LEVELS = ("DEBUG", "INFO", "WARNING", "ERROR")


def configure_logging(*, level: str, style: str) -> None:
    """Route structlog and the standard library through one formatter.

    Raises SettingsError for a level or style that is not known.
    """
    if level.upper() not in _LEVELS:
        raise SettingsError(f"GATEHOUSE_LOG_LEVEL={level!r} is none of {', '.join(_LEVELS)}")
    if style not in ("json", "console"):
        raise SettingsError(f"GATEHOUSE_LOG_FORMAT={style!r} is neither json nor console")
    shared: list[Any] = [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_log_level,
        structlog.stdlib.add_logger_name,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        structlog.processors.format_exc_info,
    ]
    renderer = structlog.processors.JSONRenderer() if style == "json" else structlog.dev.ConsoleRenderer(colors=False)
    logging.config.dictConfig(
        {
            "version": 1,
            "disable_existing_loggers": False,
            "formatters": {
                "gatehouse": {
                    "()": structlog.stdlib.ProcessorFormatter,
                    "processors": [structlog.stdlib.ProcessorFormatter.remove_processors_meta, renderer],
                    "foreign_pre_chain": shared,
                }
            },
            "filters": {"seldom": {"()": SeldomFilter}},
            "handlers": {"stderr": {"class": "logging.StreamHandler", "formatter": "gatehouse"}},
            "root": {"handlers": ["stderr"], "level": level.upper()},
            "loggers": {
                "httpx2": {"level": "WARNING"},
                "uvicorn.access": {"level": "WARNING"},
                "django.server": {"level": "WARNING"},
                # Else the address of whatever is refused is logged, and with it what a client put there by mistake.
                "django.request": {"level": "ERROR"},
                # Whoever asks for a host that is not ours would else write a traceback with each request.
                "django.security.DisallowedHost": {"filters": ["seldom"]},
                "websockets": {"level": "WARNING"},
            },
        }
    )
    structlog.configure(
        processors=[structlog.stdlib.filter_by_level, *shared, structlog.stdlib.ProcessorFormatter.wrap_for_formatter],
        logger_factory=structlog.stdlib.LoggerFactory(),
        wrapper_class=structlog.stdlib.BoundLogger,
        cache_logger_on_first_use=True,
    )
