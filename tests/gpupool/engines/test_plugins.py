"""Engines that other packages bring: found without a change here, and alone in their failures."""

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from uuid import uuid4

import pytest
from structlog.testing import capture_logs

from core.clock import ManualClock
from gateway.relay import rooms as relay_rooms
from gateway.relay.picker import Balancer
from gateway.relay.plan import Api, Endpoint
from gateway.relay.rows import ENDPOINTS, EndpointRow
from gateway.relay.snapshot import Snapshot
from gpupool.engines import plugins, registry
from gpupool.engines.base import Capability
from gpupool.engines.plugins import BUILT_IN, BrokenPlugin, load_rooms
from gpupool.engines.registry import Registry, UnknownEngine
from tests.doubles.plugin import WARP, Site

Install = Callable[..., None]


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Install:
    return Site(tmp_path, monkeypatch).install


def test_every_room_of_ours_loads_by_the_code_that_loads_plugins() -> None:
    found = load_rooms()
    assert [name for name in found.rooms if found.rooms[name].package == plugins.PACKAGE] == list(BUILT_IN)
    assert [broken for broken in found.broken if broken.package == plugins.PACKAGE] == []


def test_an_installed_package_adds_an_engine(install: Install) -> None:
    install("warp-drive", "warp = warp_room:ROOM", module="warp_room", code=WARP)
    room = load_rooms().rooms["warp"]
    assert (room.package, room.engine.title, room.engine.versions) == ("warp-drive", "Warp drive", ">=9")
    assert room.engine.capabilities == {"chat", "telepathy"}


@pytest.mark.parametrize(
    ("code", "reason"),
    [
        ("import no_such_module", "ModuleNotFoundError: No module named 'no_such_module'"),
        ("raise SystemExit(3)", "SystemExit: 3"),
        ("1/0", "ZeroDivisionError: division by zero"),
        ("def", "SyntaxError"),
        ("ROM = 1", "AttributeError"),
        ("ROOM = object()", "is a object, not an Engine"),
        (WARP.replace('"warp"', '"other"'), "registered as warp, but calls itself 'other'"),
        (WARP.replace('"Warp drive"', '""'), "title must be a text"),
        (WARP.replace("OpenAIWire(),", "None,"), "has no wire"),
        (WARP.replace("OpenAIWire(),", "object(),"), "wire has no health, models, parse_models"),
        (WARP.replace("versions=", "launch=object(), versions="), "launch has no check_args"),
        (WARP.replace('frozenset({"chat", "telepathy"})', '["chat"]'), "capabilities must be a frozenset"),
        (WARP.replace('"telepathy"', '"a\\nb"'), "capabilities must be a frozenset"),
        ("from gpupool.engines.registry import get_engine\nget_engine('vllm')", "cannot ask for others"),
    ],
)
def test_a_plugin_that_cannot_be_used_is_named_and_disables_itself_only(
    install: Install, monkeypatch: pytest.MonkeyPatch, code: str, reason: str
) -> None:
    install("a-good-one", "fine = fine_room:ROOM", module="fine_room", code=WARP.replace('"warp"', '"fine"'))
    install("warp-drive", "warp = warp_room:ROOM", module="warp_room", code=code)
    fresh = Registry()
    monkeypatch.setattr(registry, "_registry", fresh)
    with capture_logs() as logs:
        found = fresh.found()
    assert set(found.rooms) >= {*BUILT_IN, "fine"}
    assert "warp" not in found.rooms
    (broken,) = found.broken
    assert (broken.name, broken.package) == ("warp", "warp-drive")
    assert reason in broken.reason
    (line,) = [line for line in logs if line["event"] == "engine_plugin_disabled"]
    assert (line["engine"], line["package"], line["reason"]) == ("warp", "warp-drive", broken.reason)


def test_a_taken_name_stays_with_who_had_it_first_and_ours_win(install: Install) -> None:
    install("b-package", "warp = warp_room:ROOM\nvllm = warp_room:ROOM", module="warp_room", code=WARP)
    install("c-package", "warp = warp_room:ROOM")
    found = load_rooms()
    assert (found.rooms["vllm"].package, found.rooms["warp"].package) == (plugins.PACKAGE, "b-package")
    assert found.broken == (
        BrokenPlugin("vllm", "b-package", "The name vllm is taken by gatehouse."),
        BrokenPlugin("warp", "c-package", "The name warp is taken by b-package."),
    )


@pytest.mark.parametrize("name", ["Warp", "a b", "x" * 33, "-x", "\x1b[31m"])
def test_a_bad_name_is_refused_and_told_without_its_control_characters(install: Install, name: str) -> None:
    install("warp-drive", f"{name} = warp_room:ROOM", module="warp_room", code=WARP)
    (broken,) = load_rooms().broken
    assert "1 to 32 of a-z" in broken.reason
    assert broken.name.isprintable()
    assert len(broken.name) <= 32


def test_metadata_that_cannot_be_read_harms_nobody_else(install: Install, tmp_path: Path) -> None:
    install("warp-drive", "")
    (tmp_path / "warp_drive-1.0.dist-info" / "entry_points.txt").write_bytes(b"[gatehouse.engines]\nx = \xff\n")
    found = load_rooms()
    assert set(found.rooms) >= set(BUILT_IN)
    (broken,) = found.broken
    assert (broken.name, broken.package) == ("", "warp-drive")
    assert "metadata cannot be read" in broken.reason


def test_rooms_are_loaded_once_however_many_threads_ask(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []
    together = threading.Barrier(8)

    def slowly() -> plugins.Found:
        calls.append(1)
        return load_rooms()

    monkeypatch.setattr(registry, "load_rooms", slowly)
    fresh = Registry()

    def ask(_: int) -> plugins.Found:
        together.wait()
        return fresh.found()

    with ThreadPoolExecutor(8) as threads:
        answers = list(threads.map(ask, range(8)))
    assert len(calls) == 1
    assert all(answer is answers[0] for answer in answers)


def test_a_plugins_engine_takes_requests_for_what_it_can(install: Install, monkeypatch: pytest.MonkeyPatch) -> None:
    install("warp-drive", "warp = warp_room:ROOM", module="warp_room", code=WARP)
    monkeypatch.setattr(relay_rooms, "_found", {})
    model, snapshot = uuid4(), Snapshot()
    endpoint = Endpoint(uuid4(), uuid4(), "warp", "127.0.0.1", 1, "", "tiny")
    snapshot.apply(ENDPOINTS, [], [EndpointRow(endpoint.instance_id, model, endpoint)])
    balancer = Balancer(snapshot, clock=ManualClock(), random=lambda: 0.0)
    monkeypatch.setattr(registry, "_registry", Registry())
    assert registry.get_engine("warp").capabilities >= {Capability.CHAT}
    assert balancer.picker(model, Api.CHAT).pick(frozenset()) == endpoint
    assert balancer.picker(model, Api.EMBEDDINGS).pick(frozenset()) is None
    monkeypatch.undo()
    with pytest.raises(UnknownEngine):
        registry.get_engine("warp")
