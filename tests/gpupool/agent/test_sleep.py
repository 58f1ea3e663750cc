"""Engines that sleep and wake on a node, and whose traffic they serve then."""

import asyncio
import json
import os
import urllib.request
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any
from uuid import UUID

import msgspec
import pytest

from core.ids import uuid7
from gpupool.agent.processes import start_mark
from gpupool.policies.tenant_switch import Binding, sign, switch_key, token_digest
from gpupool.stream.messages import DesiredInstance, InstanceFact
from tests.doubles.node_web import FakeWeb, row
from tests.doubles.sleeper import registered, sleeper
from tests.gpupool.agent.conftest import FAST, TINY_URI, running_agent

QUICK = replace(FAST, load_poll=0.05, health_every=0.2, drain_notice=0.1, sleep_retry=0.2)


@pytest.fixture(autouse=True)
def engines() -> Iterator[None]:
    with registered(sleeper()):
        yield


def a_row(state: str = "running", **members: Any) -> DesiredInstance:
    """Of the engine that sleeps."""
    made = row(devices=["cpu-test"], artefact_uri=TINY_URI, engine="sleeper", engine_args={})
    return msgspec.structs.replace(made, state=state, **members)


def to(wish: DesiredInstance, state: str, **members: Any) -> DesiredInstance:
    return msgspec.structs.replace(wish, state=state, **members)


async def talk(fact: InstanceFact, method: str, path: str, body: Any = None) -> Any:
    """What the engine answers, None where that is empty."""

    def ask() -> Any:
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(f"http://127.0.0.1:{fact.port}{path}", data, method=method)
        with urllib.request.urlopen(request, timeout=30) as answer:
            return json.loads(answer.read() or b"null")

    return await asyncio.to_thread(ask)


async def test_an_engine_sleeps_and_wakes_in_the_same_process(web: FakeWeb, var_dir: Path) -> None:
    wish = a_row()
    await web.desire(wish)
    async with running_agent(web, var_dir, timings=QUICK):
        awake = await web.until_state(wish.instance_id, "ready")
        assert awake.load_seconds is not None
        assert awake.started_from in ("cold", "staged")
        await web.desire(to(wish, "asleep"))
        asleep = await web.until_state(wish.instance_id, "asleep")
        assert (asleep.pid, asleep.reason, asleep.wake_seconds) == (awake.pid, "", None)
        assert await talk(asleep, "GET", "/is_sleeping") == {"is_sleeping": True}
        reports = len(web.observed)
        await web.until(lambda: len(web.observed) >= reports + 3)  # it is probed meanwhile
        assert await talk(asleep, "GET", "/is_sleeping") == {"is_sleeping": True}
        await web.desire(wish)
        again = await web.until_state(wish.instance_id, "ready")
        assert (again.pid, again.restarts) == (awake.pid, 0)
        assert again.wake_seconds is not None
        assert (await talk(again, "GET", "/told"))["asked_asleep"] == 0


async def test_it_sleeps_only_once_its_requests_are_done(web: FakeWeb, var_dir: Path) -> None:
    wish = a_row(drain_seconds=60.0)  # one that answers late on a busy machine is not taken for idle
    await web.desire(wish)
    async with running_agent(web, var_dir, timings=QUICK):
        fact = await web.until_state(wish.instance_id, "ready")
        await talk(fact, "POST", "/be?busy=1", {})
        await web.until(lambda: any(load.running == 1 for load in web.observed[-1].load))
        await web.desire(to(wish, "asleep"))
        await web.until(lambda: (f := web.fact(wish.instance_id)) is not None and "finishes its requests" in f.reason)
        reports = len(web.observed)
        await web.until(lambda: len(web.observed) >= reports + 3)
        assert await talk(fact, "GET", "/is_sleeping") == {"is_sleeping": False}
        await talk(fact, "POST", "/be?busy=0", {})
        await web.until_state(wish.instance_id, "asleep")


async def test_one_that_says_no_stays_awake_and_says_why(web: FakeWeb, var_dir: Path) -> None:
    wish = a_row()
    await web.desire(wish)
    async with running_agent(web, var_dir, timings=QUICK):
        fact = await web.until_state(wish.instance_id, "ready")
        await talk(fact, "POST", "/be?refuse=1", {})
        await web.desire(to(wish, "asleep"))
        refused = await web.until_fact(wish.instance_id, lambda f: "with 404" in f.reason)
        assert (refused.state, refused.pid) == ("ready", fact.pid)
        await talk(fact, "POST", "/be?refuse=0", {})
        await web.until_state(wish.instance_id, "asleep")  # asked again after a while


