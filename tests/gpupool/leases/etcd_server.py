"""A real etcd for tests, on free ports; absent where the machine has none."""

import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final
from urllib.request import urlopen

import pytest

from tests.gpupool.processes import free_port

BINARY: Final = shutil.which("etcd")
needs_etcd: Final = pytest.mark.skipif(BINARY is None, reason="this machine has no etcd (Debian: etcd-server)")


class EtcdServer:
    """One member; it can be ended, frozen and started again on the same data."""

    def __init__(self, folder: Path, *, arguments: tuple[str, ...] = ()) -> None:
        self.folder, self.port, self._peer_port = folder, free_port(), free_port()
        self._arguments = arguments
        self.process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        scheme = "https" if any(one.startswith("--cert-file") for one in self._arguments) else "http"
        return f"{scheme}://127.0.0.1:{self.port}"

    def start(self) -> None:
        assert BINARY is not None
        peer = f"http://127.0.0.1:{self._peer_port}"
        command = [
            BINARY, "--name=test", f"--data-dir={self.folder / 'data'}", f"--listen-client-urls={self.url}",
            f"--advertise-client-urls={self.url}", f"--listen-peer-urls={peer}", "--logger=zap",
            "--heartbeat-interval=10", "--election-timeout=100",  # starts at once, gives times to live of a second
            f"--initial-advertise-peer-urls={peer}", f"--initial-cluster=test={peer}", *self._arguments,
        ]  # fmt: skip
        with (self.folder / "etcd.log").open("ab") as log:
            self.process = subprocess.Popen(command, stdout=log, stderr=log)
        deadline = time.monotonic() + 20
        while True:
            if self._serves():
                return
            if time.monotonic() > deadline or self.process.poll() is not None:
                raise AssertionError((self.folder / "etcd.log").read_text()[-2000:])
            time.sleep(0.02)

    def _serves(self) -> bool:
        """It listens before it serves. Where it asks for certificates, that it listens has to do."""
        with suppress(OSError):
            if self.url.startswith("https:"):
                with socket.create_connection(("127.0.0.1", self.port), timeout=1):
                    return True
            with urlopen(f"{self.url}/health", timeout=1) as answer:
                return bool(answer.status == 200)
        return False

    def kill(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.wait(20)
            self.process = None

    def wipe(self) -> None:
        """As a new one in its place: it remembers nothing."""
        self.kill()
        shutil.rmtree(self.folder / "data")


@contextmanager
def an_etcd(*arguments: str) -> Iterator[EtcdServer]:
    """A started member, gone with all its data afterwards."""
    with tempfile.TemporaryDirectory(prefix="gatehouse-etcd-") as folder:
        server = EtcdServer(Path(folder), arguments=arguments)
        server.start()
        try:
            yield server
        finally:
            server.kill()
