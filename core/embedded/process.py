"""Child processes that never outlive us: own process group, parent-death signal, ordered stop."""

import contextlib
import os
import pwd
import shutil
import signal
import socket
import subprocess
import sys
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

_LAUNCHER: Final = Path(__file__).with_name("launch.py")
_PORT_ATTEMPTS: Final = 50
_SEARCH_CAPABILITIES: Final = 1 << 1 | 1 << 2  # CAP_DAC_OVERRIDE, CAP_DAC_READ_SEARCH
SERVICE_USER: Final = "gatehouse"
"""The account that servers run as when we are root: PostgreSQL refuses to be root."""


class StartError(Exception):
    """A server or process cannot be started; the message is one sentence on what to do."""


@dataclass(frozen=True, slots=True)
class Account:
    """A system account to run a child as."""

    name: str
    uid: int
    gid: int


def service_account(name: str = SERVICE_USER) -> Account | None:
    """The account for servers when we are root, made if missing; None when we are not root.

    Raises StartError when the account is missing and cannot be made.
    """
    if os.geteuid() != 0:
        return None
    try:
        entry = pwd.getpwnam(name)
    except KeyError:
        entry = _make_account(name)
    return Account(entry.pw_name, entry.pw_uid, entry.pw_gid)


def _make_account(name: str) -> pwd.struct_passwd:
    if useradd := shutil.which("useradd", path=os.environ.get("PATH", "") + ":/usr/sbin:/sbin"):
        command = [useradd, "--system", "--user-group", "--no-create-home", "--shell", "/usr/sbin/nologin", name]
        made = subprocess.run(command, capture_output=True, text=True, check=False)
        # Another clone may have made it in this moment: only the account's presence counts.
        with contextlib.suppress(KeyError):
            return pwd.getpwnam(name)
        reason = made.stderr.strip() or f"useradd ended with {made.returncode}"
    else:
        reason = "useradd was not found"
    raise StartError(
        f"PostgreSQL does not run as root and the system user '{name}' could not be made ({reason}): "
        "make it by hand, run as another user, or set DATABASE_URL"
    )


def can_search(path: Path, account: Account) -> bool:
    """Whether `account`, by its own user and group alone, may pass every folder to `path` and enter or run it."""
    for part in [*reversed(path.resolve().parents), path.resolve()]:
        status = part.stat()
        if status.st_uid == account.uid:
            allowed = bool(status.st_mode & 0o100)
        elif status.st_gid == account.gid:
            allowed = bool(status.st_mode & 0o010)
        else:
            allowed = bool(status.st_mode & 0o001)
        if not allowed:
            return False
    return True


def needs_search(account: Account | None, *paths: Path) -> bool:
    """Whether a child run as `account` must keep a capability to reach the paths (a clone under a closed home)."""
    return account is not None and not all(can_search(path, account) for path in paths)


def may_keep_search() -> bool:
    """Whether this process holds a capability that lets a child pass closed folders (Linux only)."""
    try:
        status = Path("/proc/self/status").read_text()
    except OSError:
        return False
    permitted = next((int(line.split()[1], 16) for line in status.splitlines() if line.startswith("CapPrm:")), 0)
    return bool(permitted & _SEARCH_CAPABILITIES)


def give(path: Path, account: Account | None) -> None:
    """Make `account` the owner; does nothing when children run as ourselves."""
    if account is not None:
        os.chown(path, account.uid, account.gid)


def write_private(path: Path, text: str, *, owner: Account | None = None) -> None:
    """Write a file anew that only its owner may read: us, or `owner`."""
    path.unlink(missing_ok=True)  # an old one may be another account's
    fd = os.open(path, os.O_CREAT | os.O_WRONLY | os.O_EXCL | os.O_CLOEXEC, 0o600)
    with os.fdopen(fd, "w") as file:
        file.write(text)
    give(path, owner)


def spawn(
    command: Sequence[str],
    *,
    log: Path,
    account: Account | None = None,
    keep_search: bool = False,
    death_signal: signal.Signals = signal.SIGTERM,
    environ: Mapping[str, str] | None = None,
    cwd: Path | None = None,
) -> "subprocess.Popen[bytes]":
    """Start `command` in a session of its own, both outputs appended to `log`.

    On Linux it gets `death_signal` when the *thread* that called dies, so call this from one that
    lives as long as the process. `keep_search` lets `account` pass closed parent folders.
    Raises StartError when the log cannot be written or the process cannot be made.
    """
    identity = f"{account.uid}:{account.gid}" if account else "-"
    search = "search" if keep_search else "-"
    prefix = [sys.executable, "-I", "-S", str(_LAUNCHER), str(os.getpid()), str(int(death_signal)), identity, search]
    try:
        with log.open("ab") as output:
            return subprocess.Popen(
                [*prefix, "--", *command],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env=dict(environ) if environ is not None else None,
                cwd=cwd,
                start_new_session=True,
            )
    except OSError as error:
        raise StartError(f"{command[0]} cannot be started: {error}") from error


def stop(
    process: "subprocess.Popen[bytes]", *, with_signal: signal.Signals = signal.SIGTERM, grace_seconds: float = 10.0
) -> int:
    """Ask the process to end, then kill its whole group; returns its exit status."""
    if process.poll() is None:
        process.send_signal(with_signal)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(grace_seconds)
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)  # what it left in its group, itself included
    return process.wait()


def is_free(port: int, host: str = "127.0.0.1") -> bool:
    """Whether a server could listen on the port now."""
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError:
            return False
    return True


def free_port(host: str = "127.0.0.1", *, preferred: int | None = None, taken: frozenset[int] = frozenset()) -> int:
    """`preferred` or the next free port after it; without one, any that the system gives.

    Another process may take it before it is used: whoever starts a server tries again.
    Raises StartError when none of fifty in a row is free.
    """
    if preferred is None:
        with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_STREAM) as probe:
            probe.bind((host, 0))
            return int(probe.getsockname()[1])
    for port in range(preferred, min(preferred + _PORT_ATTEMPTS, 65536)):
        if port not in taken and is_free(port, host):
            return port
    raise StartError(f"no free port from {preferred} to {preferred + _PORT_ATTEMPTS - 1} on {host}")


def last_lines(log: Path, count: int = 20) -> list[str]:
    """The last lines of a log, oldest first; empty when there is no such file."""
    try:
        with log.open(errors="replace") as lines:
            return [line.rstrip("\n") for line in deque(lines, maxlen=count)]
    except FileNotFoundError:
        return []
