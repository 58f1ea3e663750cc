"""Settings of what runs where: nodes, engines, the controller, trainers."""

from dataclasses import dataclass
from pathlib import Path

from core.env import setting


@dataclass(frozen=True)
class PoolSettings:
    """What agents, controller and trainers go by."""

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

    etcd_url: str | None = setting(
        "ETCD_URL",
        "etcd 3.4 or newer for leases and device records, instead of PostgreSQL: http(s)://[user:password@]host:port, "
        "more members of one cluster after commas, /prefix behind them where several installations share it.",
        default=None,
        secret=True,
    )
    etcd_ca_file: Path | None = setting(
        "ETCD_CA_FILE", "Certificates (PEM) that etcd's must be signed by; the system's when empty.", default=None
    )
    etcd_cert_file: Path | None = setting(
        "ETCD_CERT_FILE", "Our certificate (PEM), where etcd asks for one.", default=None
    )
    etcd_key_file: Path | None = setting("ETCD_KEY_FILE", "Its key (PEM).", default=None)

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
