"""What is started on one machine, and with which surroundings."""

import stat
from dataclasses import replace
from pathlib import Path

import pytest
from django.core.management import CommandError, call_command
from pytest_django import Settings

from config.environment import Environment
from config.up import house


@pytest.fixture
def environment(tmp_path: Path) -> Environment:
    return Environment(var_dir=tmp_path)


def test_only_what_has_no_address_is_started(environment: Environment, tmp_path: Path) -> None:
    servers = house.plan_servers(environment, tmp_path)
    assert servers.postgres is not None
    assert servers.state is not None
    assert servers.scratch is not None
    given = replace(
        environment, database_url="postgresql://h/n", valkey_state_url="redis://h", valkey_scratch_url="redis://h"
    )
    assert house.plan_servers(given, tmp_path) == house.Servers(None, None, None)


def test_children_get_the_addresses_and_callers_wishes_win_over_ours(environment: Environment) -> None:
    chosen = replace(environment, database_url="postgresql://h/n", relay_port=8081)
    environ = house.child_environ(chosen, {"GATEHOUSE_DRAIN_DEADLINE_SECONDS": "3", "GATEHOUSE_RELAY_PORT": ""})
    assert environ["GATEHOUSE_DRAIN_DEADLINE_SECONDS"] == "3"
    assert environ["GATEHOUSE_DRAIN_NOTICE_SECONDS"] == "0"
    assert environ["DATABASE_URL"] == "postgresql://h/n"
    assert environ["GATEHOUSE_RELAY_PORT"] == "8081"
    assert environ["GATEHOUSE_VAR_DIR"] == str(environment.var_dir)


def test_secret_key_is_made_once_for_this_user_alone(environment: Environment) -> None:
    house.ensure_secret_key(environment)
    path = environment.var_dir / "secret_key"
    first = path.read_text()
    assert len(first) >= 50
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    house.ensure_secret_key(environment)
    assert path.read_text() == first


def test_no_secret_key_is_made_where_one_is_set(environment: Environment) -> None:
    house.ensure_secret_key(replace(environment, secret_key="given"))
    assert not (environment.var_dir / "secret_key").exists()


def test_long_log_is_set_aside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(house, "LONGEST_LOG_BYTES", 10)
    (tmp_path / "relay.log").write_text("x" * 11)
    (tmp_path / "web.log").write_text("x" * 10)
    house.set_aside_long_logs(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["relay.log.1", "web.log"]


def test_web_refuses_to_sign_with_no_key(settings: Settings) -> None:
    settings.SECRET_KEY = "unset-"
    with pytest.raises(CommandError, match="set GATEHOUSE_SECRET_KEY"):
        call_command("web")
