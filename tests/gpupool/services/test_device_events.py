"""What nodes tell of their devices, in rows: each event once, as many as are wanted, none forgotten too early."""

from datetime import timedelta

import pytest
from django.utils import timezone

from gpupool import services
from gpupool.models import (
    Device,
    DeviceEvent,
    HealingAction,
)
from gpupool.services import healing as healing_services
from gpupool.stream.desired import kept_events
from gpupool.stream.messages import BadMessage
from tests.gpupool.pool import a_device, a_hello, an_online_node
from tests.gpupool.services.told import an_xid, heal, tell

pytestmark = pytest.mark.django_db


@pytest.mark.shows("P24")
def test_the_same_error_twice_is_two_events_and_a_report_told_again_is_none() -> None:
    node = an_online_node(a_device("gpu-0"))
    assert tell(node, an_xid(1, 31, text="MMU fault"), an_xid(2, 31, text="MMU fault")) == 2
    assert tell(node, an_xid(1, 31, text="MMU fault"), an_xid(2, 31, text="MMU fault"), an_xid(3, 31)) == 1
    assert [row.sequence for row in DeviceEvent.objects.order_by("pk")] == [1, 2, 3]
    assert {row.device.stable_id for row in DeviceEvent.objects.all() if row.device} == {"gpu-0"}
    assert kept_events(node.pk) == 3
    # After a restart of the machine the numbers begin again, and are other events.
    services.apply_hello(node.pk, a_hello(node.name, a_device("gpu-0"), boot_id="second"))
    assert tell(node, an_xid(1, 31)) == 1
    assert kept_events(node.pk) == 1


def test_an_error_that_needs_nothing_says_so_on_the_event() -> None:
    node = an_online_node(a_device("gpu-0"))
    tell(node, an_xid(1, 43), an_xid(2, 13, pid="999", stable_id=""))
    heal()
    assert not HealingAction.objects.exists()
    first, second = DeviceEvent.objects.order_by("pk")
    assert "XID 43" in first.verdict
    assert "no device that we know" in second.verdict


def test_old_events_go_but_for_the_newest_of_each_node() -> None:
    node = an_online_node(a_device("gpu-0"))
    tell(node, an_xid(1, 43), an_xid(2, 43), an_xid(3, 43))
    heal()
    tell(node, an_xid(4, 43))
    later = timezone.now() + timedelta(days=91)
    assert healing_services.prune_events(now=timezone.now()) == 0
    assert healing_services.prune_events(now=later) == 3  # the fourth is not decided yet, and the newest
    heal()
    assert healing_services.prune_events(now=later) == 0
    assert kept_events(node.pk) == 4


def test_a_flood_is_one_row_that_counts_until_an_hour_is_over(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(healing_services, "MOST_EVENTS_AN_HOUR", 5)
    node = an_online_node(a_device("gpu-0"))
    tell(node, *(an_xid(number, 31) for number in range(1, 6)))
    for first in (6, 6, 8):  # one report is sent twice
        tell(node, an_xid(first, 31), an_xid(first + 1, 31))
    rows = list(DeviceEvent.objects.order_by("pk").values_list("sequence", "kind", "data"))
    assert [row[0] for row in rows] == [1, 2, 3, 4, 5, 9]
    assert rows[-1][1:] == ("dropped", {"count": "4"})
    assert kept_events(node.pk) == 9  # its agent need not tell them again
    DeviceEvent.objects.update(received_at=timezone.now() - timedelta(hours=2))
    assert tell(node, an_xid(10, 79)) == 1
    assert DeviceEvent.objects.order_by("-pk")[0].code == 79


def test_a_number_far_ahead_of_the_last_one_is_refused() -> None:
    """Otherwise no agent could go on from there."""
    node = an_online_node(a_device("gpu-0"))
    with pytest.raises(BadMessage, match="far ahead"):
        tell(node, an_xid((1 << 63) - 1, 31))
    assert DeviceEvent.objects.count() == 0
    assert tell(node, an_xid(2000, 31)) == 1


def test_events_that_wait_do_not_keep_healing_from_those_that_come(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gpupool.reads.healing.MOST_EVENTS", 5)
    node = an_online_node(a_device("gpu-0"), a_device("gpu-1"))
    tell(node, *(an_xid(number, 31) for number in range(1, 11)))
    DeviceEvent.objects.update(verdict="It waits for its turn.")
    tell(node, an_xid(11, 79, stable_id="gpu-1"))
    heal()
    assert Device.objects.get(stable_id="gpu-1").isolated_at is not None


def test_the_newest_errors_are_looked_at_beside_new_ones_however_many_there_were(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("gpupool.reads.healing.MOST_EVENTS", 5)
    node = an_online_node(a_device("gpu-0"))
    tell(node, *(an_xid(number, 92) for number in range(1, 11)), an_xid(11, 48))
    heal(), heal(), heal()
    tell(node, an_xid(12, 45))
    heal()
    assert "cleanup after XID 48" in DeviceEvent.objects.get(sequence=12).verdict
