"""What the wall asks for beside its live frames, and that a tenant is told nothing of others by any of it."""

import csv
import io
from collections.abc import Iterable
from datetime import timedelta
from typing import Any
from uuid import uuid4

import pytest
from django.test import Client
from django.utils import timezone

from dashboard.live.base import Gone, Viewer
from dashboard.live.feeds.gpumem import GpumemFeed
from gpupool.controller.memory import MemoryRecorder
from gpupool.models import Device, MemoryFrame, Model
from tenants.actor import SYSTEM
from tenants.models import Limit, Tenant, TenantRole
from tenants.services import add_member
from tests.dashboard.live.gpumem_decoder import Decoder
from tests.dashboard.people import person
from tests.gpupool.pool import GIB, a_device, an_online_node
from tests.gpupool.reads.test_memory_reads import two_tenants

pytestmark = pytest.mark.django_db
OF_OTHERS = ("rival", "Rival", "common-model", "shared")


def text_of(answer: Iterable[Any]) -> str:
    """Whether it came at once or as a stream."""
    return b"".join(answer).decode()


@pytest.fixture
def device() -> Device:
    """One GPU on which Acme, a rival and everybody have instances, recorded once."""
    two_tenants(an_online_node(a_device("gpu-0")))
    MemoryRecorder(None).record(timezone.now())
    return Device.objects.get()


@pytest.fixture
def member(device: Device) -> Client:
    """A browser of one who may look at Acme."""
    user = person("mia")
    add_member(Tenant.objects.get(slug="acme"), user, role=TenantRole.VIEWER, actor=SYSTEM)
    client = Client()
    client.force_login(user)
    return client


def test_a_frame_of_now_and_of_a_while_ago(operator: Client, device: Device) -> None:
    now = timezone.now().timestamp()
    for address in ("", f"?at={now + 1:.3f}"):
        frame = operator.get(f"/console/gpu-memory/frame/{address}").json()
        assert (frame["v"], frame["unit"], frame["scope"]) == ("gpumem.v1", 1 << 20, "cluster")
        assert frame["nodes"][0][0] == -1
        assert sum(frame["values"]) == 16 * 1024
        assert frame["nodes"][2][4]["used"] == 7168
        assert abs(frame["at"] / 1000 - now) < 30


@pytest.mark.parametrize(
    ("query", "status"),
    [("at=yesterday", 400), ("at=nan", 400), ("at=1e300", 400), ("at=1000", 404), ("at={early}", 404)],
)
def test_what_no_frame_is_kept_of_is_said(operator: Client, device: Device, query: str, status: int) -> None:
    early = (timezone.now() - timedelta(minutes=5)).timestamp()
    answer = operator.get(f"/console/gpu-memory/frame/?{query.format(early=early)}")
    assert answer.status_code == status
    assert answer.json()["detail"].endswith(".")


def test_the_earliest_moment_of_the_slider_is_there_still(operator: Client, device: Device) -> None:
    """It is asked for a little later than it was chosen."""
    at = timezone.now() - timedelta(minutes=15, seconds=20)
    MemoryRecorder(None).record(at)
    answer = operator.get(f"/console/gpu-memory/frame/?at={at.timestamp() + 2:.3f}")
    assert answer.status_code == 200


