"""Every process setting of Gatehouse, in one object. `docs/settings.md` is made from it."""

import os
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Final

from config.house_settings import BASE_DIR, HouseSettings
from config.pool_settings import PoolSettings
from config.request_settings import RequestSettings
from core.env import read, read_file, setting
from core.sentences import gettext_noop as _

__all__ = ["BASE_DIR", "Environment", "environment"]

_CONNECTIONS_PER_CORE: Final = 256
_FEWEST_CONNECTIONS: Final = 4096  # an idle one costs some kilobytes and no time: few cores are no reason for few


@dataclass(frozen=True)
class Environment(PoolSettings, RequestSettings, HouseSettings):
    """Settings of one process; read once, never changed."""

    smtp_url: str | None = setting(
        "GATEHOUSE_SMTP_URL",
        _(
            "Mail server: smtp://user:password@host:587 (encrypted by STARTTLS; with ?tls=off not) or smtps://...; "
            "when empty no e-mail is sent, and notices say so."
        ),
        default=None,
        secret=True,
    )
    mail_from: str = setting("GATEHOUSE_MAIL_FROM", _("Sender of e-mails."), default="gatehouse@localhost")
    webhook_allow_private: bool = setting(
        "GATEHOUSE_WEBHOOK_ALLOW_PRIVATE",
        _(
            "Webhooks may point to private addresses and to http://, for networks without a way out; metadata services "
            "of clouds never."
        ),
        default=False,
    )

    metrics_token: str | None = setting(
        "GATEHOUSE_METRICS_TOKEN",
        _("Bearer token that /metrics asks for; when empty, only this machine may read it."),
        default=None,
        secret=True,
    )
    log_level: str = setting("GATEHOUSE_LOG_LEVEL", _("DEBUG, INFO, WARNING or ERROR."), default="INFO")
    request_log: str = setting(
        "GATEHOUSE_REQUEST_LOG",
        _(
            "Which requests are a line of the log, at every door: off, errors (what failed, was refused by the "
            "inference endpoints, or took long) or all."
        ),
        default="errors",
    )
    request_log_slow_seconds: float = setting(
        "GATEHOUSE_REQUEST_LOG_SLOW_SECONDS", _("What counts as long there, seconds."), default=30.0, minimum=0
    )
    log_format: str = setting("GATEHOUSE_LOG_FORMAT", _("json or console."), default="json")

    @property
    def connections(self) -> int:
        """`connection_cap`, or what this machine's cores stand for."""
        return self.connection_cap or max(_FEWEST_CONNECTIONS, _CONNECTIONS_PER_CORE * (os.cpu_count() or 1))

    @property
    def training_root(self) -> Path:
        """Where training files, jobs and adapters lie."""
        return (self.training_dir or self.var_dir / "training").absolute()

    @property
    def runtime_file(self) -> Path:
        """Where `up` writes down the addresses it chose, for other commands on this machine."""
        return self.var_dir / "run" / "environment.json"

    @property
    def public_web_url(self) -> str:
        return (self.web_url or f"http://{self.web_host}:{self.web_port}").rstrip("/")

    @property
    def public_relay_url(self) -> str:
        return (self.relay_url or f"http://{self.relay_host}:{self.relay_port}").rstrip("/")


@cache
def environment() -> Environment:
    """This process's settings. Raises SettingsError (see core.env)."""
    var_dir = Path(os.environ.get("GATEHOUSE_VAR_DIR") or BASE_DIR / "var").expanduser()
    return read(Environment, os.environ, read_file(var_dir / "run" / "environment.json"))
