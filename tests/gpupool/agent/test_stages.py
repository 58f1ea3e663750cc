"""Starts in stages: weights compared with their checksums, then loaded onto devices; and memory seen returned."""

import asyncio
import os
import threading
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import fields, replace
from pathlib import Path
from shutil import copyfile
from typing import Any

import msgspec
import pytest

from config.pool_settings import PoolSettings
from core.clock import SystemClock
from gpupool.agent import page_cache
from gpupool.agent.device_memory import memory_held
from gpupool.agent.model_cache import ModelCache
from gpupool.agent.page_cache import cached_share, drop, read_in
from gpupool.agent.ports import NoPortLeft, PortRange
from gpupool.agent.state import InstanceRecord, StateDir
from gpupool.agent.workshop import Workshop
from gpupool.policies.manifest import stated
from gpupool.stream.messages import DesiredInstance
from gpupool.weights.hashing import make_manifest
from tests.doubles.node_web import FakeWeb, row
from tests.doubles.sleeper import registered, sleeper
from tests.gpupool.agent.conftest import FAST, TINY, TINY_URI, running_agent


@pytest.fixture(autouse=True)
def engines() -> Iterator[None]:
    with registered(sleeper()):
        yield


def a_row(uri: str = TINY_URI, **members: Any) -> DesiredInstance:
    made = row(devices=["cpu-test"], artefact_uri=uri, engine="sleeper", engine_args={})
    return msgspec.structs.replace(made, **members)


@pytest.mark.shows("R104")
async def test_weights_that_are_not_those_that_were_admitted_are_not_loaded(web: FakeWeb, var_dir: Path) -> None:
    model = var_dir / "model.gguf"
    copyfile(TINY, model)
    manifest = stated(make_manifest(model))
    with model.open("r+b") as file:
        file.seek(4000)
        file.write(b"x")
    wish = a_row(model.as_uri(), manifest=manifest)
    await web.desire(wish)
    async with running_agent(web, var_dir, timings=FAST):
        failed = await web.until_state(wish.instance_id, "failed")
        assert failed.reason.startswith("The checksum stage failed: ")
        assert failed.pid is None
        copyfile(TINY, model)  # repaired: it is tried again, and loads
        ready = await web.until_state(wish.instance_id, "ready")
        assert ready.reason == ""


async def test_an_artefacts_folder_that_does_not_answer_holds_up_nothing_else(
    web: FakeWeb, var_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    listed: list[threading.Thread] = []

    def slow(path: Path) -> list[Path]:
        listed.append(threading.current_thread())
        return [path]

    monkeypatch.setattr(page_cache, "weight_files", slow)
    wish, sleeps = a_row(), a_row(state="asleep")
    await web.desire(wish, sleeps)
    async with running_agent(web, var_dir, timings=FAST):
        await web.until_state(wish.instance_id, "ready")
        await web.until(lambda: len(listed) >= 2)
    assert threading.main_thread() not in listed


async def test_many_that_are_read_for_leave_room_for_one_that_starts(web: FakeWeb, var_dir: Path) -> None:
    model = var_dir / "model.gguf"
    copyfile(TINY, model)
    os.truncate(model, 100 << 30)
    asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(4))
    asleep, wish = [a_row(model.as_uri(), state="asleep") for _ in range(6)], a_row()
    await web.desire(*asleep)
    async with running_agent(web, var_dir, timings=FAST):
        await web.until(lambda: all(web.fact(one.instance_id) is not None for one in asleep))
        await web.desire(*asleep, wish)
        await web.until_state(wish.instance_id, "ready")


