"""Settings of what runs where: nodes, engines, the controller, trainers."""

from dataclasses import dataclass
from pathlib import Path

from core.env import setting
from core.sentences import gettext_noop as _


@dataclass(frozen=True)
class PoolSettings:
    """What agents, controller and trainers go by."""

    node_name: str | None = setting(
        "GATEHOUSE_NODE_NAME", _("Name of this machine's node agent; the host name when empty."), default=None
    )
    node_token: str | None = setting("GATEHOUSE_NODE_TOKEN", _("Token of the node agent."), default=None, secret=True)
    node_address: str = setting(
        "GATEHOUSE_NODE_ADDRESS",
        _(
            "Address at which relays and controllers reach this node's engines. With another one than 127.0.0.1, "
            "engines listen on all of its interfaces, and have no door of their own: let the firewall admit relays "
            "alone."
        ),
        default="127.0.0.1",
    )
    node_ca_file: Path | None = setting(
        "GATEHOUSE_NODE_CA_FILE",
        _(
            "Certificates (PEM) that the node agent trusts beside the system's when it speaks to the web process by "
            "https."
        ),
        default=None,
    )
    kernel_log: str = setting(
        "GATEHOUSE_KERNEL_LOG",
        _(
            "Where the node agent reads the kernel's messages: the device, or a file that they are written to; `none`: "
            "it does not."
        ),
        default="/dev/kmsg",
    )
    engine_port_first: int = setting(
        "GATEHOUSE_ENGINE_PORT_FIRST",
        _("First port the agent gives to engines."),
        default=21000,
        minimum=1024,
        maximum=65000,
    )
    engine_port_count: int = setting(
        "GATEHOUSE_ENGINE_PORT_COUNT", _("How many ports from there."), default=200, minimum=1, maximum=10000
    )
    host_memory_share: float = setting(
        "GATEHOUSE_HOST_MEMORY_SHARE",
        _("Share of the host's memory that instances on the CPU device may claim."),
        default=0.5,
        minimum=0.01,
        maximum=1,
    )
    load_deadline_seconds: float = setting(
        "GATEHOUSE_LOAD_DEADLINE_SECONDS",
        _("How long an engine may take from its start to its first token; large models on GPUs take minutes."),
        default=600.0,
        minimum=1,
    )
    dcgm_url: str | None = setting(
        "GATEHOUSE_DCGM_URL",
        _(
            "Address of a dcgm-exporter on this machine, such as http://127.0.0.1:9400/metrics: the agent adds its "
            "measurements to what NVML says."
        ),
        default=None,
    )
    verify_seconds: float = setting(
        "GATEHOUSE_VERIFY_SECONDS",
        _("How long comparing an artefact's files with their SHA-256 may take before a load."),
        default=90.0,
        minimum=1,
    )
    device_load_seconds: float = setting(
        "GATEHOUSE_DEVICE_LOAD_SECONDS",
        _(
            "How long an engine may take to load onto its devices, where neither its version nor its kind says a time "
            "of its own."
        ),
        default=45.0,
        minimum=1,
    )
    idle_sleep_seconds: float = setting(
        "GATEHOUSE_IDLE_SLEEP_SECONDS",
        _(
            "Time without requests after which a tenant's own instance sleeps, where its version says none; 0: it does "
            "not."
        ),
        default=300.0,
        minimum=0,
    )
    asleep_per_device: int = setting(
        "GATEHOUSE_ASLEEP_PER_DEVICE",
        _("Sleeping instances of tenants that a device keeps; beyond them the least recently used are stopped."),
        default=16,
        minimum=0,
        maximum=1000,
    )
    node_unreachable_seconds: float = setting(
        "GATEHOUSE_NODE_UNREACHABLE_SECONDS",
        _("Silence after which a node counts as unreachable."),
        default=30.0,
        minimum=0.5,
    )
    controller_lease_seconds: float = setting(
        "GATEHOUSE_CONTROLLER_LEASE_SECONDS",
        _("Time to live of the controller's leader lease."),
        default=5.0,
        minimum=0.5,
    )

    etcd_url: str | None = setting(
        "ETCD_URL",
        _(
            "etcd 3.4 or newer for leases and device records, instead of PostgreSQL: "
            "http(s)://[user:password@]host:port, more members of one cluster after commas, /prefix behind them where "
            "several installations share it."
        ),
        default=None,
        secret=True,
    )
    etcd_ca_file: Path | None = setting(
        "ETCD_CA_FILE", _("Certificates (PEM) that etcd's must be signed by; the system's when empty."), default=None
    )
    etcd_cert_file: Path | None = setting(
        "ETCD_CERT_FILE", _("Our certificate (PEM), where etcd asks for one."), default=None
    )
    etcd_key_file: Path | None = setting("ETCD_KEY_FILE", _("Its key (PEM)."), default=None)

    healing_hardware: bool = setting(
        "GATEHOUSE_HEALING_HARDWARE",
        _(
            "Whether healing may reset devices and restart nodes; until then it writes down what it would do. Set it "
            "for the controller and the web process alike."
        ),
        default=False,
    )
    healing_reboot_command: str = setting(
        "GATEHOUSE_HEALING_REBOOT_COMMAND",
        _("Command line by which an agent restarts its node, run without a shell."),
        default="systemctl reboot",
    )
    guard_signal_share: float = setting(
        "GATEHOUSE_GUARD_SIGNAL_SHARE",
        _(
            "Share of its lease above which an instance, three seconds in a row, is asked to give memory back, or gets "
            "fewer requests."
        ),
        default=0.92,
        minimum=0.1,
        maximum=1,
    )
    guard_evict_share: float = setting(
        "GATEHOUSE_GUARD_EVICT_SHARE",
        _("Share of its lease above which an instance that grows makes its device's instance of lowest priority go."),
        default=0.98,
        minimum=0.1,
        maximum=1,
    )
    guard_growth_bytes: int = setting(
        "GATEHOUSE_GUARD_GROWTH_BYTES",
        _("How much it must grow within three seconds for that, bytes."),
        default=500 * 1000 * 1000,
        minimum=0,
    )
    mode_caps_firm: bool = setting(
        "GATEHOUSE_MODE_CAPS_FIRM",
        _(
            "Whether a relay sends an instance no more requests at once than its share of what its memory mode allows, "
            "so that clients are told 503; else those below their cap are only preferred."
        ),
        default=False,
    )
    mode_full_cap: int = setting(
        "GATEHOUSE_MODE_FULL_CAP",
        _("Requests at once of an instance whose KV cache is filled to less than 70 %."),
        default=8,
        minimum=1,
        maximum=100_000,
    )
    mode_mixed_cap: int = setting(
        "GATEHOUSE_MODE_MIXED_CAP", _("The same from 70 % to 90 %."), default=4, minimum=1, maximum=100_000
    )
    mode_cpu_cap: int = setting(
        "GATEHOUSE_MODE_CPU_CAP",
        _("Requests at once of a model's instance on a CPU that takes over above 90 %."),
        default=12,
        minimum=1,
        maximum=100_000,
    )

    admission: str = setting(
        "GATEHOUSE_ADMISSION",
        _(
            "What a version of the pool's own needs before it serves: off (nothing) or required (a manifest of its "
            "files and a model card; a signature, too, where GATEHOUSE_TRUSTED_ROOT is set)."
        ),
        default="off",
    )
    trusted_root: Path | None = setting(
        "GATEHOUSE_TRUSTED_ROOT",
        _(
            "Sigstore trusted root (trusted_root.json) that signatures of models are verified against, without any "
            "network."
        ),
        default=None,
    )
    signature_identities: tuple[str, ...] = setting(
        "GATEHOUSE_SIGNATURE_IDENTITIES",
        _("Whose signatures count: e-mail addresses or URIs as certificates name them, comma-separated."),
        default=(),
    )
    signature_issuer: str = setting(
        "GATEHOUSE_SIGNATURE_ISSUER", _("OpenID Connect issuer that has to vouch for them, https://..."), default=""
    )

    trainer_command: str = setting(
        "GATEHOUSE_TRAINER_COMMAND",
        _(
            "Command line of the trainer of fine-tuning jobs, run by the worker without a shell; when empty jobs are "
            "told 503."
        ),
        default="",
    )
    trainer_environment: tuple[str, ...] = setting(
        "GATEHOUSE_TRAINER_ENVIRONMENT",
        _(
            "Names of variables that a trainer gets of the worker's environment, comma-separated, beside PATH, the "
            "locale and the time zone. Names that begin with GATEHOUSE_ and secrets of ours are never passed on."
        ),
        default=(),
    )
    trainer_jobs: int = setting("GATEHOUSE_TRAINER_JOBS", _("Trainers at once."), default=1, minimum=1, maximum=1000)
    trainer_jobs_per_tenant: int = setting(
        "GATEHOUSE_TRAINER_JOBS_PER_TENANT", _("Of them, of one tenant."), default=1, minimum=1, maximum=1000
    )
    trainer_seconds: float = setting(
        "GATEHOUSE_TRAINER_SECONDS", _("Longest run of a trainer; it is ended then."), default=86_400.0, minimum=1
    )
    trainer_grace_seconds: float = setting(
        "GATEHOUSE_TRAINER_GRACE_SECONDS",
        _("What a trainer has between SIGTERM and SIGKILL."),
        default=30.0,
        minimum=0,
        maximum=3600,
    )
    trainer_log_bytes: int = setting(
        "GATEHOUSE_TRAINER_LOG_BYTES",
        _(
            "How much is kept of what one trainer says, on standard error and on standard output each; the rest is "
            "thrown away."
        ),
        default=64 * 1024 * 1024,
        minimum=1024,
    )
    training_dir: Path | None = setting(
        "GATEHOUSE_TRAINING_DIR",
        _(
            "Folder of training files, jobs and adapters, the same for relay, web process and worker; training in the "
            "data folder when empty."
        ),
        default=None,
    )
    training_file_cap_bytes: int = setting(
        "GATEHOUSE_TRAINING_FILE_CAP_BYTES",
        _("Largest file that is uploaded to train on; GATEHOUSE_BODY_CAP_BYTES bounds it, too."),
        default=32 * 1024 * 1024,
        minimum=1,
    )
    training_tenant_bytes: int = setting(
        "GATEHOUSE_TRAINING_TENANT_BYTES",
        _("All such files of one tenant together, bytes."),
        default=1024 * 1024 * 1024,
        minimum=1,
    )
