"""The console's pages of settings and of the installation's health."""

import pytest
from django.core.cache import cache
from django.test import Client
from pytest_django import Settings

from core.tasks import BATCH_MARK, mark_batch
from tests.dashboard.tenancy_rows import text_of

pytestmark = pytest.mark.django_db


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
    import dataclasses

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