async def test_who_compares_a_hundred_gigabytes_stops_at_once(web: FakeWeb, var_dir: Path) -> None:
    model = var_dir / "model.gguf"
    copyfile(TINY, model)
    manifest = stated(make_manifest(model))
    os.truncate(model, 100 << 30)  # of nothing, so that it takes no room
    manifest["files"][0].update(bytes=100 << 30)
    manifest["files"][0].pop("tree", None)
    took: list[float] = []
    while len(took) < 3 and min(took, default=5.0) >= 5.0:  # this process may stand still just then
        wish, other = (a_row(model.as_uri(), manifest=manifest, verify_seconds=60.0) for _ in range(2))
        asyncio.get_running_loop().set_default_executor(threads := ThreadPoolExecutor())
        await web.desire(wish)
        async with running_agent(web, var_dir / str(len(took)), timings=FAST):
            await web.until_fact(wish.instance_id, lambda f: "compared" in f.reason)
            await web.desire(msgspec.structs.replace(wish, state="stopped"))
            begun = time.monotonic()
            await web.until_state(wish.instance_id, "stopped")
            await web.desire(other)
            await web.until_fact(other.instance_id, lambda f: "compared" in f.reason)
        threads.shutdown()  # an agent that ends waits for them too
        took.append(time.monotonic() - begun)
    assert min(took) < 5.0


async def test_what_is_read_for_one_that_sleeps_ends_with_its_agent_and_is_taken_up_by_the_next(
    web: FakeWeb, var_dir: Path
) -> None:
    model = var_dir / "model.gguf"
    copyfile(TINY, model)
    os.truncate(model, 1 << 40)  # minutes of reading, though it takes no room
    took: list[float] = []
    while len(took) < 3 and min(took, default=5.0) >= 5.0:  # this process may stand still just then
        wish, folder = a_row(model.as_uri(), state="asleep"), var_dir / str(len(took))
        asyncio.get_running_loop().set_default_executor(threads := ThreadPoolExecutor())
        await web.desire(wish)
        async with running_agent(web, folder, timings=FAST):
            await web.until_fact(wish.instance_id, lambda f: "being read" in f.reason)
        begun = time.monotonic()
        threads.shutdown()
        took.append(time.monotonic() - begun)
    assert min(took) < 5.0
    os.truncate(model, 1 << 20)
    asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor())
    web.forget()
    async with running_agent(web, folder, timings=FAST):
        await web.until(lambda: (f := web.fact(wish.instance_id)) is not None and "Its weights are" in f.reason)
        await web.until(lambda: (f := web.fact(wish.instance_id)) is not None and "being read" not in f.reason)


@pytest.mark.shows("R104")
def test_a_checksum_has_90_seconds_and_a_load_45_by_default() -> None:
    defaults = {field.name: field.default for field in fields(PoolSettings)}
    assert (defaults["verify_seconds"], defaults["device_load_seconds"]) == (90.0, 45.0)


@pytest.mark.shows("R104")
async def test_an_engine_that_does_not_load_onto_its_devices_in_time_says_so_and_leaves_no_cache(
    web: FakeWeb, var_dir: Path
) -> None:
    wish = a_row(device_seconds=0.3, engine_args={"never_loads": True})
    await web.desire(wish)
    async with running_agent(web, var_dir, timings=replace(FAST, stop_grace=0.3)):
        fact = await web.until_fact(wish.instance_id, lambda f: "stage failed" in f.reason)
        assert "The device load stage failed: it was not loaded within 0.3 s." in fact.reason
        caches = var_dir / "agent" / "test" / "model_cache"
        # As a report says that its process has gone: the next start makes another.
        await web.until(
            lambda: (f := web.fact(wish.instance_id)) is not None and f.pid is None and not list(caches.iterdir())
        )


@pytest.mark.shows("P5")
async def test_engines_load_one_after_the_other_on_a_device(web: FakeWeb, var_dir: Path) -> None:
    """Of each report at most one is loading or warming: each measures the free memory that it finds."""
    wishes = [a_row(fencing_token=token, lease_id=token) for token in (1, 2, 3)]
    await web.desire(*wishes)
    async with running_agent(web, var_dir, timings=FAST):
        for wish in wishes:
            await web.until_state(wish.instance_id, "ready")
    at_once = [sum(fact.state in ("loading", "warming") for fact in report.instances) for report in web.observed]
    assert max(at_once) == 1


# Ports


