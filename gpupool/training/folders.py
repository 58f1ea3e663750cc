"""Where training files, jobs and adapters lie. Names there are made of ids and digests, none of a client's words."""

import contextlib
import hashlib
import os
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from uuid import UUID

from gpupool.policies.adapter import (
    CONFIG_FILE,
    LARGEST_CONFIG_BYTES,
    WEIGHTS_FILE,
    AdapterFacts,
    BadAdapter,
    head_length,
    read_adapter,
)

JOB_FILE: Final = "job.json"
PROGRESS_FILE: Final = "progress.jsonl"
LOG_FILE: Final = "log.txt"
OUTPUT: Final = "output"

_PIECE: Final = 1 << 20


@dataclass(frozen=True, slots=True)
class CheckedAdapter:
    """What a trainer left, as far as it was read."""

    facts: AdapterFacts
    sha256: str
    size_bytes: int


@dataclass(frozen=True, slots=True)
class TrainingFolders:
    """Everything under one root; relay, web process and worker have to see the same one."""

    root: Path

    def tenant_files(self, tenant_id: UUID) -> Path:
        return self.root / "files" / tenant_id.hex

    def file(self, tenant_id: UUID, sha256: str) -> Path:
        """By tenant, so that nobody learns from a digest what another one has."""
        return self.tenant_files(tenant_id) / sha256

    def job(self, job_id: UUID) -> Path:
        return self.root / "jobs" / job_id.hex

    def adapter(self, adapter_id: UUID) -> Path:
        return self.root / "adapters" / adapter_id.hex

    def keep_file(self, tenant_id: UUID, body: bytes) -> str:
        """Write a file and have it on the disk; returns its digest. The same bytes are kept once. Raises OSError."""
        digest = hashlib.sha256(body).hexdigest()
        path = self.file(tenant_id, digest)
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        half = path.with_name(f"{digest}.{os.getpid()}.{os.urandom(4).hex()}")
        try:
            with os.fdopen(os.open(half, os.O_CREAT | os.O_WRONLY | os.O_EXCL | os.O_CLOEXEC, 0o600), "wb") as file:
                file.write(body)
                file.flush()
                os.fsync(file.fileno())
            half.replace(path)
        except BaseException:
            half.unlink(missing_ok=True)
            raise
        return digest

    def make_job(self, job_id: UUID) -> Path:
        """A job's own folder, with an empty one for what comes of it."""
        path = self.job(job_id)
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        (path / OUTPUT).mkdir(mode=0o700, exist_ok=True)
        return path

    def take_output(self, job_id: UUID, adapter_id: UUID) -> Path:
        """Move the two files of an adapter to their place, and throw the rest away."""
        source, target = self.job(job_id) / OUTPUT, self.adapter(adapter_id)
        target.mkdir(mode=0o700, parents=True, exist_ok=True)
        for name in (CONFIG_FILE, WEIGHTS_FILE):
            if (source / name).exists():  # else it was moved before a worker died
                (source / name).replace(target / name)
        return target

    def drop_output(self, job_id: UUID) -> None:
        shutil.rmtree(self.job(job_id) / OUTPUT, ignore_errors=True)

    def drop_job(self, job_id: UUID) -> None:
        shutil.rmtree(self.job(job_id), ignore_errors=True)

    def drop_adapter(self, adapter_id: UUID) -> None:
        shutil.rmtree(self.adapter(adapter_id), ignore_errors=True)

    def drop_file(self, tenant_id: UUID, sha256: str) -> None:
        with contextlib.suppress(OSError):
            self.file(tenant_id, sha256).unlink(missing_ok=True)

    def drop_tenant_files(self, tenant_id: UUID) -> None:
        shutil.rmtree(self.tenant_files(tenant_id), ignore_errors=True)


def check_adapter(folder: Path) -> CheckedAdapter:
    """Read an adapter's configuration, and the head and digest of its weights. Raises BadAdapter, OSError."""
    config_path, weights_path = folder / CONFIG_FILE, folder / WEIGHTS_FILE
    for path in (config_path, weights_path):
        if path.is_symlink() or not path.is_file():
            raise BadAdapter(f"the trainer left no {path.name}.")
    if config_path.stat().st_size > LARGEST_CONFIG_BYTES:
        raise BadAdapter(f"{CONFIG_FILE} is larger than {LARGEST_CONFIG_BYTES} bytes.")
    size = weights_path.stat().st_size
    digest = hashlib.sha256()
    with weights_path.open("rb") as weights:
        first = weights.read(8)
        head = weights.read(head_length(first, size))
        digest.update(first + head)
        facts = read_adapter(config_path.read_bytes(), head, weights_bytes=size)
        while piece := weights.read(_PIECE):
            digest.update(piece)
    return CheckedAdapter(facts, digest.hexdigest(), size)
