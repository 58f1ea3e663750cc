"""The parts of an installation on one machine: servers, and our own processes with their environment."""

import hashlib
import secrets
import sys
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from config.environment import BASE_DIR, Environment
from config.up.supervisor import ProcessService
from core.embedded.postgres import PostgresServer
from core.embedded.process import may_keep_search, needs_search, service_account, write_private
from core.embedded.roles import OWNER, RUNTIME
from core.embedded.valkey import ValkeyServer

POSTGRES_MEMORY_MB: Final = 64
STATE_MEMORY_MB: Final = 256
SCRATCH_MEMORY_MB: Final = 128
LONGEST_LOG_BYTES: Final = 16 * 1024 * 1024
DATABASE: Final = "gatehouse"
OWNER_VARIABLE: Final = "GATEHOUSE_OWNER_DATABASE_URL"
_CLOSED_HOME_ROOT: Final = Path("/var/lib/gatehouse")


@dataclass(frozen=True, slots=True)
class Servers:
    """Embedded servers that are needed; None where a URL replaces one."""

    postgres: PostgresServer | None
    state: ValkeyServer | None
    scratch: ValkeyServer | None


def plan_servers(environment: Environment, data_root: Path) -> Servers:
    """What has to be started: a server that has an address of its own is never touched."""
    logs = environment.var_dir / "log"
    postgres = state = scratch = None
    if environment.database_url is None:
        postgres = PostgresServer(data_root / "postgres", log=logs / "postgres.log", memory_mb=POSTGRES_MEMORY_MB)
    if environment.valkey_state_url is None:
        state = ValkeyServer(
            data_root / "valkey-state", log=logs / "valkey-state.log", durable=True, memory_mb=STATE_MEMORY_MB
        )
    if environment.valkey_scratch_url is None:
        # volatile-lru: the broker's queues have no time to live and so are never evicted.
        scratch = ValkeyServer(
            data_root / "valkey-scratch",
            log=logs / "valkey-scratch.log",
            durable=False,
            memory_mb=SCRATCH_MEMORY_MB,
            eviction="volatile-lru",
        )
    return Servers(postgres, state, scratch)


def choose_data_root(var_dir: Path) -> Path:
    """Where servers keep their data: under var, unless their account cannot get there.

    As root they run as a service user. A clone below a closed folder (a home with mode 0700) is reached with a
    capability; where a container has taken that away, the data goes below /var/lib/gatehouse. Raises StartError.
    """
    account = service_account()
    if account is None or not needs_search(account, var_dir) or may_keep_search():
        return var_dir
    root = _CLOSED_HOME_ROOT / hashlib.sha256(str(var_dir.resolve()).encode()).hexdigest()[:16]
    root.mkdir(parents=True, exist_ok=True)
    return root


def with_addresses(environment: Environment, servers: Servers) -> Environment:
    """The settings with the addresses of the servers that run."""
    return replace(
        environment,
        database_url=servers.postgres.url(DATABASE, role=RUNTIME) if servers.postgres else environment.database_url,
        owner_database_url=(
            servers.postgres.url(DATABASE, role=OWNER) if servers.postgres else environment.owner_database_url
        ),
        valkey_state_url=servers.state.url if servers.state else environment.valkey_state_url,
        valkey_scratch_url=servers.scratch.url if servers.scratch else environment.valkey_scratch_url,
    )


def runtime_values(environment: Environment) -> dict[str, str]:
    """What other commands on this machine must know to reach this installation."""
    return {
        "DATABASE_URL": environment.database_url or "",
        "VALKEY_STATE_URL": environment.valkey_state_url or "",
        "VALKEY_SCRATCH_URL": environment.valkey_scratch_url or "",
        "GATEHOUSE_RELAY_PORT": str(environment.relay_port),
        "GATEHOUSE_WEB_PORT": str(environment.web_port),
    }


def child_environ(environment: Environment, own: Mapping[str, str]) -> dict[str, str]:
    """Environment of our processes: the caller's, the addresses, and what differs on a single machine.

    The owner's address of the database is not in it: only `prepare` is told that.
    """
    single_machine = {
        # Nothing here asks /readyz before it sends: no notice needs to be given.
        "GATEHOUSE_DRAIN_NOTICE_SECONDS": "0",
        "GATEHOUSE_DRAIN_DEADLINE_SECONDS": "10",
        "PYTHONUNBUFFERED": "1",
    }
    return {
        **single_machine,
        **own,
        **runtime_values(environment),
        "GATEHOUSE_VAR_DIR": str(environment.var_dir),
        "DJANGO_SETTINGS_MODULE": "config.settings",
        OWNER_VARIABLE: "",
    }


def set_aside_long_logs(log_dir: Path) -> None:
    """Logs grow over all starts; one of more than 16 MB is kept as `.1`, in place of the last such."""
    for log in log_dir.glob("*.log"):
        if log.stat().st_size > LONGEST_LOG_BYTES:
            log.replace(log.with_suffix(".log.1"))


def ensure_secret_key(environment: Environment) -> None:
    """Make var/secret_key unless the setting is given; it signs sessions, so it outlives restarts."""
    path = environment.var_dir / "secret_key"
    if environment.secret_key is not None or path.exists():
        return
    write_private(path, secrets.token_urlsafe(50))


@dataclass(frozen=True, slots=True)
class Family:
    """Makes services out of our commands, all with the same environment and folder of logs."""

    environ: Mapping[str, str]
    log_dir: Path

    def command(self, name: str, *arguments: str, grace_seconds: float = 15.0, **environ: str) -> ProcessService:
        """`manage.py` with arguments, under a name of its own."""
        return self._process(name, [sys.executable, "manage.py", *arguments], grace_seconds, environ)

    def celery(self, name: str, *arguments: str) -> ProcessService:
        command = [sys.executable, "-m", "celery", "-A", "config.celery", *arguments]
        return self._process(name, command, 15.0, {})

    def _process(self, name: str, command: list[str], grace: float, environ: Mapping[str, str]) -> ProcessService:
        log = self.log_dir / f"{name}.log"
        return ProcessService(name, command, log, {**self.environ, **environ}, BASE_DIR, grace_seconds=grace)
