"""A keeper stays one for as long as its work takes, however long the ledger takes to be read."""

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import redis

from gateway.services import limit_counters, limit_keeper
from gateway.services.limit_base import read_base
from gateway.services.limit_counters import KeeperStopped, LimitCounters
from tests.gateway.services.limit_rig import PREFIX, Rig

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def rig(valkey_url: str, tmp_path: Path) -> Iterator[Rig]:
    with redis.Redis.from_url(valkey_url, decode_responses=True) as client:
        yield Rig(client, tmp_path / "spool")


@pytest.mark.parametrize("work", ["read_base", "compare"])
def test_a_ledger_that_takes_long_to_read_costs_no_lock(rig: Rig, monkeypatch: pytest.MonkeyPatch, work: str) -> None:
    """Else a rebuild that takes longer than the lock lasts would be thrown away at its end, again and again."""
    monkeypatch.setattr(limit_counters, "LOCK_SECONDS", 4)
    if work == "compare":
        rig.keeper.turn()
    read = getattr(limit_keeper, work)

    def read_slowly(*arguments: Any, **more: Any) -> Any:
        assert not threading.Event().wait(5.2)
        assert not LimitCounters(rig.client, prefix=PREFIX).lock()
        return read(*arguments, **more)

    monkeypatch.setattr(limit_keeper, work, read_slowly)
    rig.keeper.turn()
    assert rig.state("gen")["state"] == "ready"
    assert not rig.client.exists(f"{PREFIX}lim:keeper")


def test_a_lock_that_was_taken_over_is_not_taken_back(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limit_counters, "LOCK_SECONDS", 1)
    read = read_base

    def lose_it(*arguments: Any, **more: Any) -> Any:
        rig.client.set(f"{PREFIX}lim:keeper", "another")
        assert not threading.Event().wait(0.7)
        return read(*arguments, **more)

    monkeypatch.setattr(limit_keeper, "read_base", lose_it)
    with pytest.raises(KeeperStopped):
        rig.keeper.turn()
    assert rig.client.get(f"{PREFIX}lim:keeper") == "another"
    assert rig.state("gen")["state"] == "rebuilding"