@pytest.mark.shows("P6")
def test_an_engine_with_several_ports_has_them_in_a_row() -> None:
    ports = PortRange(100, 10)
    first = ports.take(set(), 2)
    second = ports.take({100, 101, 102}, 2)
    assert (first, second) == (100, 103)
    assert ports.take({100, 101, 102, 103, 104, 105}) == 106
    with pytest.raises(NoPortLeft, match="No 5 engine ports in a row are left"):
        ports.take({103, 107}, 4)


# Memory


class Engine:
    """One whose process has ended."""

    def __init__(self, *devices: str) -> None:
        self.record = InstanceRecord(row=row(devices=devices, artefact_uri=TINY_URI), phase="draining")
        self.said: list[str] = []

    def remark(self, reason: str) -> None:
        self.said.append(reason)

    def log(self, event: str, **fields: object) -> None:
        self.said.append(event)


def a_shop(path: Path, uses: list[Mapping[int, int | None] | None], *, return_deadline: float = 0.05) -> Workshop:
    """Its device answers with these in turn, and then with the last for ever."""
    return Workshop(
        state=StateDir(path), log_dir=path, ports=PortRange(100, 1), ports_in_use=lambda: (), devices=dict,
        device_use=lambda device: uses.pop(0) if len(uses) > 1 else uses[0], on_change=lambda: None,
        on_end=lambda: None, clock=SystemClock(),
        timings=replace(FAST, load_poll=0.01, return_deadline=return_deadline), cache=ModelCache(path),
    )  # fmt: skip


@pytest.mark.shows("R139")
async def test_a_device_is_waited_for_until_it_has_the_memory_of_an_engine_back(tmp_path: Path) -> None:
    engine = Engine("gpu0")
    stranger = {7: 5 << 30}  # goes on, and is none of ours
    uses: list[Mapping[int, int | None] | None] = [{41: 1 << 30, **stranger}, {41: None, **stranger}, stranger]
    shop = a_shop(tmp_path, uses, return_deadline=30.0)
    assert await memory_held(engine, shop, {41, 42}) == ""
    assert engine.said == ["Its process has ended. Its devices do not have all of their memory back yet."] * 2


@pytest.mark.shows("R139")
async def test_memory_that_does_not_come_back_is_told_and_no_device_is_reset(tmp_path: Path) -> None:
    engine = Engine("gpu0")
    told = await memory_held(engine, a_shop(tmp_path, [{41: 1 << 30}]), {41})
    assert told == ("gpu0 still lists memory of its processes 41, which have ended. Nothing was reset for it.")
    assert engine.said[-1] == "agent.memory_not_returned"
    assert await memory_held(Engine("gpu0"), a_shop(tmp_path, [None]), {41}) == ""  # it does not say


def test_what_is_in_the_page_cache_is_measured(tmp_path: Path) -> None:
    file = tmp_path / "weights"
    file.write_bytes(os.urandom(1 << 20))
    os.sync()
    if cached_share([file]) is None:
        pytest.skip("this machine does not say what is in its page cache")
    assert read_in([file]) == 1 << 20
    assert cached_share([file]) == 1.0
    drop([file])  # where the file system lets go of it
    share = cached_share([file])
    assert share is not None
    assert 0.0 <= share <= 1.0
    assert cached_share([tmp_path / "gone"]) is None
    assert cached_share([]) is None


def test_each_version_has_a_cache_of_its_own_and_the_oldest_go(tmp_path: Path) -> None:
    cache = ModelCache(tmp_path / "model_cache")
    rows = [a_row(f"file:///m{number}") for number in range(25)]
    for number, one in enumerate(rows):
        named = cache.prepare(one)
        os.utime(cache.folder(one), (number, number))
        assert named["XDG_CACHE_HOME"] == str(cache.folder(one))
    assert cache.folder(rows[0]) == cache.folder(msgspec.structs.replace(rows[0], fencing_token=9))
    assert len(list(cache.path.iterdir())) == 21
    assert not cache.folder(rows[0]).exists()
    cache.clean(rows[24])
    assert not cache.folder(rows[24]).exists()
