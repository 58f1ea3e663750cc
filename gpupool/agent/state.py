"""What an agent must remember across its own death: one small file per engine, and its fences.

Files are replaced whole (write, fsync, rename), so that a reader sees the old state or the new one.
"""

import contextlib
import fcntl
import os
from pathlib import Path
from typing import Final, TypeVar
from uuid import UUID

import msgspec
import structlog

from gpupool.stream.messages import DesiredInstance

log = structlog.get_logger(__name__)

K = TypeVar("K")

MARK_VARIABLE: Final = "GATEHOUSE_ENGINE_MARK"
"""In every engine's environment: `<state folder>|<instance>|<lease id>|<fencing token>`."""


class InstanceRecord(msgspec.Struct, kw_only=True):
    """One engine as the agent remembers it."""

    row: DesiredInstance  # as it was when the process was started
    phase: str
    pid: int | None = None
    start_mark: str | None = None  # see processes.start_mark
    process_started_at: float | None = None  # seconds since the epoch
    port: int | None = None
    log_path: str | None = None
    log_begins: int = 0  # where the log of the present process begins, in bytes
    kv_capacity_bytes: int | None = None  # of its cache, as it logged while it loaded
    weights_bytes: int | None = None  # as well, and the next two
    compute_bytes: int | None = None
    adapters_bytes: int | None = None
    slots: int | None = None
    restarts: int = 0
    reason: str = ""
    slumber: bool = False  # it was told to sleep, and not yet woken
    verified_tenant: UUID | None = None  # whose traffic it serves alone: see policies.tenant_switch
    started_from: str = ""  # cold, staged
    checked: str = ""  # by what its files are known again that were compared with their checksums
    load_seconds: float | None = None  # start to first token, the last time
    wake_seconds: float | None = None  # asleep to ready, the last time
    last_used_at: float | None = None  # seconds since the epoch


class AgentAlreadyRuns(Exception):
    """Another agent holds this node's state folder."""


class StateDir:
    """The folder `var/agent/<node>`, held by one agent at a time."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._instances = path / "instances"
        self._fences = path / "fences.json"
        self._lock: int | None = None

    def open(self) -> None:
        """Make the folder and lock it. Raises AgentAlreadyRuns with a sentence, or OSError."""
        self._instances.mkdir(parents=True, exist_ok=True, mode=0o700)
        lock = os.open(self.path / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = os.pread(lock, 32, 0).decode(errors="replace").strip() or "unknown"
            os.close(lock)
            raise AgentAlreadyRuns(
                f"Another agent (process {holder}) runs with {self.path}: "
                "stop it first, or give this one another --node."
            ) from None
        os.ftruncate(lock, 0)
        os.pwrite(lock, f"{os.getpid()}\n".encode(), 0)
        self._lock = lock

    def close(self) -> None:
        """Let go of the folder."""
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def mark(self, row: DesiredInstance) -> str:
        """Value of MARK_VARIABLE for one engine of this agent."""
        return f"{self.path.resolve()}|{row.instance_id}|{row.lease_id}|{row.fencing_token}"

    def load(self) -> dict[UUID, InstanceRecord]:
        """All records; a file that cannot be read is set aside with a warning and does not stop the agent."""
        return {record.row.instance_id: record for record in read_records(self.path)}

    def save(self, record: InstanceRecord) -> None:
        """Raises OSError, e.g. when the disk is full."""
        replace_file(self._instances / f"{record.row.instance_id}.json", msgspec.json.encode(record))

    def forget(self, instance_id: UUID) -> None:
        """Drop one record; no error when there is none."""
        (self._instances / f"{instance_id}.json").unlink(missing_ok=True)

    def load_fences(self) -> dict[str, int]:
        """Highest fencing token seen per device; empty at first."""
        try:
            return msgspec.json.decode(self._fences.read_bytes(), type=dict[str, int])
        except FileNotFoundError:
            return {}
        except msgspec.MsgspecError as error:
            log.warning("agent.fences_unreadable", path=str(self._fences), error=str(error))
            return {}

    def save_fences(self, fences: dict[str, int]) -> None:
        """Raises OSError."""
        replace_file(self._fences, msgspec.json.encode(fences))


def read_records(path: Path) -> list[InstanceRecord]:
    """The records under a state folder; needs no lock. A file that cannot be read is set aside."""
    records: list[InstanceRecord] = []
    for file in sorted((path / "instances").glob("*.json")):
        try:
            records.append(msgspec.json.decode(file.read_bytes(), type=InstanceRecord))
        except FileNotFoundError:
            continue
        except msgspec.MsgspecError as error:
            log.warning("agent.record_unreadable", path=str(file), error=str(error))
            with contextlib.suppress(FileNotFoundError):
                file.rename(file.with_suffix(".unreadable"))
    return records


def read_file(path: Path, kind: type[K]) -> K | None:
    """What `replace_file` wrote there; None where there is nothing, and with a warning where it cannot be read."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=kind)
    except FileNotFoundError:
        return None
    except (OSError, msgspec.MsgspecError) as error:
        log.warning("agent.file_unreadable", path=str(path), error=str(error))
        return None


def replace_file(path: Path, data: bytes) -> None:
    """Write whole or not at all. Raises OSError."""
    temporary = path.with_suffix(".tmp")
    with open(temporary, "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)
