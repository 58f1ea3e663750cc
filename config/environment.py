"""Every process setting of Gatehouse, in one place. `docs/settings.md` is made from this file."""

import os
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Final

from core.env import read, read_file, setting

BASE_DIR: Final = Path(__file__).resolve().parent.parent
_CONNECTIONS_PER_CORE: Final = 256
_FEWEST_CONNECTIONS: Final = 4096  # an idle one costs some kilobytes and no time: few cores are no reason for few


@dataclass(frozen=True, slots=True)
class Environment:
    """Settings of one process; read once, never changed."""

    var_dir: Path = setting("GATEHOUSE_VAR_DIR", "Folder for data, logs and sockets.", default=BASE_DIR / "var")
    debug: bool = setting("GATEHOUSE_DEBUG", "Django debug pages; never in production.", default=False)
    secret_key: str | None = setting(
        "GATEHOUSE_SECRET_KEY", "Signs sessions; `up` makes one and keeps it under var/.", default=None, secret=True
    )
    allowed_hosts: tuple[str, ...] = setting(
        "GATEHOUSE_ALLOWED_HOSTS",
        "Host names the console answers to, comma-separated.",
        default=("localhost", "127.0.0.1", "[::1]"),
    )
    trusted_origins: tuple[str, ...] = setting(
        "GATEHOUSE_TRUSTED_ORIGINS", "Origins (scheme://host) that may post forms, when behind a proxy.", default=()
    )
    require_mfa: str = setting(
        "GATEHOUSE_REQUIRE_MFA",
        "Who must have a second factor to use console, portal and, with a session, the control API: off, platform "
        "(people with a platform role) or all.",
        default="off",
    )
    oidc_issuer: str | None = setting(
        "GATEHOUSE_OIDC_ISSUER",
        "OpenID Connect provider that people may log in by: its issuer, https://..., as its discovery document names "
        "it.",
        default=None,
    )
    oidc_client_id: str | None = setting("GATEHOUSE_OIDC_CLIENT_ID", "What the provider knows us as.", default=None)
    oidc_client_secret: str | None = setting(
        "GATEHOUSE_OIDC_CLIENT_SECRET", "Our secret at the provider.", default=None, secret=True
    )
    oidc_client_secret_file: Path | None = setting(
        "GATEHOUSE_OIDC_CLIENT_SECRET_FILE", "File that holds it, instead.", default=None
    )
    oidc_name: str = setting(
        "GATEHOUSE_OIDC_NAME", "What the log-in page calls the provider.", default="single sign-on"
    )
    oidc_scopes: tuple[str, ...] = setting(
        "GATEHOUSE_OIDC_SCOPES",
        "What is asked of the provider, comma-separated; some tell groups only when asked for them.",
        default=("openid", "profile", "email"),
    )
    time_zone: str = setting(
        "GATEHOUSE_TIME_ZONE", "IANA zone of the console where no tenant's applies.", default="UTC"
    )

    currency: str = setting(
        "GATEHOUSE_CURRENCY",
        "ISO 4217 code of the one currency of prices, budgets and bills. Fixed at the first start: another one later "
        "refuses the start.",
        default="USD",
    )
    minutes_kept_days: int = setting(
        "GATEHOUSE_MINUTES_KEPT_DAYS",
        "How long sums of usage by the minute are kept; those by hour and day stay.",
        default=90,
        minimum=31,
        maximum=36_500,
    )

    database_url: str | None = setting(
        "DATABASE_URL", "PostgreSQL 15 or newer: postgresql://user:password@host:port/name.", default=None, secret=True
    )
    owner_database_url: str | None = setting(
        "GATEHOUSE_OWNER_DATABASE_URL",
        "The same database as the role that owns it, for migrations alone: DATABASE_URL's role then needs to own "
        "nothing, and cannot empty the audit log. DATABASE_URL when empty.",
        default=None,
        secret=True,
    )
    lease_database_url: str | None = setting(
        "LEASE_DATABASE_URL",
        "Direct (unpooled) connection for leases; DATABASE_URL when empty.",
        default=None,
        secret=True,
    )
    statement_timeout_ms: int = setting(
        "GATEHOUSE_STATEMENT_TIMEOUT_MS",
        "Longest SQL statement of a page or API call, ms.",
        default=15_000,
        minimum=100,
    )
    valkey_state_url: str | None = setting(
        "VALKEY_STATE_URL",
        "Valkey or Redis 7+ for limits and the usage stream (append-only file, noeviction).",
        default=None,
        secret=True,
    )
    valkey_scratch_url: str | None = setting(
        "VALKEY_SCRATCH_URL", "Valkey or Redis 7+ for cache, channel layer and broker.", default=None, secret=True
    )
    valkey_prefix: str = setting("GATEHOUSE_VALKEY_PREFIX", "Prefix of every key, to share one server.", default="gh:")
    valkey_deadline_seconds: float = setting(
        "GATEHOUSE_VALKEY_DEADLINE_SECONDS", "Longest wait for a limit's script, seconds.", default=0.05, minimum=0.001
    )

    relay_host: str = setting("GATEHOUSE_RELAY_HOST", "Address the relay listens on.", default="127.0.0.1")
    relay_port: int = setting(
        "GATEHOUSE_RELAY_PORT",
        "Port of the relay (the OpenAI-compatible door).",
        default=8080,
        minimum=1,
        maximum=65535,
    )
    relay_processes: int = setting(
        "GATEHOUSE_RELAY_PROCESSES", "Relay processes that `up` starts.", default=1, minimum=1, maximum=256
    )
    web_host: str = setting("GATEHOUSE_WEB_HOST", "Address the web process listens on.", default="127.0.0.1")
    web_port: int = setting(
        "GATEHOUSE_WEB_PORT", "Port of console, portal and control API.", default=8000, minimum=1, maximum=65535
    )
    web_url: str | None = setting(
        "GATEHOUSE_WEB_URL",
        "Where browsers and node agents reach the web process, from host and port when empty; with https:// its "
        "cookies are sent over https only.",
        default=None,
    )
    relay_url: str | None = setting(
        "GATEHOUSE_RELAY_URL",
        "Where applications reach the relay, shown in console and portal; from host and port when empty.",
        default=None,
    )

    body_cap_bytes: int = setting(
        "GATEHOUSE_BODY_CAP_BYTES", "Largest request body, bytes.", default=32 * 1024 * 1024, minimum=1024
    )
    head_deadline_seconds: float = setting(
        "GATEHOUSE_HEAD_DEADLINE_SECONDS", "Longest wait for a request's head.", default=10.0, minimum=0.1
    )
    body_deadline_seconds: float = setting(
        "GATEHOUSE_BODY_DEADLINE_SECONDS", "Longest wait for a request's body.", default=60.0, minimum=0.1
    )
    send_deadline_seconds: float = setting(
        "GATEHOUSE_SEND_DEADLINE_SECONDS", "Longest wait for a client that does not read.", default=60.0, minimum=0.1
    )
    connection_cap: int | None = setting(
        "GATEHOUSE_CONNECTION_CAP",
        "Open client connections per process of a door; one more is told 503. When empty 256 for each core of the "
        "machine, and at least 4096.",
        default=None,
        minimum=1,
    )
    client_connection_cap: int = setting(
        "GATEHOUSE_CLIENT_CONNECTION_CAP",
        "Open connections of one client address (of IPv6, one /64 network) per process of a door, or behind a trusted "
        "proxy its requests under way; one more is told 429.",
        default=1000,
        minimum=1,
    )
    trusted_proxies: tuple[str, ...] = setting(
        "GATEHOUSE_TRUSTED_PROXIES",
        "Networks and addresses of proxies whose X-Forwarded-For says who the client is, comma-separated.",
        default=(),
    )
    relay_memory_bytes: int = setting(
        "GATEHOUSE_RELAY_MEMORY_BYTES",
        "What one process of a door holds of requests' bodies and of answers that it reads whole, bytes; a request "
        "beyond that is told 503.",
        default=1 << 30,
        minimum=1 << 20,
    )
    connect_deadline_seconds: float = setting(
        "GATEHOUSE_CONNECT_DEADLINE_SECONDS", "Longest wait for a connection to an engine.", default=2.0, minimum=0.01
    )
    first_token_deadline_seconds: float = setting(
        "GATEHOUSE_FIRST_TOKEN_DEADLINE_SECONDS",
        "Longest wait for an engine's first content.",
        default=120.0,
        minimum=0.1,
    )
    inter_token_deadline_seconds: float = setting(
        "GATEHOUSE_INTER_TOKEN_DEADLINE_SECONDS",
        "Longest silence of an engine between two pieces of content.",
        default=30.0,
        minimum=0.1,
    )
    total_deadline_seconds: float = setting(
        "GATEHOUSE_TOTAL_DEADLINE_SECONDS", "Longest request altogether.", default=600.0, minimum=1
    )
    keep_alive_seconds: float = setting(
        "GATEHOUSE_SSE_KEEP_ALIVE_SECONDS",
        "Silence in a stream after which its client is sent a comment, unless its key says not to.",
        default=10.0,
        minimum=0.1,
    )
    attempts: int = setting(
        "GATEHOUSE_ATTEMPTS",
        "Most engines that one request is tried at, before its first content.",
        default=3,
        minimum=1,
        maximum=10,
    )
    retry_deadline_seconds: float = setting(
        "GATEHOUSE_RETRY_DEADLINE_SECONDS",
        "After a request's arrival: no further engine is tried later than this.",
        default=150.0,
        minimum=0,
    )
    retry_share: float = setting(
        "GATEHOUSE_RETRY_SHARE",
        "Most retries of one process, as a share of its requests of the last ten seconds; ten are always allowed.",
        default=0.2,
        minimum=0,
        maximum=1,
    )
    default_max_tokens: int = setting(
        "GATEHOUSE_DEFAULT_MAX_TOKENS",
        "End of an answer, tokens, where a limit of tokens or money counts it and neither the client nor the model's "
        "context gives one.",
        default=4096,
        minimum=1,
    )
    template_tokens: int = setting(
        "GATEHOUSE_TEMPLATE_TOKENS",
        "What a model's chat template may add to a prompt, tokens; it is reserved under limits of tokens and money.",
        default=256,
        minimum=0,
    )
    coalesce: str = setting(
        "GATEHOUSE_COALESCE",
        "off or deterministic: requests of a tenant that are the same and under way at once in one process are asked "
        "of an engine once, where the answer is certain (temperature 0, embeddings, rerank, tokenize) or the client "
        "says so (x-gatehouse-coalesce: on).",
        default="off",
    )
    engine_ca_file: Path | None = setting(
        "GATEHOUSE_ENGINE_CA_FILE",
        "PEM file with certificates that engines behind https may be signed by, beside those that the system trusts.",
        default=None,
    )
    outbound_ca_file: Path | None = setting(
        "GATEHOUSE_OUTBOUND_CA_FILE",
        "PEM file with certificates that issuers' key sets and webhooks behind https may be signed by, beside those "
        "that the system trusts.",
        default=None,
    )
    realtime_idle_seconds: float = setting(
        "GATEHOUSE_REALTIME_IDLE_SECONDS",
        "Silence of a client after which its /v1/realtime connection is closed.",
        default=900.0,
        minimum=1,
    )
    realtime_message_bytes: int = setting(
        "GATEHOUSE_REALTIME_MESSAGE_BYTES",
        "Largest message of a client on /v1/realtime, bytes.",
        default=1024 * 1024,
        minimum=1024,
    )
    realtime_conversation_bytes: int = setting(
        "GATEHOUSE_REALTIME_CONVERSATION_BYTES",
        "Largest conversation on /v1/realtime, and largest answer in one, bytes; it is kept in memory.",
        default=4 * 1024 * 1024,
        minimum=4096,
    )
    drain_notice_seconds: float = setting(
        "GATEHOUSE_DRAIN_NOTICE_SECONDS",
        "After SIGTERM: how long /readyz says no while requests are still taken.",
        default=5.0,
        minimum=0,
    )
    drain_deadline_seconds: float = setting(
        "GATEHOUSE_DRAIN_DEADLINE_SECONDS",
        "After that: how long running requests may take to finish.",
        default=45.0,
        minimum=0,
    )
    snapshot_poll_seconds: float = setting(
        "GATEHOUSE_SNAPSHOT_POLL_SECONDS",
        "How often every process asks PostgreSQL for new epochs.",
        default=0.25,
        minimum=0.01,
    )
    snapshot_stale_seconds: float = setting(
        "GATEHOUSE_SNAPSHOT_STALE_SECONDS",
        "How long requests are served from the snapshot while PostgreSQL is away.",
        default=60.0,
        minimum=1,
    )
    spool_cap_bytes: int = setting(
        "GATEHOUSE_SPOOL_CAP_BYTES",
        "Largest usage spool of one process; when full, requests under limits are told 503.",
        default=256 * 1024 * 1024,
        minimum=65536,
    )

    node_name: str | None = setting(
        "GATEHOUSE_NODE_NAME", "Name of this machine's node agent; the host name when empty.", default=None
    )
    node_token: str | None = setting("GATEHOUSE_NODE_TOKEN", "Token of the node agent.", default=None, secret=True)
    engine_port_first: int = setting(
        "GATEHOUSE_ENGINE_PORT_FIRST",
        "First port the agent gives to engines.",
        default=21000,
        minimum=1024,
        maximum=65000,
    )
    engine_port_count: int = setting(
        "GATEHOUSE_ENGINE_PORT_COUNT", "How many ports from there.", default=200, minimum=1, maximum=10000
    )
    host_memory_share: float = setting(
        "GATEHOUSE_HOST_MEMORY_SHARE",
        "Share of the host's memory that instances on the CPU device may claim.",
        default=0.5,
        minimum=0.01,
        maximum=1,
    )
    load_deadline_seconds: float = setting(
        "GATEHOUSE_LOAD_DEADLINE_SECONDS",
        "How long an engine may take from its start to its first token; large models on GPUs take minutes.",
        default=600.0,
        minimum=1,
    )
    node_unreachable_seconds: float = setting(
        "GATEHOUSE_NODE_UNREACHABLE_SECONDS",
        "Silence after which a node counts as unreachable.",
        default=30.0,
        minimum=0.5,
    )
    controller_lease_seconds: float = setting(
        "GATEHOUSE_CONTROLLER_LEASE_SECONDS", "Time to live of the controller's leader lease.", default=5.0, minimum=0.5
    )

    trainer_command: str = setting(
        "GATEHOUSE_TRAINER_COMMAND",
        "Command line of the trainer of fine-tuning jobs, run by the worker without a shell; when empty jobs are told "
        "503.",
        default="",
    )
    trainer_environment: tuple[str, ...] = setting(
        "GATEHOUSE_TRAINER_ENVIRONMENT",
        "Names of variables that a trainer gets of the worker's environment, comma-separated, beside PATH, the locale "
        "and the time zone. Names that begin with GATEHOUSE_ and secrets of ours are never passed on.",
        default=(),
    )
    trainer_jobs: int = setting("GATEHOUSE_TRAINER_JOBS", "Trainers at once.", default=1, minimum=1, maximum=1000)
    trainer_jobs_per_tenant: int = setting(
        "GATEHOUSE_TRAINER_JOBS_PER_TENANT", "Of them, of one tenant.", default=1, minimum=1, maximum=1000
    )
    trainer_seconds: float = setting(
        "GATEHOUSE_TRAINER_SECONDS", "Longest run of a trainer; it is ended then.", default=86_400.0, minimum=1
    )
    trainer_grace_seconds: float = setting(
        "GATEHOUSE_TRAINER_GRACE_SECONDS",
        "What a trainer has between SIGTERM and SIGKILL.",
        default=30.0,
        minimum=0,
        maximum=3600,
    )
    trainer_log_bytes: int = setting(
        "GATEHOUSE_TRAINER_LOG_BYTES",
        "How much is kept of what one trainer says, on standard error and on standard output each; the rest is "
        "thrown away.",
        default=64 * 1024 * 1024,
        minimum=1024,
    )
    training_dir: Path | None = setting(
        "GATEHOUSE_TRAINING_DIR",
        "Folder of training files, jobs and adapters, the same for relay, web process and worker; training in the "
        "data folder when empty.",
        default=None,
    )
    training_file_cap_bytes: int = setting(
        "GATEHOUSE_TRAINING_FILE_CAP_BYTES",
        "Largest file that is uploaded to train on; GATEHOUSE_BODY_CAP_BYTES bounds it, too.",
        default=32 * 1024 * 1024,
        minimum=1,
    )
    training_tenant_bytes: int = setting(
        "GATEHOUSE_TRAINING_TENANT_BYTES",
        "All such files of one tenant together, bytes.",
        default=1024 * 1024 * 1024,
        minimum=1,
    )

    smtp_url: str | None = setting(
        "GATEHOUSE_SMTP_URL",
        "Mail server: smtp://user:password@host:587 (encrypted by STARTTLS; with ?tls=off not) or smtps://...; when "
        "empty no e-mail is sent, and notices say so.",
        default=None,
        secret=True,
    )
    mail_from: str = setting("GATEHOUSE_MAIL_FROM", "Sender of e-mails.", default="gatehouse@localhost")
    webhook_allow_private: bool = setting(
        "GATEHOUSE_WEBHOOK_ALLOW_PRIVATE",
        "Webhooks may point to private addresses and to http://, for networks without a way out; metadata services "
        "of clouds never.",
        default=False,
    )

    metrics_token: str | None = setting(
        "GATEHOUSE_METRICS_TOKEN",
        "Bearer token that /metrics asks for; when empty, only this machine may read it.",
        default=None,
        secret=True,
    )
    log_level: str = setting("GATEHOUSE_LOG_LEVEL", "DEBUG, INFO, WARNING or ERROR.", default="INFO")
    request_log: str = setting(
        "GATEHOUSE_REQUEST_LOG",
        "Which requests are a line of the log, at every door: off, errors (what failed, was refused by the inference "
        "endpoints, or took long) or all.",
        default="errors",
    )
    request_log_slow_seconds: float = setting(
        "GATEHOUSE_REQUEST_LOG_SLOW_SECONDS", "What counts as long there, seconds.", default=30.0, minimum=0
    )
    log_format: str = setting("GATEHOUSE_LOG_FORMAT", "json or console.", default="json")

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
        return self.web_url or f"http://{self.web_host}:{self.web_port}"

    @property
    def public_relay_url(self) -> str:
        return self.relay_url or f"http://{self.relay_host}:{self.relay_port}"


@cache
def environment() -> Environment:
    """This process's settings. Raises SettingsError (see core.env)."""
    var_dir = Path(os.environ.get("GATEHOUSE_VAR_DIR") or BASE_DIR / "var").expanduser()
    return read(Environment, os.environ, read_file(var_dir / "run" / "environment.json"))
