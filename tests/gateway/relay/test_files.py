"""How many connections the descriptors allow."""

import resource
from collections.abc import Iterator

import pytest

from gateway.relay.files import allow_connections


@pytest.fixture(autouse=True)
def same_limits_after(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    yield
    monkeypatch.undo()
    resource.setrlimit(resource.RLIMIT_NOFILE, before)


def test_the_soft_limit_is_raised_as_far_as_needed() -> None:
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (1000, hard))
    assert allow_connections(400) == 400
    assert resource.getrlimit(resource.RLIMIT_NOFILE)[0] == 400 * 2 + 256


def test_what_is_enough_is_left_alone() -> None:
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    assert allow_connections(10) == 10
    assert resource.getrlimit(resource.RLIMIT_NOFILE) == before


def test_a_cap_beyond_the_hard_limit_is_lowered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda _: (512, 1256))
    monkeypatch.setattr(resource, "setrlimit", lambda *_: None)
    assert allow_connections(4096) == 500


def test_a_system_that_refuses_keeps_what_there_is(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise ValueError

    monkeypatch.setattr(resource, "getrlimit", lambda _: (656, resource.RLIM_INFINITY))
    monkeypatch.setattr(resource, "setrlimit", refuse)
    assert allow_connections(4096) == 200