def test_a_devices_history(operator: Client, device: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    at = MemoryFrame.objects.get().at
    monkeypatch.setattr(timezone, "now", lambda: at)  # the minute that was recorded runs still
    told = operator.get(f"/console/gpu-memory/history/?device={device.pk}&range=1h").json()
    assert (told["device"], told["label"], told["size"], told["step"]) == (str(device.pk), "node-1/0", 16384, 60)
    assert len(told["series"]["weights"]) == 60
    assert told["series"]["weights"][-1] == 4608
    assert told["series"]["weights"][0] is None
    assert list(told["series"])[:2] == ["weights", "kv_used"]


@pytest.mark.parametrize(
    ("query", "status"), [("device=x", 400), ("range=2y&device={device}", 400), ("device={other}", 404)]
)
def test_a_history_that_is_not_there(operator: Client, device: Device, query: str, status: int) -> None:
    address = query.format(device=device.pk, other=uuid4())
    assert operator.get(f"/console/gpu-memory/history/?{address}").status_code == status


def test_the_tree_as_a_table(operator: Client, device: Device) -> None:
    told = operator.get(f"/console/gpu-memory/tree/?device={device.pk}").json()
    assert len(told["rows"]) == 17
    assert told["rows"][0]["segment"] == "weights"
    assert told["summary"]["hole"]["mib"] == 6144
    assert operator.get(f"/console/gpu-memory/tree/?device={uuid4()}").json()["rows"] == []
    assert operator.get(f"/console/gpu-memory/tree/?node={uuid4()}").status_code == 404
    assert operator.get("/console/gpu-memory/tree/?node=x").status_code == 400


def test_the_tree_as_csv_computes_nothing(operator: Client, device: Device) -> None:
    Model.objects.filter(name="acme-model").update(name="=HYPERLINK(1)")
    answer = operator.get("/console/gpu-memory/tree/?format=csv")
    assert answer["Content-Type"].startswith("text/csv")
    rows = list(csv.DictReader(io.StringIO(text_of(answer))))
    assert len(rows) == 17
    assert rows[0]["model"] == "'=HYPERLINK(1)"
    assert sum(int(row["mib"]) for row in rows) == 16 * 1024


def test_a_member_gets_the_own_tenants_and_nothing_of_others(member: Client, device: Device) -> None:
    Limit.objects.create(tenant=Tenant.objects.get(slug="acme"), metric="gpu_memory", amount=8 * GIB)
    now = timezone.now().timestamp() + 1
    for path in (
        "frame/", f"frame/?at={now:.3f}", f"history/?device={device.pk}", "tree/", "tree/?format=csv",
        f"tree/?node={device.node_id}",
    ):  # fmt: skip
        answer = member.get(f"/t/acme/gpu-memory/{path}")
        assert answer.status_code == 200, path
        text = text_of(answer)
        assert "reserved" in text
        assert [word for word in OF_OTHERS if word in text] == [], path
    told = member.get("/t/acme/gpu-memory/tree/").json()
    assert told["quotas"][0]["used_bytes"] == 3 * GIB
    assert told["summary"]["kv_used_mib"] == 256


def test_outsiders_find_nothing(member: Client, device: Device) -> None:
    for path in ("frame/", f"history/?device={device.pk}", "tree/"):
        assert member.get(f"/t/rival/gpu-memory/{path}").status_code == 404
        assert member.get(f"/console/gpu-memory/{path}").status_code == 403
        assert Client().get(f"/t/acme/gpu-memory/{path}").status_code == 302
    assert Client().get("/console/gpu-memory/frame/").status_code == 302


def test_who_may_watch_which_frames() -> None:
    feed = GpumemFeed()
    reader, member = Viewer(1, platform_role="read_only"), Viewer(2, roles={"acme": "viewer"})
    suspended = Viewer(3, roles={"acme": "owner"}, suspended=frozenset({"acme"}))
    node = f"node:{uuid4()}"
    for scope in ("", "cluster", node, "tenant:acme", "tenant:rival"):
        assert feed.may_watch(reader, scope)
        assert feed.may_watch(member, scope) is (scope == "tenant:acme")
        assert not feed.may_watch(suspended, scope)
    for scope in ("node:x", "node:", "elsewhere", "tenant"):
        assert not feed.may_watch(reader, scope)


def test_frames_of_every_scope(device: Device) -> None:
    feed, now = GpumemFeed(), timezone.now()
    told: dict[str, Decoder] = {}
    for scope in ("cluster", f"node:{device.node_id}", "tenant:acme"):
        state, encoder, page = feed.read(scope, now=now), feed.encoder(), Decoder()
        payload = encoder.keyframe(state, epoch=4, seq=9, at=now)
        assert isinstance(payload, bytes)
        page.feed(payload)
        again = encoder.delta(state, epoch=4, seq=10, at=now)
        assert isinstance(again, bytes)
        page.feed(again)
        assert (page.frame["scope"], page.seq, sum(page.values)) == (scope, 10, 16 * 1024)
        told[scope] = page
    assert [word for word in OF_OTHERS if word in str(told["tenant:acme"].frame)] == []
    assert "rival" in str(told["cluster"].frame)
    for scope in ("tenant:nobody", f"node:{uuid4()}"):
        with pytest.raises(Gone):
            feed.read(scope, now=now)
