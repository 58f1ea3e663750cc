"""Pytest plugin: PostgreSQL and Valkey for the whole run, started before Django reads its settings.

The first process (xdist's controller, or the only one) starts the servers and says where they are in
the environment that the workers inherit. Each worker has a database and two Valkey databases of its own.
A run that was killed leaves no server (parent-death signal); its folder is removed by the next run.
"""

import fcntl
import os
import shutil
import tempfile
from collections.abc import Generator
from pathlib import Path
from typing import Final

import pytest

from core.embedded.postgres import PostgresServer
from core.embedded.valkey import ValkeyServer

_FOLDER_PREFIX: Final = "gatehouse-tests-"
_SERVERS_VARIABLE: Final = "GATEHOUSE_TEST_SERVERS"
_KEPT: Final = ("GATEHOUSE_TEST_", "GATEHOUSE_SHOTS")  # what tests themselves are told; where they keep screenshots
_VALKEY_DATABASES: Final = 64

_postgres: PostgresServer | None = None
_valkey: ValkeyServer | None = None
_lock: int | None = None


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_load_initial_conftests(args: list[str]) -> Generator[None, None, None]:
    """A wrapper, because only so it runs before pytest-django's own hook, which loads the settings."""
    worker = os.environ.get("PYTEST_XDIST_WORKER", "main")
    if worker == "main" and not {"--help", "-h", "--version", "-V", "--markers", "--fixtures"} & set(args):
        _start_servers()
    if _SERVERS_VARIABLE in os.environ:
        _point_at_servers(worker)
    return (yield)


def pytest_unconfigure() -> None:
    global _postgres, _valkey, _lock
    if _valkey is not None:
        _valkey.stop()
        _valkey = None
    if _postgres is not None:
        _postgres.stop()
        _postgres = None
    if _lock is not None:
        os.close(_lock)
        _lock = None
        shutil.rmtree(os.environ.pop(_SERVERS_VARIABLE).split(" ")[0], ignore_errors=True)


def _start_servers() -> None:
    global _postgres, _valkey, _lock
    _remove_old_folders()
    made = Path(tempfile.mkdtemp(prefix="." + _FOLDER_PREFIX))
    made.chmod(0o755)  # the service user must reach its data folder when tests run as root
    _lock = os.open(made / "lock", os.O_CREAT | os.O_RDWR | os.O_CLOEXEC)
    fcntl.flock(_lock, fcntl.LOCK_EX)
    folder = made.rename(made.with_name(made.name[1:]))  # once locked: another run that begins now would remove it
    _postgres = PostgresServer(folder / "postgres", log=folder / "postgres.log", durable=False, memory_mb=128)
    _postgres.start()
    _valkey = ValkeyServer(folder / "valkey", log=folder / "valkey.log", durable=False, databases=_VALKEY_DATABASES)
    _valkey.start()
    os.environ[_SERVERS_VARIABLE] = f"{folder} {_postgres.url('')} {_valkey.database_url(0).removesuffix('0')}"


def _point_at_servers(worker: str) -> None:
    folder, postgres, valkey = os.environ[_SERVERS_VARIABLE].split(" ")
    number = 0 if worker == "main" else int(worker.removeprefix("gw")) + 1
    var_dir = Path(folder) / f"var-{worker}"
    for part in ("run", "log", "static"):  # as `up` makes them
        (var_dir / part).mkdir(parents=True, exist_ok=True)
    for name in [name for name in os.environ if name.startswith("GATEHOUSE_") and not name.startswith(_KEPT)]:
        del os.environ[name]  # what the developer set for a running house is not meant for tests
    os.environ.update(
        {
            "DATABASE_URL": f"{postgres}gatehouse_{worker}",
            "VALKEY_STATE_URL": f"{valkey}{2 * number}",
            "VALKEY_SCRATCH_URL": f"{valkey}{2 * number + 1}",
            "GATEHOUSE_VALKEY_PREFIX": f"{worker}:",  # channels belong to no database
            "GATEHOUSE_VAR_DIR": str(var_dir),
            "GATEHOUSE_SECRET_KEY": "only-for-tests-" + "0" * 40,
            "GATEHOUSE_ALLOWED_HOSTS": "testserver,localhost,127.0.0.1",
        }
    )


def _remove_old_folders() -> None:
    """A folder whose lock nobody holds belongs to a run that was killed."""
    for folder in Path(tempfile.gettempdir()).glob(_FOLDER_PREFIX + "*"):
        try:
            lock = os.open(folder / "lock", os.O_RDWR | os.O_CLOEXEC)
        except OSError:
            continue
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(folder, ignore_errors=True)
        except BlockingIOError:
            pass
        finally:
            os.close(lock)
