"""Asks, in a process of its own, whether device nodes can be opened as an instance sees them.

`python -m gpupool.agent.isolation.sight PID NODE...` prints the nodes that cannot be opened, with why, as JSON. A node
that is there may still be refused: a reload of the service manager takes devices out of a container's group.
"""

import os
import sys
from collections.abc import Iterable
from pathlib import Path

import msgspec


def unseen(pid: int, nodes: Iterable[str], *, root: Path = Path("/proc")) -> dict[str, str]:
    """Why each of the nodes cannot be opened in the process's view of the file system; without those that can."""
    found: dict[str, str] = {}
    for node in nodes:
        try:
            os.close(os.open(root / str(pid) / "root" / node.lstrip("/"), os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC))
        except OSError as error:
            found[node] = error.strerror or type(error).__name__
    return found


if __name__ == "__main__":
    sys.stdout.buffer.write(msgspec.json.encode(unseen(int(sys.argv[1]), sys.argv[2:])))
