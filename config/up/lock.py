"""One `up` per var folder: a file lock that the kernel gives back when its holder dies, however it dies."""

import fcntl
import os
from pathlib import Path


class AlreadyRunning(Exception):
    """Another process holds the folder; `pid` is what it wrote down."""

    def __init__(self, pid: int | None) -> None:
        self.pid = pid
        super().__init__(f"Gatehouse already runs in this clone (process {pid or 'unknown'})")


class VarLock:
    """Holds `<var>/up.lock` until `release` or the end of the process."""

    def __init__(self, var_dir: Path) -> None:
        self.path = var_dir / "up.lock"
        self._fd: int | None = None

    def acquire(self) -> None:
        """Raises AlreadyRunning when another process holds it, OSError when var cannot be written."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        fd = os.open(self.path, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(fd)
            raise AlreadyRunning(self.holder()) from None
        os.ftruncate(fd, 0)
        os.write(fd, str(os.getpid()).encode())
        self._fd = fd

    def release(self) -> None:
        if self._fd is not None:
            os.ftruncate(self._fd, 0)
            os.close(self._fd)
            self._fd = None

    def holder(self) -> int | None:
        """The process that holds it; None when nobody does."""
        try:
            fd = os.open(self.path, os.O_RDWR | os.O_CLOEXEC)
        except FileNotFoundError:
            return None
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            text = os.read(fd, 32).decode().strip()
            return int(text) if text.isdigit() else None
        else:
            return None
        finally:
            os.close(fd)
