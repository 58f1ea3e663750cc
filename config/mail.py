"""Django's e-mail settings, from one address."""

from typing import Any, Final
from urllib.parse import parse_qs, unquote, urlsplit

from core.env import SettingsError

_PORTS: Final = {"smtp": 587, "smtps": 465}
_TIMEOUT_SECONDS: Final = 10


def mail_settings(smtp_url: str | None, mail_from: str) -> dict[str, Any]:
    """What Django's settings say of e-mail; without an address nothing is ever sent.

    `smtp://user:password@host:587` begins in the clear and must go on encrypted, unless it says `?tls=off`;
    `smtps://` is encrypted from the start. Raises SettingsError.
    """
    settings: dict[str, Any] = {"DEFAULT_FROM_EMAIL": mail_from, "SERVER_EMAIL": mail_from}
    if smtp_url is None:
        return settings | {"EMAIL_BACKEND": "django.core.mail.backends.dummy.EmailBackend"}
    try:
        parts = urlsplit(smtp_url)
        host, port = parts.hostname, parts.port
    except ValueError as error:
        raise SettingsError("GATEHOUSE_SMTP_URL is not a URL") from error
    if parts.scheme not in _PORTS or not host:
        raise SettingsError("GATEHOUSE_SMTP_URL is smtp://user:password@host:port or smtps://...")
    options = parse_qs(parts.query)
    if options not in ({}, {"tls": ["off"]}) or (options and parts.scheme == "smtps"):
        raise SettingsError("GATEHOUSE_SMTP_URL knows no option but tls=off, of smtp://")
    return settings | {
        "EMAIL_BACKEND": "django.core.mail.backends.smtp.EmailBackend",
        "EMAIL_HOST": host,
        "EMAIL_PORT": port or _PORTS[parts.scheme],
        "EMAIL_HOST_USER": unquote(parts.username or ""),
        "EMAIL_HOST_PASSWORD": unquote(parts.password or ""),
        "EMAIL_USE_SSL": parts.scheme == "smtps",
        "EMAIL_USE_TLS": parts.scheme == "smtp" and not options,
        "EMAIL_TIMEOUT": _TIMEOUT_SECONDS,
    }
