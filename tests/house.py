"""The whole house as real processes, for tests that go through the door as a client does.

Take it into a folder's conftest: `from tests.house import house as house`. The module-scoped fixture
`house` gives a running relay and drain (`house.start("web")` adds the DRF door) in front of a llama.cpp
server with random weights, on a database of its own, copied from the run's template. All rows are committed;
Django's connection points at that database for the length of the module, and access is open, so a
module that takes `house` must not take `db` or `transactional_db`. Its rows:

- tenant `acme`, granted `tiny` (ready on llama.cpp) and `idle` (granted, no instance ready)
- `hidden`: on the same engine, not granted
- `house.key`: acme's key without a limit
"""

import contextlib
import itertools
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

import httpx2 as httpx
import psycopg
import pytest
from django.conf import settings
from django.db import connection
from psycopg import sql
from pytest_django import DjangoDbBlocker

from bench.house import House, http_status, wait_until
from bench.rows import Key, attach, make_key, make_tenant
from core.embedded.process import spawn, stop
from gpupool.models import Instance
from tenants.models import Tenant, UsageRecord
from tests.ports import free_port

_ROOT: Final = Path(__file__).resolve().parent.parent
TINY_MODEL: Final = _ROOT / "tests" / "data" / "tiny512.gguf"
_TEMPLATE: Final = "gatehouse_template"
_houses: Final = itertools.count()


class LlamaEngine:
    """A llama.cpp server with random weights in a process of its own; it answers any model name."""

    def __init__(self, folder: Path, *, slots: int = 4, slot_tokens: int = 512, arguments: Sequence[str] = ()) -> None:
        """`slot_tokens` is the context of each slot: a prompt and its answer fit in it, or the answer is cut."""
        self._arguments = arguments
        self.port = free_port()
        self._log = folder / f"engine-{self.port}.log"
        self._slots = slots
        self._context_tokens = slots * slot_tokens
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        command = [sys.executable, "-m", "gpupool.engines.llamacpp.serve", "--model", str(TINY_MODEL)]
        command += ["--port", str(self.port), "--alias", "tiny", "--threads", "1"]
        command += ["--ctx-size", str(self._context_tokens), "--parallel", str(self._slots)]
        command += self._arguments
        self._process = spawn(command, log=self._log, death_signal=signal.SIGKILL, environ=dict(os.environ), cwd=_ROOT)
        wait_until(lambda: http_status(self.port, "/health") == 200, "llama.cpp ready")

    def kill(self) -> None:
        """SIGKILL, in the middle of whatever it does."""
        assert self._process is not None
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()

    def stop(self) -> None:
        if self._process is not None:
            stop(self._process, grace_seconds=5.0)


class TestHouse(House):
    """A house with an engine and the rows that the module's docstring lists."""

    __test__ = False

    engine: LlamaEngine
    tenant: Tenant
    key: Key
    instance: Instance

    def __init__(self, folder: Path, environ: Mapping[str, str]) -> None:
        super().__init__(folder, environ, ports=(free_port(), free_port()))

    def settle_in(self) -> None:
        """Make the rows and start engine, drain and relay."""
        self.engine = LlamaEngine(self.folder)
        self.engine.start()
        self.tenant = make_tenant("acme", models=("tiny", "idle"))
        self.key = make_key(self.tenant, "test")
        self.instance = attach("tiny", self.engine.port, engine="llamacpp")
        attach("hidden", self.engine.port, engine="llamacpp")
        attach("idle", free_port(), engine="llamacpp", ready=False)
        self.start("drain")
        self.start("relay")

    def new_key(self, name: str = "another", *, rpm_limit: int | None = None) -> Key:
        """A further key of acme; the relay knows it at its first use."""
        return make_key(self.tenant, name, rpm_limit=rpm_limit)

    def client(self, key: str | None = None, *, door: str = "relay", timeout: float = 30.0) -> httpx.Client:
        """An HTTP client with acme's key (or another; "" for none) on one of the doors, relay or web."""
        secret = self.key.secret if key is None else key
        headers = {"authorization": f"Bearer {secret}"} if secret else {}
        base = {"relay": self.relay_url, "web": self.web_url}[door]
        return httpx.Client(base_url=base, headers=headers, timeout=timeout)

    def ledger_row(self, request_id: str, *, seconds: float = 60.0) -> UsageRecord:
        """The ledger's row of a request, waited for."""
        rows = UsageRecord.objects.filter(pk=request_id)
        wait_until(rows.exists, f"a ledger row for {request_id}", seconds=seconds)
        return rows.get()


@contextlib.contextmanager
def own_database(blocker: DjangoDbBlocker) -> Iterator[str]:
    """A fresh database, and a prefix in Valkey, that Django uses while the context lasts; the database's address.

    The prefix is the run's alone: channels belong to no numbered database. What tests write here is hinted at where
    the house's processes listen.
    """
    server, _, name = os.environ["DATABASE_URL"].rpartition("/")
    name = f"{name}_house"
    with blocker.unblock(), psycopg.connect(f"{server}/postgres", autocommit=True) as admin:
        admin.execute(sql.SQL("DROP DATABASE IF EXISTS {} WITH (FORCE)").format(sql.Identifier(name)))
        admin.execute(sql.SQL("CREATE DATABASE {} TEMPLATE {}").format(sql.Identifier(name), sql.Identifier(_TEMPLATE)))
        before, known = connection.settings_dict["NAME"], settings.GATEHOUSE
        connection.close()
        connection.settings_dict["NAME"] = name
        settings.GATEHOUSE = replace(known, valkey_prefix=f"{known.valkey_prefix}house{next(_houses)}:")
        try:
            yield f"{server}/{name}"
        finally:
            settings.GATEHOUSE = known
            connection.close()
            connection.settings_dict["NAME"] = before
            admin.execute(sql.SQL("DROP DATABASE IF EXISTS {} WITH (FORCE)").format(sql.Identifier(name)))


def house_environ(database_url: str) -> Mapping[str, str]:
    """Where a test house finds its servers, within `own_database`: the run's, under a key prefix of its own.

    It waits for Valkey longer than others: a machine on which all tests run must not turn up as refusals.
    """
    return {
        "DATABASE_URL": database_url,
        "VALKEY_STATE_URL": os.environ["VALKEY_STATE_URL"],
        "VALKEY_SCRATCH_URL": os.environ["VALKEY_SCRATCH_URL"],
        "GATEHOUSE_VALKEY_DEADLINE_SECONDS": "10",
        "GATEHOUSE_VALKEY_PREFIX": settings.GATEHOUSE.valkey_prefix,
        "GATEHOUSE_SECRET_KEY": os.environ["GATEHOUSE_SECRET_KEY"],  # a session made here is one there
        "DJANGO_ALLOW_ASYNC_UNSAFE": "",  # what tests beside a browser are allowed, its processes are not
    }


@pytest.fixture(scope="module")
def house(
    django_db_setup: None,
    django_db_blocker: DjangoDbBlocker,
    tmp_path_factory: pytest.TempPathFactory,
    house_more: dict[str, str],
) -> Iterator[TestHouse]:
    """See the module's docstring."""
    folder = tmp_path_factory.mktemp("house")
    with own_database(django_db_blocker) as database_url:
        house = TestHouse(folder, {**house_environ(database_url), **house_more})
        try:
            house.settle_in()
            yield house
        finally:
            house.stop_all()
            if hasattr(house, "engine"):
                house.engine.stop()
