"""Settings of a whole installation: where its servers are, and how people get in."""

from dataclasses import dataclass
from pathlib import Path
from typing import Final

from core.env import setting, web_address_fault
from core.sentences import gettext_noop as _

BASE_DIR: Final = Path(__file__).resolve().parent.parent


@dataclass(frozen=True)
class HouseSettings:
    """What everything else rests on."""

    var_dir: Path = setting("GATEHOUSE_VAR_DIR", _("Folder for data, logs and sockets."), default=BASE_DIR / "var")
    debug: bool = setting("GATEHOUSE_DEBUG", _("Django debug pages; never in production."), default=False)
    secret_key: str | None = setting(
        "GATEHOUSE_SECRET_KEY", _("Signs sessions; `up` makes one and keeps it under var/."), default=None, secret=True
    )
    allowed_hosts: tuple[str, ...] = setting(
        "GATEHOUSE_ALLOWED_HOSTS",
        _("Host names the console answers to, comma-separated."),
        default=("localhost", "127.0.0.1", "[::1]"),
    )
    trusted_origins: tuple[str, ...] = setting(
        "GATEHOUSE_TRUSTED_ORIGINS", _("Origins (scheme://host) that may post forms, when behind a proxy."), default=()
    )
    require_mfa: str = setting(
        "GATEHOUSE_REQUIRE_MFA",
        _(
            "Who must have a second factor to use console, portal and, with a session, the control API: off, platform "
            "(people with a platform role) or all."
        ),
        default="off",
    )
    oidc_issuer: str | None = setting(
        "GATEHOUSE_OIDC_ISSUER",
        _(
            "OpenID Connect provider that people may log in by: its issuer, https://..., as its discovery document "
            "names it."
        ),
        default=None,
    )
    oidc_client_id: str | None = setting("GATEHOUSE_OIDC_CLIENT_ID", _("What the provider knows us as."), default=None)
    oidc_client_secret: str | None = setting(
        "GATEHOUSE_OIDC_CLIENT_SECRET", _("Our secret at the provider."), default=None, secret=True
    )
    oidc_client_secret_file: Path | None = setting(
        "GATEHOUSE_OIDC_CLIENT_SECRET_FILE", _("File that holds it, instead."), default=None
    )
    oidc_name: str = setting(
        "GATEHOUSE_OIDC_NAME", _("What the log-in page calls the provider."), default="single sign-on"
    )
    oidc_scopes: tuple[str, ...] = setting(
        "GATEHOUSE_OIDC_SCOPES",
        _("What is asked of the provider, comma-separated; some tell groups only when asked for them."),
        default=("openid", "profile", "email"),
    )
    time_zone: str = setting(
        "GATEHOUSE_TIME_ZONE", _("IANA zone of the console where no tenant's applies."), default="UTC"
    )

    currency: str = setting(
        "GATEHOUSE_CURRENCY",
        _(
            "ISO 4217 code of the one currency of prices, budgets and bills. Fixed at the first start: another one "
            "later refuses the start."
        ),
        default="USD",
    )
    minutes_kept_days: int = setting(
        "GATEHOUSE_MINUTES_KEPT_DAYS",
        _("How long sums of usage and of refusals by the minute are kept; sums of usage by hour and day stay."),
        default=90,
        minimum=31,
        maximum=36_500,
    )

    database_url: str | None = setting(
        "DATABASE_URL",
        _("PostgreSQL 15 or newer: postgresql://user:password@host:port/name."),
        default=None,
        secret=True,
    )
    owner_database_url: str | None = setting(
        "GATEHOUSE_OWNER_DATABASE_URL",
        _(
            "The same database as the role that owns it, for migrations alone: DATABASE_URL's role then needs to own "
            "nothing, and cannot empty the audit log. DATABASE_URL when empty."
        ),
        default=None,
        secret=True,
    )
    lease_database_url: str | None = setting(
        "LEASE_DATABASE_URL",
        _("Direct (unpooled) connection for leases; DATABASE_URL when empty."),
        default=None,
        secret=True,
    )
    statement_timeout_ms: int = setting(
        "GATEHOUSE_STATEMENT_TIMEOUT_MS",
        _("Longest SQL statement of a page or API call, ms."),
        default=15_000,
        minimum=100,
    )
    valkey_state_url: str | None = setting(
        "VALKEY_STATE_URL",
        _("Valkey or Redis 7+ for limits and the usage stream (append-only file, noeviction)."),
        default=None,
        secret=True,
    )
    valkey_scratch_url: str | None = setting(
        "VALKEY_SCRATCH_URL", _("Valkey or Redis 7+ for cache, channel layer and broker."), default=None, secret=True
    )
    valkey_prefix: str = setting(
        "GATEHOUSE_VALKEY_PREFIX",
        _("Prefix of every key and channel: of each house another, where several share a server."),
        default="gh:",
    )
    valkey_deadline_seconds: float = setting(
        "GATEHOUSE_VALKEY_DEADLINE_SECONDS",
        _("Longest wait for a limit's script, seconds."),
        default=0.05,
        minimum=0.001,
    )

    relay_host: str = setting("GATEHOUSE_RELAY_HOST", _("Address the relay listens on."), default="127.0.0.1")
    relay_port: int = setting(
        "GATEHOUSE_RELAY_PORT",
        _("Port of the relay (the OpenAI-compatible door)."),
        default=8080,
        minimum=1,
        maximum=65535,
    )
    relay_processes: int = setting(
        "GATEHOUSE_RELAY_PROCESSES", _("Relay processes that `up` starts."), default=1, minimum=1, maximum=256
    )
    relay_cpus: str = setting(
        "GATEHOUSE_RELAY_CPUS",
        _(
            "Processors that relay processes run on, such as 0-7,16-23: those of one NUMA node, whose memory they then "
            "use; all when empty."
        ),
        default="",
    )
    web_host: str = setting("GATEHOUSE_WEB_HOST", _("Address the web process listens on."), default="127.0.0.1")
    web_port: int = setting(
        "GATEHOUSE_WEB_PORT", _("Port of console, portal and control API."), default=8000, minimum=1, maximum=65535
    )
    web_url: str | None = setting(
        "GATEHOUSE_WEB_URL",
        _(
            "Where browsers and node agents reach the web process, such as https://gatehouse.example.com: e-mails and "
            "webhooks link to pages there, and with https:// its cookies are sent over https only. From host and port "
            "when empty; e-mails then name the start page alone, and webhooks no page."
        ),
        default=None,
        check=web_address_fault,
    )
    relay_url: str | None = setting(
        "GATEHOUSE_RELAY_URL",
        _("Where applications reach the relay, shown in console and portal; from host and port when empty."),
        default=None,
        check=web_address_fault,
    )
