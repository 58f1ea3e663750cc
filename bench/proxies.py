"""What is measured: no proxy at all, nginx where it is installed, and ours (bench.gatehouse)."""

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from bench.tools import ToolError, pinned
from core.embedded.process import free_port, last_lines, spawn, stop


@dataclass(frozen=True, slots=True)
class Proxy:
    """One thing under test: where it listens and which process tree it is."""

    name: str
    port: int
    pid: int | None  # None: no proxy, the upstream itself
    headers: Mapping[str, str] = field(default_factory=dict)
    settled: Callable[[int, int], str | None] = lambda answered, failed: None
    """Returns once its work after the last answer (a ledger) is done; a complaint when it was done wrongly."""
    helpers: Mapping[str, int] = field(default_factory=dict)
    """Processes beside it whose CPU is reported apart, by name."""


def nginx_binary() -> str | None:
    return shutil.which("nginx", path=os.environ.get("PATH", "") + ":/usr/sbin:/usr/local/sbin")


_NGINX = """\
worker_processes 1;
daemon off;
pid {folder}/nginx.pid;
error_log {folder}/nginx.log warn;
{user}
events {{ worker_connections 8192; }}
http {{
    access_log off;
    client_body_temp_path {folder}/body;
    proxy_temp_path {folder}/proxy;
    fastcgi_temp_path {folder}/fastcgi;
    uwsgi_temp_path {folder}/uwsgi;
    scgi_temp_path {folder}/scgi;
    keepalive_requests 10000000;
    client_max_body_size 32m;
    client_body_buffer_size 64k;
    tcp_nodelay on;
    upstream engine {{
        server 127.0.0.1:{upstream};
        keepalive 1024;
        keepalive_requests 10000000;
    }}
    server {{
        listen 127.0.0.1:{port} backlog=4096;
        location / {{
            proxy_pass http://engine;
            proxy_http_version 1.1;
            proxy_set_header Connection "";
            proxy_buffering off;
            proxy_read_timeout 120s;
        }}
    }}
}}
"""


@contextlib.contextmanager
def nginx(upstream_port: int, folder: Path, *, cpus: Sequence[int] | None) -> Iterator[Proxy]:
    """nginx with one worker, kept-alive upstream connections and buffering off, as streams need it.

    Raises ToolError when it is not installed or does not start.
    """
    binary = nginx_binary()
    if binary is None:
        raise ToolError("nginx is not installed")
    folder.mkdir(parents=True, exist_ok=True)
    port = free_port()
    config = folder / "nginx.conf"
    user = "user root;" if os.geteuid() == 0 else ""
    config.write_text(_NGINX.format(folder=folder, port=port, upstream=upstream_port, user=user))
    log = folder / "nginx.log"
    process = spawn(pinned([binary, "-p", str(folder), "-c", str(config)], cpus), log=log, environ=dict(os.environ))
    try:
        wait_until_listening(port, process, log)
        yield Proxy("nginx", port, process.pid)
    finally:
        stop(process, with_signal=signal.SIGTERM)


def wait_until_listening(port: int, process: "subprocess.Popen[bytes]", log: Path, *, seconds: float = 30.0) -> None:
    """Raises ToolError with the end of the log when the process ends or the deadline passes first."""
    deadline = time.monotonic() + seconds
    while process.poll() is None and time.monotonic() < deadline:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
            return
        time.sleep(0.05)
    raise ToolError("a server did not start; the end of its log:\n" + "\n".join(last_lines(log)))
