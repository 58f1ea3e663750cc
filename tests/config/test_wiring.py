"""The runtime that doors are served with: it starts, follows hints, and leaves nothing behind."""

import asyncio
import threading
from dataclasses import replace
from pathlib import Path
from unittest.mock import AsyncMock

import pytest
from django.db import connection

from config.environment import Environment, environment
from config.wiring import SPOOL_FOLDER, build_drain, build_relay_runtime, build_web_runtime
from core.env import SettingsError
from core.tls import outbound_context
from tenants.actor import SYSTEM
from tenants.services import create_tenant
from tests.doubles.authority import Authority

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def settings_here(tmp_path: Path, valkey_url: str) -> Environment:
    """This run's servers, a folder of its own, and polls so rare that only hints can explain anything."""
    return replace(environment(), var_dir=tmp_path, snapshot_poll_seconds=300.0)


def _make_tenant(slug: str) -> object:
    try:
        return create_tenant(slug=slug, name="Acme", actor=SYSTEM).pk
    finally:
        connection.close()


async def test_a_write_is_seen_at_its_hint(settings_here: Environment) -> None:
    runtime = build_relay_runtime(settings_here)
    assert runtime.ready() == "starting"
    await runtime.start()
    try:
        assert runtime.ready() is None
        before = runtime.snapshot.version
        async with asyncio.timeout(60):
            number = 0
            while runtime.snapshot.version == before:  # the subscription may come after the first hints
                number += 1
                await asyncio.to_thread(_make_tenant, f"acme-{number}")
                await asyncio.sleep(0.1)
    finally:
        await runtime.stop()
    assert list((settings_here.var_dir / SPOOL_FOLDER).iterdir()) == []


async def test_without_valkey_the_doors_open_all_the_same(settings_here: Environment) -> None:
    runtime = build_web_runtime(replace(settings_here, valkey_state_url=None, valkey_scratch_url=None))
    await runtime.start()
    assert runtime.ready() is None
    await runtime.stop()


async def test_what_fails_at_the_end_leaves_nothing_open(
    settings_here: Environment, monkeypatch: pytest.MonkeyPatch
) -> None:
    runtime = build_web_runtime(replace(settings_here, valkey_state_url=None, valkey_scratch_url=None))
    await runtime.start()
    monkeypatch.setattr(runtime.upstream, "aclose", AsyncMock(side_effect=OSError("torn")))
    with pytest.raises(OSError, match="torn"):
        await runtime.stop()
    assert list((settings_here.var_dir / SPOOL_FOLDER).iterdir()) == []  # closed, with nothing in it


async def test_a_spool_that_cannot_be_made_stops_the_start_with_a_sentence(settings_here: Environment) -> None:
    (settings_here.var_dir / SPOOL_FOLDER).write_text("in the way")
    with pytest.raises(SettingsError, match=r"the usage spool under .* cannot be made"):
        await build_relay_runtime(settings_here).start()


def test_a_drain_ends_when_told_to(settings_here: Environment) -> None:
    stop = threading.Event()
    drain = threading.Thread(target=build_drain(settings_here, stop).run)
    drain.start()
    stop.set()
    drain.join(timeout=60)
    assert not drain.is_alive()


async def test_a_wrong_ca_file_stops_the_start_with_a_sentence(settings_here: Environment, tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=r"GATEHOUSE_ENGINE_CA_FILE=.* cannot be read: No such file"):
        await build_relay_runtime(replace(settings_here, engine_ca_file=tmp_path / "none.pem")).start()


async def test_a_wrong_ca_file_for_key_sets_stops_the_start_too(settings_here: Environment, tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=r"GATEHOUSE_OUTBOUND_CA_FILE=.* cannot be read: No such file"):
        await build_relay_runtime(replace(settings_here, outbound_ca_file=tmp_path / "none.pem")).start()


async def test_key_sets_are_fetched_with_the_certificates_of_the_setting(
    settings_here: Environment, tmp_path: Path
) -> None:
    ca_file = Authority(tmp_path).ca_file
    runtime = build_web_runtime(
        replace(settings_here, valkey_state_url=None, valkey_scratch_url=None, outbound_ca_file=ca_file)
    )
    await runtime.start()
    assert runtime._keysets._fetcher is runtime._outbound
    assert runtime._outbound.tls is outbound_context(ca_file)
    await runtime.stop()


async def test_engines_behind_https_are_verified(settings_here: Environment) -> None:
    runtime = build_web_runtime(replace(settings_here, valkey_state_url=None, valkey_scratch_url=None))
    await runtime.start()
    assert runtime.upstream.tls.check_hostname
    await runtime.stop()


async def test_a_wrong_way_of_coalescing_stops_the_start_with_a_sentence(settings_here: Environment) -> None:
    with pytest.raises(SettingsError, match=r"GATEHOUSE_COALESCE: .*always.* it is off or deterministic"):
        await build_relay_runtime(replace(settings_here, coalesce="always")).start()
