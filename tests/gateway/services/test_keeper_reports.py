"""What a process reports in several messages is compared with the ledger once it has come to its end."""

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import redis

from core.ids import uuid7
from gateway.services.limit_counters import KeeperStopped
from tests.gateway.services.limit_rig import Rig

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def rig(valkey_url: str, tmp_path: Path) -> Iterator[Rig]:
    with redis.Redis.from_url(valkey_url, decode_responses=True) as client:
        yield Rig(client, tmp_path / "spool")


@pytest.mark.shows("G5")
def test_the_middle_of_a_report_is_not_compared(rig: Rig) -> None:
    """Its first counters are ahead of the sequence that it has reported up to: that is not too much."""
    limit, other = rig.limit("tokens"), rig.limit("output_tokens")
    rig.keeper.turn()
    process = rig.process()
    process.join()
    rig.spend(process.id, 1)
    process.report(rig.counter(limit), used=7, given=0, through=0, more=True)
    rest = threading.Timer(0.2, process.report, (rig.counter(other),), {"used": 4, "given": 0, "through": 1})
    rest.start()
    assert {one.applied for one in rig.keeper.compare_now()} == {0}
    rest.join()
    assert rig.counts(limit) == (7, 0)


def test_a_report_without_an_end_is_not_waited_for_unless_its_process_lives(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gateway.services.limit_counters._PARTIAL_SECONDS", (0.01,) * 3)
    limit = rig.limit("tokens")
    rig.keeper.turn()
    process = rig.process(uuid7())
    process.join()
    process.report(rig.counter(limit), used=7, given=0, through=0, more=True)
    with pytest.raises(KeeperStopped):
        rig.keeper.compare_now()
    process.die()
    rig.keeper.compare_now()
    process.join()
    process.report(rig.counter(limit), used=0, given=0, through=0)
    rig.keeper.compare_now()
