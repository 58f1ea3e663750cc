"""What runs without a claim is reported, and what has one is not."""

import msgspec
import pytest

from gpupool import services
from gpupool.reads.unleased import list_unleased
from tenants.actor import SYSTEM
from tests.gpupool.pool import a_device, a_version, an_online_node, place_one

pytestmark = pytest.mark.django_db


@pytest.mark.shows("P12")
def test_processes_on_a_device_that_nobody_claimed_are_named_and_others_are_not() -> None:
    busy = [{"pid": 77, "name": "python", "memory_bytes": 5}, {"pid": 78}]
    node = an_online_node(
        msgspec.structs.replace(a_device("gpu-0"), processes=busy),
        msgspec.structs.replace(a_device("gpu-1"), processes=busy),
        a_device("gpu-2"),
    )
    place_one(a_version("m"), node)  # on gpu-0
    (found,) = list_unleased()
    assert (found.node, found.device) == ("node-1", "gpu-1")
    assert found.processes == ((77, "python", 5), (78, "", None))
    assert str(found) == "node-1/gpu-1: python (77), a process (78)"
    services.mark_node_unreachable(node.pk, reason="silent", actor=SYSTEM)
    assert list_unleased() == []  # what it said last is no knowledge of now