@pytest.mark.shows("P7")
async def test_the_next_agent_adopts_a_sleeping_engine_as_one_that_sleeps(web: FakeWeb, var_dir: Path) -> None:
    wish = a_row()
    await web.desire(wish)
    async with running_agent(web, var_dir, timings=QUICK):
        fact = await web.until_state(wish.instance_id, "ready")
        await web.desire(to(wish, "asleep"))
        await web.until_state(wish.instance_id, "asleep")
    web.forget()
    async with running_agent(web, var_dir, timings=QUICK):
        adopted = await web.until_state(wish.instance_id, "asleep")
        assert adopted.pid == fact.pid
        await web.desire(wish)
        assert (await web.until_state(wish.instance_id, "ready")).pid == fact.pid
        assert (await talk(fact, "GET", "/told"))["asked_asleep"] == 0


async def test_one_that_dies_asleep_stays_down_until_it_is_woken(web: FakeWeb, var_dir: Path) -> None:
    wish = a_row()
    await web.desire(wish)
    async with running_agent(web, var_dir, timings=QUICK):
        fact = await web.until_state(wish.instance_id, "ready")
        await web.desire(to(wish, "asleep"))
        await web.until_state(wish.instance_id, "asleep")
        os.kill(fact.pid or 0, 9)
        await web.until(lambda: (f := web.fact(wish.instance_id)) is not None and f.state == "asleep" and f.pid is None)
        await web.desire(wish)
        again = await web.until_state(wish.instance_id, "ready")
        assert again.pid != fact.pid
        assert again.started_from == "staged"


async def test_an_engine_that_cannot_sleep_is_staged(web: FakeWeb, var_dir: Path) -> None:
    """Its process ends, its weights stay in the page cache, and it starts from there."""
    wish = row(devices=["cpu-test"], artefact_uri=TINY_URI)
    await web.desire(wish)
    async with running_agent(web, var_dir, timings=QUICK):
        fact = await web.until_state(wish.instance_id, "ready")
        await web.desire(to(wish, "asleep"))
        staged = await web.until_fact(wish.instance_id, lambda f: f.state == "asleep" and "page cache" in f.reason)
        assert staged.pid is None
        assert start_mark(fact.pid or 0) is None
        await web.desire(wish)
        again = await web.until_state(wish.instance_id, "ready")
        assert (again.started_from, again.restarts) == ("staged", 0)


async def test_one_that_sleeps_is_stopped_as_any_other(web: FakeWeb, var_dir: Path) -> None:
    wish = a_row()
    await web.desire(wish)
    async with running_agent(web, var_dir, timings=QUICK):
        fact = await web.until_state(wish.instance_id, "ready")
        await web.desire(to(wish, "asleep"))
        await web.until_state(wish.instance_id, "asleep")
        await web.desire(to(wish, "stopped", drain_seconds=30.0))
        await web.until_state(wish.instance_id, "stopped")
        assert start_mark(fact.pid or 0) is None


# Tenants


@pytest.fixture
def key(web: FakeWeb) -> bytes:
    return switch_key(token_digest(web.token))


def bound(wish: DesiredInstance, tenant: UUID, key: bytes, **members: Any) -> DesiredInstance:
    """The row with a tenant's name on it, rightly signed."""
    signature = sign(key, Binding(tenant, wish.instance_id, wish.fencing_token))
    return msgspec.structs.replace(wish, tenant_id=tenant, signature=signature, **members)


@pytest.mark.shows("R17")
async def test_a_forged_row_starts_and_wakes_nothing(web: FakeWeb, var_dir: Path, key: bytes) -> None:
    tenant, other = uuid7(), uuid7()
    wish = a_row()
    await web.desire(msgspec.structs.replace(wish, tenant_id=tenant, signature="0" * 64))
    async with running_agent(web, var_dir, timings=QUICK):
        refused = await web.until_state(wish.instance_id, "failed")
        assert "signature does not match" in refused.reason
        assert (refused.pid, refused.verified_tenant) == (None, None)
        good = bound(wish, tenant, key)
        await web.desire(good)
        ready = await web.until_state(wish.instance_id, "ready")
        assert ready.verified_tenant == tenant
        await web.desire(to(good, "asleep"))
        await web.until_state(wish.instance_id, "asleep")
        await web.desire(bound(wish, other, key))  # signed, but of the same claim
        reports = len(web.observed)
        await web.until(lambda: len(web.observed) >= reports + 3)
        kept = web.fact(wish.instance_id)
        assert kept is not None
        assert (kept.state, kept.verified_tenant) == ("asleep", tenant)


@pytest.mark.shows("R17")
async def test_what_was_bound_stays_bound_when_it_is_staged_under_a_forged_row(
    web: FakeWeb, var_dir: Path, key: bytes
) -> None:
    tenant, other = uuid7(), uuid7()
    wish = a_row(engine_args={"sleep_mode": False})
    await web.desire(bound(wish, tenant, key))
    async with running_agent(web, var_dir, timings=QUICK):
        fact = await web.until_state(wish.instance_id, "ready")
        await web.desire(msgspec.structs.replace(wish, state="asleep", tenant_id=other, signature="0" * 64))
        staged = await web.until_state(wish.instance_id, "asleep")
        assert (staged.pid, staged.verified_tenant) == (None, tenant)
        assert start_mark(fact.pid or 0) is None
        await web.desire(bound(wish, other, key))
        reports = len(web.observed)
        await web.until(lambda: len(web.observed) >= reports + 3)
        kept = web.fact(wish.instance_id)
        assert kept is not None
        assert (kept.state, kept.pid, kept.verified_tenant) == ("asleep", None, tenant)


