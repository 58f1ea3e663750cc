"""`python -m bench.sockets`: what 200 pages that watch cost one web process, at one frame a second.

The process is the real one (`manage.py web`) with PostgreSQL and Valkeys beside it, over a pool of 64 devices and
100 instances whose figures change each second, so that every frame is whole. Its CPU is read from /proc and split
into its threads: the event loop, which carries the sockets, and the publisher's, which reads once for all.
"""

import argparse
import asyncio
import contextlib
import json
import os
import struct
import sys
import tempfile
import threading
import time
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Final

from websockets.asyncio.client import connect
from websockets.typing import Origin

from bench.cpu import cpu_seconds
from bench.tools import FOLDER
from core.embedded.postgres import PostgresServer
from core.embedded.valkey import ValkeyServer

BAR: Final = 0.25
"""Of a core, for 200 sockets at one frame a second."""
_OF_A_SESSION: Final = 256
"""Sockets that one session may have."""
_BEGIN_SECONDS: Final = 60.0
_TICK: Final = os.sysconf("SC_CLK_TCK")


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(prog="python -m bench.sockets", description=__doc__)
    made.add_argument("--sockets", type=int, default=200)
    made.add_argument("--seconds", type=float, default=30.0)
    made.add_argument("--channel", default="fleet")
    made.add_argument("--scope", default="")
    made.add_argument("--devices", type=int, default=64)
    made.add_argument("--instances", type=int, default=100)
    made.add_argument("--output", type=Path, default=FOLDER / "results" / "sockets.json")
    return made


@dataclass(slots=True)
class Heard:
    """What one socket was sent while it was measured."""

    frames: int = 0
    size: int = 0
    missed: int = 0
    last: tuple[int, int] = (0, 0)
    period_seconds: float = 1.0
    closed: bool = False

    def take(self, said: str | bytes) -> None:
        self.size += len(said)
        if isinstance(said, bytes):
            epoch, seq = _place(said[1:])
        else:
            frame = json.loads(said)
            if frame.get("op") == "subscribed":
                self.period_seconds = frame["period"]
            if "seq" not in frame:
                return
            epoch, seq = frame["epoch"], frame["seq"]
        self.frames += 1
        if self.last[0] == epoch:
            self.missed += seq - self.last[1] - 1
        self.last = (epoch, seq)

    def got_all(self, seconds: float) -> bool:
        """Whether it was told all that came in so long: one frame may have been under way at the end."""
        return not self.closed and not self.missed and self.frames >= seconds / self.period_seconds - 1


@lru_cache(4)  # all pages get the same bytes
def _place(payload: bytes) -> tuple[int, int]:
    """Epoch and sequence of a frame in bytes; see docs/wire.md."""
    if payload[0] == 0:
        keyframe = json.loads(zlib.decompress(payload[1:], -15))
        return keyframe["epoch"], keyframe["seq"]
    epoch, seq = struct.unpack_from("<II", payload, 1)
    return epoch, seq


class NotMeasured(Exception):
    """Not all pages came to watch; says why."""


