"""A pool whose parts can be cut off from each other: nodes in network namespaces, the store behind a wire.

Where the machine allows no namespaces a node's stream to the web process is cut, and its engines are frozen, so
that nobody reaches them either.
"""

import asyncio
import contextlib
import itertools
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Coroutine, Iterator
from concurrent.futures import Future
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import psutil

from tests.gpupool.leases.etcd_server import EtcdServer
from tests.gpupool.processes import PORTS_EACH, Pool, free_port
from tests.ports import worker_port

_NAMES: Final = itertools.count()


class Wires:
    """Ports that lead to another one until they are cut: then nothing moves, and nobody is told."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self._open: dict[int, asyncio.Event] = {}

    def lay(self, target: int) -> int:
        """A new port that leads to the port `target`."""
        port = free_port()
        self._run(self._serve(port, target)).result(10)
        return port

    def cut(self, port: int) -> None:
        self._loop.call_soon_threadsafe(self._open[port].clear)

    def mend(self, port: int) -> None:
        self._loop.call_soon_threadsafe(self._open[port].set)

    def close(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)

    def _run(self, work: Coroutine[Any, Any, None]) -> "Future[None]":
        return asyncio.run_coroutine_threadsafe(work, self._loop)

    async def _serve(self, port: int, target: int) -> None:
        gate = self._open[port] = asyncio.Event()
        gate.set()

        async def copy(source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
            with contextlib.suppress(OSError):
                while data := await source.read(65_536):
                    await gate.wait()
                    sink.write(data)
            sink.close()

        async def forward(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await gate.wait()
            with contextlib.suppress(OSError):
                there, back = await asyncio.open_connection("127.0.0.1", target)
                await asyncio.gather(copy(reader, back), copy(there, writer))
            writer.close()

        await asyncio.start_server(forward, "127.0.0.1", port)


def namespaces_work() -> bool:
    """May this process make network namespaces and cable them?"""
    if (
        not sys.platform.startswith("linux")
        or os.geteuid() != 0
        or not (shutil.which("ip") and shutil.which("nsenter"))
    ):
        return False
    name = f"ghprobe{os.getpid()}"
    made = _ip("netns", "add", name, check=False) == 0
    bridged = made and _ip("link", "add", name[:15], "type", "bridge", check=False) == 0
    if bridged:
        _ip("link", "del", name[:15])
    if made:
        _ip("netns", "del", name)
    return bridged


def _ip(*arguments: str, check: bool = True) -> int:
    return subprocess.run(["ip", *arguments], check=check, capture_output=True, timeout=20).returncode


@dataclass
class CutNode:
    """A node and how it is reached."""

    name: str
    token: str
    number: int
    namespace: str = ""
    wire: int = 0
    first_port: int = 0
    is_cut: bool = False
    frozen: list[int] = field(default_factory=list)


class CutPool(Pool):
    """Two controllers, a web process and nodes, with an etcd that all but the nodes speak to."""

    def __init__(self, folder: Path, database_url: str, etcd: EtcdServer, *, ttl_seconds: float) -> None:
        super().__init__(folder, database_url)
        self.etcd, self.wires, self.nodes = etcd, Wires(), dict[str, CutNode]()
        self.in_namespaces = namespaces_work()
        self._bridge = f"gh{os.getpid() % 100_000}b{next(_NAMES)}"
        self._net = f"10.{130 + os.getpid() % 100}.{next(_NAMES) % 250}"
        self._host = host = "127.0.0.1"
        if self.in_namespaces:
            self._host = host = f"{self._net}.1"
            _ip("link", "add", self._bridge, "type", "bridge")
            _ip("addr", "add", f"{host}/24", "dev", self._bridge)
            _ip("link", "set", self._bridge, "up")
        self.environ |= {
            "ETCD_URL": etcd.url,
            "GATEHOUSE_WEB_HOST": host,
            "GATEHOUSE_WEB_URL": f"http://{host}:{self.web_port}",
            "GATEHOUSE_ALLOWED_HOSTS": f"localhost,127.0.0.1,{host}",
            "GATEHOUSE_CONTROLLER_LEASE_SECONDS": str(ttl_seconds),
            "GATEHOUSE_NODE_UNREACHABLE_SECONDS": str(ttl_seconds),
        }

    def web_serves(self) -> bool:
        """Agents that come too early wait longer and longer."""
        with contextlib.suppress(OSError), socket.create_connection((self._host, self.web_port), timeout=1):
            return True
        return False

    def start_cut_controller(self) -> tuple["subprocess.Popen[bytes]", int]:
        """A controller and the wire that leads it to the store."""
        wire = self.wires.lay(self.etcd.port)
        environ = {"ETCD_URL": f"http://127.0.0.1:{wire}"}
        return self._start("controller", [sys.executable, "manage.py", "controller"], environ), wire

    def start_node(self, name: str, token: str) -> CutNode:
        number = len(self.nodes) + 2
        node = self.nodes[name] = CutNode(name, token, number)
        node.first_port = worker_port(400 + number * PORTS_EACH)
        command = [sys.executable, "manage.py", "agent", "--node", name]
        environ = {
            "GATEHOUSE_NODE_TOKEN": token,
            "DATABASE_URL": "",
            "ETCD_URL": "",
            "GATEHOUSE_ENGINE_PORT_FIRST": str(node.first_port),
            "GATEHOUSE_ENGINE_PORT_COUNT": str(PORTS_EACH),
            "GATEHOUSE_VAR_DIR": str(self.folder / f"var-{name}"),
        }
        if self.in_namespaces:
            node.namespace = f"{self._bridge}n{number}"
            self._cable(node)
            command = ["nsenter", f"--net=/run/netns/{node.namespace}", *command]
            environ["GATEHOUSE_NODE_ADDRESS"] = f"{self._net}.{number}"
        else:
            node.wire = self.wires.lay(self.web_port)
            environ["GATEHOUSE_WEB_URL"] = f"http://127.0.0.1:{node.wire}"
        self._start(f"agent-{name}", command, environ)
        return node

    def _cable(self, node: CutNode) -> None:
        end = f"{self._bridge}v{node.number}"[-15:]
        _ip("netns", "add", node.namespace)
        _ip("link", "add", end, "type", "veth", "peer", "name", "eth0", "netns", node.namespace)
        _ip("link", "set", end, "master", self._bridge)
        _ip("link", "set", end, "up")
        for arguments in (
            ["addr", "add", f"{self._net}.{node.number}/24", "dev", "eth0"],
            ["link", "set", "eth0", "up"],
            ["link", "set", "lo", "up"],
        ):
            _ip("-n", node.namespace, *arguments)

    def cut(self, node: CutNode) -> None:
        """Nothing reaches the node and nothing comes from it; it runs on."""
        node.is_cut = True
        if self.in_namespaces:
            _ip("route", "add", "unreachable", f"{self._net}.{node.number}/32")
            return
        self.wires.cut(node.wire)
        for engine in self.engines(node):
            with contextlib.suppress(psutil.NoSuchProcess):
                engine.send_signal(signal.SIGSTOP)
                node.frozen.append(engine.pid)

    def mend(self, node: CutNode) -> None:
        node.is_cut = False
        if self.in_namespaces:
            _ip("route", "del", "unreachable", f"{self._net}.{node.number}/32")
            return
        for pid in node.frozen:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)
        node.frozen.clear()
        self.wires.mend(node.wire)

    def engines(self, node: CutNode) -> list[psutil.Process]:
        """Engine processes of the node that exist now, by the ports that its agent gives."""
        return self.engines_by_node()[node.name]

    def engines_by_node(self) -> dict[str, list[psutil.Process]]:
        """The same of every node in one pass: it is asked all the time, beside what is to be seen."""
        nodes = list(self.nodes.values())
        found: dict[str, list[psutil.Process]] = {node.name: [] for node in nodes}
        for process in psutil.process_iter():
            port = _port_of(process.pid)
            for node in nodes:
                if port is not None and port in range(node.first_port, node.first_port + PORTS_EACH):
                    found[node.name].append(process)
        return found

    def close(self) -> None:
        for node in self.nodes.values():
            if node.is_cut:
                self.mend(node)
        super().close()
        for node in self.nodes.values():
            for engine in self.engines(node):
                with contextlib.suppress(psutil.NoSuchProcess):
                    engine.kill()
            if node.namespace:
                _ip("netns", "del", node.namespace, check=False)
        if self.in_namespaces:
            _ip("link", "del", self._bridge, check=False)
        self.wires.close()


def _port_of(pid: int) -> int | None:
    """What the process was told to listen on; None where it was told of no port. A zombie has no line any more."""
    try:
        line = psutil.Process(pid).cmdline()
    except psutil.Error:
        return None
    told = line[line.index("--port") + 1 :] if "--port" in line else []
    return int(told[0]) if told and told[0].isdigit() else None


class Watcher:
    """Looks all the time for what must never be: two engines on a device that is claimed whole."""

    def __init__(self, pool: CutPool) -> None:
        self._pool = pool
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._look, daemon=True)
        self.looks = 0
        self.wrong: list[str] = []

    def __enter__(self) -> "Watcher":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join(10)

    def _look(self) -> None:
        while not self._over.wait(0.1):
            self.looks += 1
            for name, engines in self._pool.engines_by_node().items():
                if len(engines) > 1:
                    pids = [engine.pid for engine in engines]
                    self.wrong.append(f"{time.monotonic():.1f}: {name} runs {pids}")


@contextlib.contextmanager
def frozen(server: EtcdServer) -> Iterator[None]:
    """The store answers nobody."""
    assert server.process is not None
    server.process.send_signal(signal.SIGSTOP)
    try:
        yield
    finally:
        server.process.send_signal(signal.SIGCONT)