async def test_one_that_slept_for_nobody_is_bound_and_wakes(web: FakeWeb, var_dir: Path, key: bytes) -> None:
    tenant, wish = uuid7(), a_row()
    await web.desire(wish)
    async with running_agent(web, var_dir, timings=QUICK):
        fact = await web.until_state(wish.instance_id, "ready")
        await talk(fact, "POST", "/invocations", {"user": "somebody"})
        await web.desire(to(wish, "asleep"))
        await web.until_state(wish.instance_id, "asleep")
        await web.desire(bound(wish, tenant, key))
        ready = await web.until_state(wish.instance_id, "ready")
        assert (ready.verified_tenant, ready.pid) == (tenant, fact.pid)
        assert "somebody" not in (await talk(ready, "GET", "/told"))["spoke"]


@pytest.mark.shows("R17")
async def test_a_rotated_token_strands_no_bound_instance(web: FakeWeb, var_dir: Path, key: bytes) -> None:
    """The key changes with the token: what was bound goes on, asleep or awake, under rows that are signed anew."""
    awake, asleep = (bound(a_row(), uuid7(), key) for _ in range(2))
    await web.desire(awake, asleep)
    async with running_agent(web, var_dir, timings=QUICK):
        pids = [(await web.until_state(one.instance_id, "ready")).pid for one in (awake, asleep)]
        await web.desire(awake, to(asleep, "asleep"))
        await web.until_state(asleep.instance_id, "asleep")
    web.forget()
    web.token = "another-token"
    fresh = switch_key(token_digest(web.token))
    rows = [bound(one, one.tenant_id or uuid7(), fresh) for one in (awake, asleep)]
    async with running_agent(web, var_dir, timings=QUICK):
        await web.desire(*rows)
        facts = [await web.until_state(one.instance_id, "ready") for one in rows]
        assert [(fact.pid, fact.verified_tenant) for fact in facts] == [
            (pid, one.tenant_id) for pid, one in zip(pids, rows, strict=True)
        ]
        told = [fact for report in web.observed for fact in report.instances if fact.instance_id == awake.instance_id]
        assert {(fact.state, fact.verified_tenant) for fact in told} == {("ready", awake.tenant_id)}  # all along


@pytest.mark.shows("R19")
async def test_sixteen_tenants_take_turns_on_a_device_without_a_conflict(
    web: FakeWeb, var_dir: Path, key: bytes, capsys: pytest.CaptureFixture[str]
) -> None:
    """At most four awake at a time; whoever wakes speaks to an engine that only ever heard of its own tenant."""
    tenants = [uuid7() for _ in range(16)]
    rows = {tenant: bound(a_row(), tenant, key) for tenant in tenants}
    conflicts, turns = 0, 0
    async with running_agent(web, var_dir, timings=QUICK):
        for first in range(0, 16, 4):  # those that have had their first turn sleep
            up = tenants[first : first + 4]
            await web.desire(*(rows[one] for one in up), *(to(rows[one], "asleep") for one in tenants[:first]))
            for tenant in up:
                await web.until_state(rows[tenant].instance_id, "ready")
        for turn in (0, 5, 2, 7):  # then in another order, four at a time
            up = [tenants[(turn + 4 * n + n) % 16] for n in range(4)]
            await web.desire(*(to(rows[one], "running" if one in up else "asleep") for one in tenants))
            for tenant in up:
                fact = await web.until_state(rows[tenant].instance_id, "ready")
                spoke = (await talk(fact, "POST", "/invocations", {"user": str(tenant)}))["spoke"]
                conflicts += fact.verified_tenant != tenant or bool(set(spoke) - {"", str(tenant)})
                turns += 1
        facts = [web.fact(rows[tenant].instance_id) for tenant in tenants]
        woken = sorted(fact.wake_seconds for fact in facts if fact is not None and fact.wake_seconds is not None)
        loaded = sorted(fact.load_seconds for fact in facts if fact is not None and fact.load_seconds is not None)
        assert (conflicts, turns, len(loaded)) == (0, 16, 16)
        assert len(woken) >= 8
        with capsys.disabled():
            print(
                f"\n16 tenants on one device, {turns} turns, {conflicts} conflicts; to serve from asleep: median "
                f"{woken[len(woken) // 2]:.3f} s, from a start: median {loaded[len(loaded) // 2]:.3f} s"
            )
