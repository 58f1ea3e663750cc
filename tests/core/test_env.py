"""Typed settings: where a value comes from, and what is said about a wrong one."""

from dataclasses import dataclass
from pathlib import Path

import pytest

from core.env import SettingsError, read, read_file, setting


@dataclass(frozen=True)
class Sample:
    name: str = setting("NAME", "A name.")
    port: int = setting("PORT", "A port.", default=80, minimum=1, maximum=65535)
    share: float = setting("SHARE", "A share.", default=0.5)
    debug: bool = setting("DEBUG", "Debug.", default=False)
    hosts: tuple[str, ...] = setting("HOSTS", "Hosts.", default=())
    folder: Path | None = setting("FOLDER", "A folder.", default=None)
    token: int | None = setting("TOKEN", "A secret number.", default=None, secret=True)


def test_every_kind_is_read() -> None:
    environ = {"NAME": "n", "PORT": "8080", "SHARE": "0.25", "DEBUG": "Yes", "HOSTS": "a, b,,c", "FOLDER": "/x"}
    assert read(Sample, environ) == Sample("n", 8080, 0.25, True, ("a", "b", "c"), Path("/x"), None)


def test_environment_wins_over_file_and_file_over_default() -> None:
    assert read(Sample, {"NAME": "a"}, {"NAME": "b", "PORT": "81"}) == Sample("a", 81)


def test_empty_means_not_set() -> None:
    assert read(Sample, {"NAME": "a", "PORT": ""}).port == 80


def test_all_wrong_values_are_named_at_once() -> None:
    environ = {"PORT": "70000", "SHARE": "half", "DEBUG": "perhaps"}
    with pytest.raises(SettingsError) as caught:
        read(Sample, environ)
    said = str(caught.value)
    for part in ("NAME is not set", "PORT='70000' is above 65535", "SHARE='half' is not a number", "DEBUG='perhaps'"):
        assert part in said


def test_secrets_are_not_repeated() -> None:
    with pytest.raises(SettingsError) as caught:
        read(Sample, {"NAME": "n", "TOKEN": "hunter2"})
    assert "hunter2" not in str(caught.value)
    assert "TOKEN=(hidden)" in str(caught.value)


def test_missing_file_is_no_values(tmp_path: Path) -> None:
    assert read_file(tmp_path / "absent.json") == {}


@pytest.mark.parametrize("text", ["{", "[]", '{"A": 1}'])
def test_broken_file_is_named(tmp_path: Path, text: str) -> None:
    path = tmp_path / "environment.json"
    path.write_text(text)
    with pytest.raises(SettingsError, match=r"environment\.json"):
        read_file(path)
