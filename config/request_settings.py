"""Settings of a request's way: bounds on clients, engines and what a process holds."""

from dataclasses import dataclass
from pathlib import Path

from core.env import setting
from core.sentences import gettext_noop as _


@dataclass(frozen=True)
class RequestSettings:
    """What the doors go by."""

    body_cap_bytes: int = setting(
        "GATEHOUSE_BODY_CAP_BYTES", _("Largest request body, bytes."), default=32 * 1024 * 1024, minimum=1024
    )
    head_deadline_seconds: float = setting(
        "GATEHOUSE_HEAD_DEADLINE_SECONDS", _("Longest wait for a request's head."), default=10.0, minimum=0.1
    )
    body_deadline_seconds: float = setting(
        "GATEHOUSE_BODY_DEADLINE_SECONDS", _("Longest wait for a request's body."), default=60.0, minimum=0.1
    )
    send_deadline_seconds: float = setting(
        "GATEHOUSE_SEND_DEADLINE_SECONDS", _("Longest wait for a client that does not read."), default=60.0, minimum=0.1
    )
    connection_cap: int | None = setting(
        "GATEHOUSE_CONNECTION_CAP",
        _(
            "Open client connections per process of a door; one more is told 503. When empty 256 for each core of the "
            "machine, and at least 4096."
        ),
        default=None,
        minimum=1,
    )
    client_connection_cap: int = setting(
        "GATEHOUSE_CLIENT_CONNECTION_CAP",
        _(
            "Open connections of one client address (of IPv6, one /64 network) per process of a door, or behind a "
            "trusted proxy its requests under way; one more is told 429."
        ),
        default=1000,
        minimum=1,
    )
    trusted_proxies: tuple[str, ...] = setting(
        "GATEHOUSE_TRUSTED_PROXIES",
        _("Networks and addresses of proxies whose X-Forwarded-For says who the client is, comma-separated."),
        default=(),
    )
    relay_memory_bytes: int = setting(
        "GATEHOUSE_RELAY_MEMORY_BYTES",
        _(
            "What one process of a door holds of requests' bodies and of answers that it reads whole, bytes; a request "
            "beyond that is told 503."
        ),
        default=1 << 30,
        minimum=1 << 20,
    )
    connect_deadline_seconds: float = setting(
        "GATEHOUSE_CONNECT_DEADLINE_SECONDS",
        _("Longest wait for a connection to an engine."),
        default=2.0,
        minimum=0.01,
    )
    first_token_deadline_seconds: float = setting(
        "GATEHOUSE_FIRST_TOKEN_DEADLINE_SECONDS",
        _("Longest wait for an engine's first content."),
        default=120.0,
        minimum=0.1,
    )
    inter_token_deadline_seconds: float = setting(
        "GATEHOUSE_INTER_TOKEN_DEADLINE_SECONDS",
        _("Longest silence of an engine between two pieces of content."),
        default=30.0,
        minimum=0.1,
    )
    total_deadline_seconds: float = setting(
        "GATEHOUSE_TOTAL_DEADLINE_SECONDS", _("Longest request altogether."), default=600.0, minimum=1
    )
    keep_alive_seconds: float = setting(
        "GATEHOUSE_SSE_KEEP_ALIVE_SECONDS",
        _("Silence in a stream after which its client is sent a comment, unless its key says not to."),
        default=10.0,
        minimum=0.1,
    )
    attempts: int = setting(
        "GATEHOUSE_ATTEMPTS",
        _("Most engines that one request is tried at, before its first content."),
        default=3,
        minimum=1,
        maximum=10,
    )
    retry_deadline_seconds: float = setting(
        "GATEHOUSE_RETRY_DEADLINE_SECONDS",
        _("After a request's arrival: no further engine is tried later than this."),
        default=150.0,
        minimum=0,
    )
    retry_share: float = setting(
        "GATEHOUSE_RETRY_SHARE",
        _("Most retries of one process, as a share of its requests of the last ten seconds; ten are always allowed."),
        default=0.2,
        minimum=0,
        maximum=1,
    )
    default_max_tokens: int = setting(
        "GATEHOUSE_DEFAULT_MAX_TOKENS",
        _(
            "End of an answer, tokens, where a limit of tokens or money counts it and neither the client nor the "
            "model's context gives one."
        ),
        default=4096,
        minimum=1,
    )
    template_tokens: int = setting(
        "GATEHOUSE_TEMPLATE_TOKENS",
        _("What a model's chat template may add to a prompt, tokens; it is reserved under limits of tokens and money."),
        default=256,
        minimum=0,
    )
    coalesce: str = setting(
        "GATEHOUSE_COALESCE",
        _(
            "off or deterministic: requests of a tenant that are the same and under way at once in one process are "
            "asked of an engine once, where the answer is certain (temperature 0, embeddings, rerank, tokenize) or the "
            "client says so (x-gatehouse-coalesce: on)."
        ),
        default="off",
    )
    engine_ca_file: Path | None = setting(
        "GATEHOUSE_ENGINE_CA_FILE",
        _(
            "PEM file with certificates that engines behind https may be signed by, beside those that the system "
            "trusts."
        ),
        default=None,
    )
    outbound_ca_file: Path | None = setting(
        "GATEHOUSE_OUTBOUND_CA_FILE",
        _(
            "PEM file with certificates that issuers' key sets and webhooks behind https may be signed by, beside "
            "those that the system trusts."
        ),
        default=None,
    )
    realtime_idle_seconds: float = setting(
        "GATEHOUSE_REALTIME_IDLE_SECONDS",
        _("Silence of a client after which its /v1/realtime connection is closed."),
        default=900.0,
        minimum=1,
    )
    realtime_message_bytes: int = setting(
        "GATEHOUSE_REALTIME_MESSAGE_BYTES",
        _("Largest message of a client on /v1/realtime, bytes."),
        default=1024 * 1024,
        minimum=1024,
    )
    realtime_conversation_bytes: int = setting(
        "GATEHOUSE_REALTIME_CONVERSATION_BYTES",
        _("Largest conversation on /v1/realtime, and largest answer in one, bytes; it is kept in memory."),
        default=4 * 1024 * 1024,
        minimum=4096,
    )
    drain_notice_seconds: float = setting(
        "GATEHOUSE_DRAIN_NOTICE_SECONDS",
        _("After SIGTERM: how long /readyz says no while requests are still taken."),
        default=5.0,
        minimum=0,
    )
    drain_deadline_seconds: float = setting(
        "GATEHOUSE_DRAIN_DEADLINE_SECONDS",
        _("After that: how long running requests may take to finish."),
        default=45.0,
        minimum=0,
    )
    snapshot_poll_seconds: float = setting(
        "GATEHOUSE_SNAPSHOT_POLL_SECONDS",
        _("How often every process asks PostgreSQL for new epochs."),
        default=0.25,
        minimum=0.01,
    )
    snapshot_stale_seconds: float = setting(
        "GATEHOUSE_SNAPSHOT_STALE_SECONDS",
        _("How long requests are served from the snapshot while PostgreSQL is away."),
        default=60.0,
        minimum=1,
    )
    spool_cap_bytes: int = setting(
        "GATEHOUSE_SPOOL_CAP_BYTES",
        _("Largest usage spool of one process; when full, requests under limits are told 503."),
        default=256 * 1024 * 1024,
        minimum=65536,
    )
