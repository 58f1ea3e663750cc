"""The console's pages of settings and of the installation's health."""

import dataclasses
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace

import pytest
import redis
from django.core.cache import cache
from django.test import Client
from django.utils import timezone
from pytest_django import Settings

from core.tasks import BATCH_MARK, mark_batch
from dashboard.reads import health
from dashboard.reads.health import Valkey
from dashboard.views.console.health import Part
from gpupool.leases.leader import leader_key
from gpupool.models import StoreEntry, StoreLease
from tenants.models import DeadLetter
from tenants.usage import GROUP, STREAM
from tests.dashboard.tenancy_rows import text_of

pytestmark = pytest.mark.django_db


def part_of(browser: Client, icon: str) -> Part:
    found: Part = next(part for part in browser.get("/console/health/").context["parts"] if part.icon == icon)
    return found


def test_settings_are_told_with_their_source_and_no_secret(
    operator: Client, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GATEHOUSE_METRICS_TOKEN", "hush-hush")
    rows = {row.variable: row for row in operator.get("/console/settings/").context["rows"]}
    assert rows["GATEHOUSE_METRICS_TOKEN"].source == "environment"
    assert rows["DATABASE_URL"].value == "•••"
    assert rows["GATEHOUSE_LOG_FORMAT"].default == "json"
    shown = text_of(operator.get("/console/settings/"))
    assert settings.GATEHOUSE.database_url not in shown
    assert "hush-hush" not in shown


def test_what_a_setting_means_is_said_and_found_in_the_readers_language(
    operator: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dashboard.reads.process_settings.gettext", lambda text: f"日志：{text}")
    rows = operator.get("/console/settings/", {"q": "日志：json"}).context["rows"]
    assert [(row.variable, row.help) for row in rows] == [("GATEHOUSE_LOG_FORMAT", "日志：json or console.")]


@pytest.mark.parametrize(
    ("url", "told"),
    [
        ("redis://user:pass@host:1/0", "redis://user:•••@host:1/0"),
        ("redis://host:1/0", "redis://host:1/0"),
        ("http://user@host/x", "http://user@host/x"),
        ("plain@text", "plain@text"),
        ("postgres://user:pa/ss@word@host/x", "postgres://user:•••@host/x"),
        ("redis://:pass@host:1/0", "redis://:•••@host:1/0"),
        ("Error 111 connecting to redis://u:p@host.", "Error 111 connecting to redis://u:•••@host."),
        ("https://host/x?db=1&sslpassword=hush&api_key=k#f", "https://host/x?db=1&sslpassword=•••&api_key=•••#f"),
    ],
)
def test_passwords_in_addresses_are_masked(url: str, told: str) -> None:
    from dashboard.reads.process_settings import without_password

    assert without_password(url) == told


def test_health_tells_each_part_and_what_nobody_knows(operator: Client, valkey_url: str) -> None:
    cache.delete(BATCH_MARK)
    parts = {part.icon: part for part in operator.get("/console/health/").context["parts"]}
    assert parts["calendar-time"].state == "unknown"
    assert parts["receipt"].state == "fine"
    assert parts["server-2"].state == "broken"  # no controller leads here
    mark_batch()
    parts = {part.icon: part for part in operator.get("/console/health/").context["parts"]}
    assert parts["calendar-time"].state == "fine"


def test_a_valkey_that_is_away_is_broken_and_what_it_knows_is_unknown(operator: Client, settings: Settings) -> None:
    settings.GATEHOUSE = dataclasses.replace(
        settings.GATEHOUSE, valkey_state_url="redis://127.0.0.1:1/0", valkey_scratch_url=None
    )
    told = operator.get("/console/health/")
    parts = {part.name: part for part in told.context["parts"]}
    assert parts["Valkey · state"].state == "broken"
    assert parts["Ledger"].state == "unknown"
    assert parts["Relay and web"].state == "unknown"
    assert dict(parts["Ledger"].facts)["Rows waiting"] == "unknown"
    assert told.context["worst"] == "broken"


def test_health_names_engines_and_what_brought_them(operator: Client) -> None:
    text = text_of(operator.get("/console/health/"))
    assert "gatehouse.engines" in text
    assert "vLLM" in text


def test_a_controller_whose_time_is_over_leads_no_more_though_nobody_has_swept(
    operator: Client, settings: Settings
) -> None:
    now = timezone.now()
    lease = StoreLease.objects.create(lease_id=7, ttl_seconds=5, expires_at=now + timedelta(hours=1))
    StoreEntry.objects.create(
        key=leader_key("controller"), value=b"gpu-01:42", create_revision=1, mod_revision=1, lease=lease
    )
    told = part_of(operator, "server-2")
    assert (told.state, dict(told.facts)["Controller"]) == ("fine", "gpu-01:42")
    StoreLease.objects.update(expires_at=now - timedelta(seconds=1))
    told = part_of(operator, "server-2")
    assert (told.state, dict(told.facts)["Controller"]) == ("broken", "nobody")
    assert dict(told.facts)["Publisher of live pages"].startswith("nobody: ")  # which is no fault
    settings.GATEHOUSE = dataclasses.replace(settings.GATEHOUSE, valkey_scratch_url=None)
    assert dict(part_of(operator, "server-2").facts)["Publisher of live pages"] == "each web process for its own"


def test_a_spool_is_held_against_its_own_bound_and_one_that_is_nearly_full_is_told(
    operator: Client, settings: Settings, tmp_path: Path, valkey_url: str
) -> None:
    settings.GATEHOUSE = dataclasses.replace(settings.GATEHOUSE, var_dir=tmp_path, spool_cap_bytes=1024**2)
    for name, kib in (("a", 700), ("b", 700), (".draft", 1000)):
        (tmp_path / "spool" / name).mkdir(parents=True)
        (tmp_path / "spool" / name / "00000001.seg").write_bytes(bytes(kib * 1024))
    told = part_of(operator, "receipt")
    assert (told.state, dict(told.facts)["Spools on this machine"]) == ("fine", "2, the fullest 700 KiB of 1.0 MiB")
    (tmp_path / "spool" / "b" / "00000002.seg").write_bytes(bytes(200 * 1024))
    assert part_of(operator, "receipt").state == "warning"
    shown = operator.get("/console/overview/attention/").context["attention"]
    assert [item for item in shown if item.kind == "spool_full"]


def test_a_stream_that_no_living_drain_reads_is_told_before_it_is_behind(
    operator: Client, settings: Settings, valkey_url: str
) -> None:
    stream = settings.GATEHOUSE.valkey_prefix + STREAM
    with redis.Redis.from_url(valkey_url) as client:
        client.xadd(stream, {"row": b"x"})
        told = part_of(operator, "receipt")
        assert (told.state, dict(told.facts)["Readers"]) == ("warning", "0")
        client.xgroup_create(stream, GROUP, id="0")
        client.xgroup_createconsumer(stream, GROUP, "drain-1")
        assert dict(part_of(operator, "receipt").facts)["Readers"] == "1"
        assert part_of(operator, "receipt").state == "fine"


def test_a_drain_that_died_is_no_reader(monkeypatch: pytest.MonkeyPatch) -> None:
    client = SimpleNamespace(
        xinfo_groups=lambda name: [{"name": GROUP.encode()}],
        xinfo_consumers=lambda name, group: [
            {"idle": 900, "inactive": -1},
            {"idle": 61_000, "inactive": 70_000},
            {"idle": 61_000},  # of an older server, whose word is of rows alone
        ],
    )
    assert health._readers(client, "s") == 2  # type: ignore[arg-type]  # what is asked of one


@pytest.mark.parametrize(
    ("told", "state", "word"),
    [
        (Valkey("state", True, used_bytes=10, most_bytes=100, policy="noeviction", persistent=True), "fine", "answers"),
        (Valkey("state", True, used_bytes=80, most_bytes=100, policy="noeviction"), "warning", "requests get 503"),
        (Valkey("scratch", True, used_bytes=80, most_bytes=100, policy="noeviction"), "warning", "no task"),
        (Valkey("state", True, error="away"), "broken", "requests spend"),
        (Valkey("scratch", True, error="away"), "broken", "requests do not need it"),
        (Valkey("state", True, used_bytes=10, policy="allkeys-lru"), "warning", "noeviction"),
        (Valkey("state", True, used_bytes=10, policy="noeviction", persistent=False), "warning", "append-only"),
        (Valkey("scratch", True, used_bytes=99, most_bytes=100, policy="volatile-lru", persistent=False), "fine", ""),
        (Valkey("scratch", True, policy="allkeys-lfu"), "warning", "volatile-lru"),
    ],
)
def test_a_valkey_that_will_lose_or_refuse_something_is_not_fine(
    operator: Client, monkeypatch: pytest.MonkeyPatch, told: Valkey, state: str, word: str
) -> None:
    monkeypatch.setattr(
        health, "read_valkey", lambda role, url: told if role == told.role else Valkey(role, configured=False)
    )
    parts = {part.name: part for part in operator.get("/console/health/").context["parts"]}
    found = parts[f"Valkey · {told.role}"]
    assert found.state == state
    assert word in found.said


def test_doors_that_nobody_stands_at_are_broken_and_why_a_process_serves_nothing_is_said(
    operator: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(health, "read_counters", lambda now: (0, "ready"))
    assert part_of(operator, "route").state == "broken"
    monkeypatch.setattr(health, "read_counters", lambda now: (2, "ready"))
    assert part_of(operator, "route").state == "fine"
    monkeypatch.setattr(health, "read_counters", lambda now: (2, "lost"))
    told = part_of(operator, "route")
    assert (told.state, dict(told.facts)["Counters of limits"]) == ("broken", "lost")
    runtime = SimpleNamespace(ready=lambda: "the configuration store is away for too long")
    monkeypatch.setattr(health, "installed_runtime", lambda: runtime)
    told = part_of(operator, "route")
    assert told.state == "broken"
    assert told.said == "This process takes no requests: the configuration store is away for too long."


def test_dead_letters_lead_whoever_may_open_them_to_them(root: Client) -> None:
    assert "deadletter" not in text_of(root.get("/console/health/"))
    DeadLetter.objects.create(entry_id="1-1", payload=b"x", reason="no such key")
    part = part_of(root, "receipt")
    assert part.state == "warning"
    ((_label, address),) = part.links
    assert root.get(address).status_code == 200
