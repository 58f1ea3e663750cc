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


@pytest.mark.parametrize("url", ["https://gw.example.test", "http://10.0.0.1:8000/", "http://[::1]:8000"])
def test_the_address_that_links_begin_with_is_one_of_the_web(url: str) -> None:
    settings = read(Environment, {"GATEHOUSE_WEB_URL": url, "GATEHOUSE_RELAY_URL": url})
    assert (settings.public_web_url, settings.public_relay_url) == (url.rstrip("/"), url.rstrip("/"))


@pytest.mark.parametrize("variable", ["GATEHOUSE_WEB_URL", "GATEHOUSE_RELAY_URL"])
@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("gw.example.test", "no address"),
        ("ftp://gw.example.test", "no address"),
        ("javascript:alert(1)", "no address"),
        ("https://", "no address"),
        ("https://gw.example.test:http", "no address"),
        ("https://gw.example.test\nBcc: x", "no address"),
        ("https://eve:secret@gw.example.test", "a user or a password"),
        ("https://gw.example.test/?next=", "behind its host"),
        ("https://gw.example.test/#", "behind its host"),
    ],
)
def test_what_links_cannot_begin_with_stops_the_start_and_shows_no_password(variable: str, url: str, said: str) -> None:
    with pytest.raises(SettingsError, match=f"{variable}=.*{said}") as raised:
        read(Environment, {variable: url})
    assert "secret" not in str(raised.value)
