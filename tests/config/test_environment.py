from pathlib import Path

import pytest

from config.environment import BASE_DIR, Environment
from core.env import SettingsError, read


def test_defaults_need_nothing_set() -> None:
    environment = read(Environment, {})
    assert environment.var_dir == BASE_DIR / "var"
    assert environment.public_relay_url == "http://127.0.0.1:8080"
    assert environment.public_web_url == "http://127.0.0.1:8000"
    assert environment.runtime_file == BASE_DIR / "var" / "run" / "environment.json"


def test_public_addresses_can_be_named() -> None:
    environ = {"GATEHOUSE_RELAY_URL": "https://api.example.test", "GATEHOUSE_VAR_DIR": "~/house"}
    environment = read(Environment, environ)
    assert environment.public_relay_url == "https://api.example.test"
    assert environment.var_dir == Path("~/house").expanduser()


@pytest.mark.parametrize(
    ("variable", "value"),
    [
        ("GATEHOUSE_RELAY_PORT", "0"),
        ("GATEHOUSE_WEB_PORT", "http"),
        ("GATEHOUSE_HOST_MEMORY_SHARE", "1.5"),
        ("GATEHOUSE_DEBUG", "2"),
    ],
)
def test_wrong_value_names_its_variable(variable: str, value: str) -> None:
    with pytest.raises(SettingsError, match=variable):
        read(Environment, {variable: value})
