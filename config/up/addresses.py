"""Which addresses this installation uses: what the user set, else free ports near the usual ones."""

import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from fcntl import LOCK_EX, LOCK_NB, flock
from pathlib import Path
from tempfile import gettempdir

from config.environment import Environment
from core.embedded.process import StartError, free_port, is_free


@dataclass(frozen=True, slots=True)
class Doors:
    """Ports that were chosen for relay and web."""

    relay_port: int
    web_port: int


def local_url(host: str, port: int) -> str:
    """How a process on this machine reaches a server that listens on `host`."""
    reached = {"0.0.0.0": "127.0.0.1", "": "127.0.0.1", "::": "::1"}.get(host, host)  # noqa: S104  # read, not bound
    return f"http://[{reached}]:{port}" if ":" in reached else f"http://{reached}:{port}"


@contextmanager
def choosing_ports(wait: Callable[[], None]) -> Iterator[None]:
    """One installation of this user at a time between choosing ports and listening on them.

    Needed because relays share a port on purpose (SO_REUSEPORT): two that chose the same would both be content.
    `wait` is called again and again while another one is at it.
    """
    path = Path(gettempdir()) / f"gatehouse-ports-{os.getuid()}.lock"
    fd = os.open(path, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        while True:
            try:
                flock(fd, LOCK_EX | LOCK_NB)
                break
            except BlockingIOError:
                wait()
        yield
    finally:
        os.close(fd)


def choose_doors(environment: Environment, environ: Mapping[str, str]) -> Doors:
    """Ports for relay and web. Raises StartError when one that was asked for by name is taken."""
    relay = _choose("GATEHOUSE_RELAY_PORT", environment.relay_host, environment.relay_port, environ, taken=())
    web = _choose("GATEHOUSE_WEB_PORT", environment.web_host, environment.web_port, environ, taken=(relay,))
    return Doors(relay, web)


def _choose(variable: str, host: str, port: int, environ: Mapping[str, str], *, taken: Iterable[int]) -> int:
    if not environ.get(variable):
        return free_port(host, preferred=port, taken=frozenset(taken))
    if port in taken:
        raise StartError(f"{variable}={port} is the relay's port too: give each its own")
    if not is_free(port, host):
        raise StartError(
            f"{variable}={port} is taken by another program on {host}: choose another port, "
            "or leave the setting out to have a free one chosen"
        )
    return port


def write_runtime_file(path: Path, values: Mapping[str, str]) -> None:
    """Write the addresses down for other commands; readable by this user alone, never half-written."""
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    draft = path.with_suffix(".draft")
    fd = os.open(draft, os.O_CREAT | os.O_WRONLY | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    with os.fdopen(fd, "w") as file:
        json.dump(dict(values), file, indent=1)
    draft.replace(path)
