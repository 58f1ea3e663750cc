import json
import socket
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from config.environment import Environment
from config.up.addresses import choose_doors, choosing_ports, local_url, write_runtime_file
from core.embedded.process import StartError
from tests.ports import free_port


@pytest.fixture
def busy() -> Iterator[int]:
    """A port that another program listens on."""
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        server.listen()
        yield server.getsockname()[1]


def test_usual_port_that_is_taken_gives_way(busy: int) -> None:
    doors = choose_doors(Environment(relay_port=busy, web_port=busy), {})
    assert busy < doors.relay_port < doors.web_port


def test_port_that_was_asked_for_is_taken_or_refused(busy: int) -> None:
    port = free_port()
    environ = {"GATEHOUSE_WEB_PORT": str(port)}
    assert choose_doors(Environment(web_port=port), environ).web_port == port
    with pytest.raises(StartError, match=f"GATEHOUSE_WEB_PORT={busy} is taken by another program"):
        choose_doors(Environment(web_port=busy), {"GATEHOUSE_WEB_PORT": str(busy)})


def test_one_port_for_both_is_refused() -> None:
    port = free_port()
    environ = {"GATEHOUSE_WEB_PORT": str(port), "GATEHOUSE_RELAY_PORT": str(port)}
    with pytest.raises(StartError, match="is the relay's port too"):
        choose_doors(Environment(relay_port=port, web_port=port), environ)


def test_two_installations_choose_one_after_the_other(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("config.up.addresses.gettempdir", lambda: str(tmp_path))

    class Waited(Exception):
        pass

    def wait() -> None:
        raise Waited

    with choosing_ports(wait), pytest.raises(Waited), choosing_ports(wait):
        pass
    with choosing_ports(wait):
        pass


@pytest.mark.parametrize(
    ("host", "url"),
    [
        ("127.0.0.1", "http://127.0.0.1:80"),
        ("0.0.0.0", "http://127.0.0.1:80"),
        ("::", "http://[::1]:80"),
        ("10.0.0.1", "http://10.0.0.1:80"),
    ],
)
def test_listening_everywhere_is_reached_on_loopback(host: str, url: str) -> None:
    assert local_url(host, 80) == url


def test_addresses_are_for_this_user_alone(tmp_path: Path) -> None:
    path = tmp_path / "run" / "environment.json"
    for value in ("a", "b"):
        write_runtime_file(path, {"DATABASE_URL": value})
    assert json.loads(path.read_text()) == {"DATABASE_URL": "b"}
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert list(path.parent.iterdir()) == [path]
