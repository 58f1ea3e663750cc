"""From DATABASE_URL to Django's setting, and to its owner's role for as long as a migration takes."""

from typing import Any
from urllib.parse import parse_qsl, unquote, urlsplit

from core.env import SettingsError
from core.keepalive import POSTGRES_KEEPALIVE


def database_setting(url: str | None, *, statement_timeout_ms: int) -> dict[str, Any]:
    """Django's DATABASES entry; a dummy engine when there is no URL (a node agent has none).

    Raises SettingsError for a URL that is not PostgreSQL's.
    """
    if url is None:
        return {"ENGINE": "django.db.backends.dummy"}
    parts = urlsplit(url)
    if parts.scheme not in ("postgres", "postgresql") or not parts.path.strip("/"):
        raise SettingsError("DATABASE_URL must look like postgresql://user:password@host:port/name")
    options: dict[str, Any] = {"connect_timeout": 3, **POSTGRES_KEEPALIVE, **dict(parse_qsl(parts.query))}
    options["options"] = (
        f"-c statement_timeout={statement_timeout_ms} -c lock_timeout={min(statement_timeout_ms, 10_000)}"
    )
    return {
        "ENGINE": "django_prometheus.db.backends.postgresql",
        "NAME": unquote(parts.path.lstrip("/")),
        "USER": unquote(parts.username or ""),
        "PASSWORD": unquote(parts.password or ""),
        "HOST": unquote(parts.hostname or "") or options.pop("host", ""),
        "PORT": str(parts.port or ""),
        "OPTIONS": options,
        "CONN_HEALTH_CHECKS": True,
        "CONN_MAX_AGE": 60,
        "ATOMIC_REQUESTS": False,
    }