async def watch(url: str, cookies: Sequence[str], options: argparse.Namespace, measuring: asyncio.Event) -> list[Heard]:
    """All the pages, for as long as asked; `measuring` is set once each of them has had a frame.

    Raises NotMeasured when one of them gets none.
    """
    heard = [Heard() for _ in range(options.sockets)]
    settled = asyncio.Semaphore(0)

    async def page(mine: Heard, cookie: str) -> None:
        headers = {"Cookie": cookie}
        async with connect(
            f"{url}/ws/live", origin=Origin(url.replace("ws:", "http:")), additional_headers=headers, max_size=None
        ) as socket:
            await socket.send(
                json.dumps({"op": "subscribe", "n": 1, "channel": options.channel, "scope": options.scope})
            )
            begun = False
            async for said in socket:
                mine.take(said)
                if mine.frames and not begun:
                    begun = True
                    settled.release()
        raise ConnectionError(f"closed with {socket.close_code}")

    async def all_settled() -> None:
        for _ in heard:
            await settled.acquire()

    tasks = []
    try:
        for number, mine in enumerate(heard):
            tasks.append(asyncio.create_task(page(mine, cookies[number // _OF_A_SESSION])))
            await asyncio.sleep(0.01)
        settling = asyncio.create_task(all_settled())
        await asyncio.wait({settling, *tasks}, timeout=_BEGIN_SECONDS, return_when=asyncio.FIRST_COMPLETED)
        if not settling.done():
            settling.cancel()
            ended = [task.exception() for task in tasks if task.done()]
            why = f"one ended: {ended[0]!r}" if ended else f"not within {_BEGIN_SECONDS:.0f} s"
            raise NotMeasured(f"{sum(mine.frames == 0 for mine in heard)} of {len(heard)} sockets had no frame; {why}")
        await asyncio.sleep(3)
        for mine in heard:
            mine.frames = mine.size = mine.missed = 0
        measuring.set()
        await asyncio.sleep(options.seconds)
        for mine, task in zip(heard, tasks, strict=True):
            mine.closed = task.done()
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    return heard


def thread_seconds(pid: int) -> dict[str, float]:
    """CPU of each thread of a process, by name; the main thread is `main`."""
    found: dict[str, float] = {}
    for task in Path(f"/proc/{pid}/task").iterdir():
        with contextlib.suppress(OSError):
            head, _, rest = (task / "stat").read_text().rpartition(")")
            name = "main" if task.name == str(pid) else head.partition("(")[2]
            user, system = rest.split()[11:13]
            found[name] = found.get(name, 0.0) + (int(user) + int(system)) / _TICK
    return found


@contextlib.contextmanager
def servers(folder: Path) -> Iterator[dict[str, str]]:
    """PostgreSQL and a Valkey, and the environment that names them."""
    postgres = PostgresServer(folder / "postgres", log=folder / "postgres.log", durable=False, memory_mb=128)
    valkey = ValkeyServer(folder / "valkey", log=folder / "valkey.log", durable=False)
    postgres.start()
    try:
        valkey.start()
        postgres.ensure_database("gatehouse")
        yield {
            "DATABASE_URL": postgres.url("gatehouse"),
            "VALKEY_STATE_URL": valkey.database_url(0),
            "VALKEY_SCRATCH_URL": valkey.database_url(1),
        }
    finally:
        valkey.stop()
        postgres.stop()


def fill(options: argparse.Namespace) -> list[str]:
    """An operator, devices and instances; returns the cookies of as many sessions of the operator as are needed."""
    from django.conf import settings
    from django.contrib.auth import BACKEND_SESSION_KEY, HASH_SESSION_KEY, SESSION_KEY
    from django.contrib.sessions.backends.db import SessionStore
    from django.utils import timezone

    from gpupool.models import Device, Instance, Model, ModelVersion, Node
    from tenants.actor import SYSTEM
    from tenants.services import create_user

    now = timezone.now()
    version = ModelVersion.objects.create(
        model=Model.objects.create(name="m"), name="v1", engine="vllm", served_name="m", artefact_uri="file:///m"
    )
    for number in range(-(-options.devices // 8)):
        node = Node.objects.create(
            name=f"n{number:03}", state="online", token_digest=f"{number:064}", token_last_four="0000"
        )
        Device.objects.bulk_create(
            Device(
                node=node,
                stable_id=f"GPU-{number}-{index}",
                kind="gpu",
                vendor="nvidia",
                name="NVIDIA H100",
                index=index,
                memory_bytes=80 * 2**30,
                memory_used_bytes=0,
                health="ok",
                observed_at=now,
            )
            for index in range(8)
        )
    Instance.objects.bulk_create(
        Instance(version=version, engine="vllm", state="ready", host="10.0.0.1", port=20000 + number)
        for number in range(options.instances)
    )
    user = create_user(email="bench@example.com", password=None, platform_role="operator", actor=SYSTEM)
    cookies = []
    for _ in range(-(-options.sockets // _OF_A_SESSION)):
        store = SessionStore()
        store[SESSION_KEY], store[HASH_SESSION_KEY] = str(user.pk), user.get_session_auth_hash()
        store[BACKEND_SESSION_KEY] = settings.AUTHENTICATION_BACKENDS[0]
        store.save()
        cookies.append(f"{settings.SESSION_COOKIE_NAME}={store.session_key}")
    return cookies


def keep_changing(stop: threading.Event) -> None:
    """Figures of every device and instance, as their agents would report them."""
    from django.db import connection
    from django.db.models.functions import Now

    from gpupool.models import Device, Instance

    number = 0
    while not stop.wait(0.5):
        number += 1
        Device.objects.update(memory_used_bytes=number * 2**20, utilization=number % 100 / 100, observed_at=Now())
        Instance.objects.update(running_requests=number % 50, waiting_requests=number % 7)
    connection.close()


def main(arguments: Sequence[str]) -> int:
    """0 when every socket got its frames; a missed bar is told, not an error."""
    options = parser().parse_args(arguments)
    with tempfile.TemporaryDirectory(prefix="gatehouse-bench-") as name, contextlib.ExitStack() as stack:
        folder = Path(name)
        folder.chmod(0o755)  # the service account of the database must reach its folder
        environ = stack.enter_context(servers(folder))
        try:
            result = asyncio.run(_measure(options, folder, environ))
        except NotMeasured as error:
            print(error, file=sys.stderr)
            return 1
    options.output.parent.mkdir(exist_ok=True)
    options.output.write_text(json.dumps(result, indent=1) + "\n")
    for key, value in result.items():
        print(f"{key:24} {value}")
    return 0 if result["sockets_without_all"] == 0 else 1


async def _measure(options: argparse.Namespace, folder: Path, environ: dict[str, str]) -> dict[str, object]:
    from bench.house import House

    house = House(folder, {**environ, "GATEHOUSE_CLIENT_CONNECTION_CAP": str(options.sockets + 800)})
    os.environ.update({key: value for key, value in house.environ.items() if key.isupper()})
    os.environ["DJANGO_SETTINGS_MODULE"] = "config.settings"
    import django
    from django.core.management import call_command

    django.setup()
    await asyncio.to_thread(call_command, "migrate", verbosity=0)
    cookies = await asyncio.to_thread(fill, options)
    house.start("web")
    stop = threading.Event()
    changing = threading.Thread(target=keep_changing, args=(stop,))
    changing.start()
    try:
        measuring = asyncio.Event()
        watching = asyncio.create_task(watch(house.web_url.replace("http", "ws"), cookies, options, measuring))
        await asyncio.wait({watching, asyncio.create_task(measuring.wait())}, return_when=asyncio.FIRST_COMPLETED)
        if watching.done():
            await watching
        pid, began = house.pid("web"), time.monotonic()
        before, threads_before = cpu_seconds(pid), thread_seconds(pid)
        heard = await watching
        seconds = time.monotonic() - began
        used, threads = cpu_seconds(pid) - before, thread_seconds(pid)
    finally:
        stop.set()
        changing.join()
        house.stop_all()
    share = used / seconds
    return {
        "channel": options.channel,
        "sockets": options.sockets,
        "seconds": round(seconds, 1),
        "frames_a_socket": [min(mine.frames for mine in heard), max(mine.frames for mine in heard)],
        "bytes_a_frame": round(sum(mine.size for mine in heard) / max(1, sum(mine.frames for mine in heard))),
        "missed": sum(mine.missed for mine in heard),
        "closed": sum(mine.closed for mine in heard),
        "sockets_without_all": sum(not mine.got_all(options.seconds) for mine in heard),
        "core_share": round(share, 4),
        "bar": BAR,
        "within": share < BAR,
        "threads": {
            name: round((value - threads_before.get(name, 0.0)) / seconds, 4)
            for name, value in sorted(threads.items())
            if value - threads_before.get(name, 0.0) > 0.001 * seconds
        },
        "load_average": round(os.getloadavg()[0], 1),
    }


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
