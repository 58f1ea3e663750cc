"""The channel `fleet`: what the overview, the lists and a node's page get, who gets it, and what it costs."""

import json
from datetime import timedelta
from typing import Any
from uuid import uuid4

import pytest
from django.test import Client
from django.utils import timezone
from pytest_django import DjangoAssertNumQueries

from dashboard.frames import ConsoleFrame, build_console_frame
from dashboard.live.base import Gone, Viewer
from dashboard.live.encoders import Rows
from dashboard.live.feeds.fleet import FleetFeed
from gpupool.models import Instance, Node
from gpupool.policies.silence import SILENT_AFTER
from tests.dashboard.people import person, pool, tenant, usage

pytestmark = pytest.mark.django_db
FEED = FleetFeed()


@pytest.mark.parametrize("role", ["superuser", "operator", "read_only"])
def test_who_may_look_at_the_pool_watches_it(role: str) -> None:
    viewer = Viewer(user_id=1, platform_role=role)
    assert all(FEED.may_watch(viewer, scope) for scope in ("", "instances", "nodes", f"node:{uuid4()}"))
    assert not any(FEED.may_watch(viewer, scope) for scope in ("node:", "node:x", "gpu:1", "tenant:acme", "Nodes"))


def test_members_of_tenants_do_not() -> None:
    viewer = Viewer(user_id=1, roles={"acme": "owner"})
    assert not any(FEED.may_watch(viewer, scope) for scope in ("", "instances", "nodes", f"node:{uuid4()}"))


def rows(scope: str) -> dict[str, Any]:
    state = FEED.read(scope, now=timezone.now())
    assert isinstance(state, Rows)
    return dict(state.rows)


def test_lists_get_what_changes_by_itself() -> None:
    made = pool()
    instance = rows("instances")[str(made.instance.pk)]
    assert (instance.state, instance.running, instance.restarts) == ("ready", 2, 0)
    node = rows("nodes")[str(made.device.node_id)]
    assert (node.state, node.running) == ("online", 1)
    of_node = rows(f"node:{made.device.node_id}")
    assert of_node.keys() == {str(made.device.node_id), str(made.device.pk), str(made.instance.pk)}
    assert of_node[str(made.device.pk)].used == 20 * 2**30


@pytest.mark.parametrize("noticed", [True, False])  # without a controller, its node stays online
def test_of_an_instance_of_a_silent_node_nothing_is_told_that_may_be_long_over(client: Client, noticed: bool) -> None:
    made = pool(state="unknown" if noticed else "ready")  # two requests were running on it
    heard = timezone.now() - SILENT_AFTER - timedelta(seconds=1)
    Node.objects.update(state="unreachable" if noticed else "online", last_seen_at=heard)
    Instance.objects.update(kv_used=0.5, device_bytes=2**30)
    name, of_node = str(made.instance.pk), rows(f"node:{made.device.node_id}")
    assert [rows("instances")[name].running, of_node[name].running] == [None, None]
    client.force_login(person("olga", platform_role="operator"))
    shown = client.get(f"/console/instances/{name}/").context["instance"]
    assert (shown.running_now, shown.waiting_now, shown.kv_now, shown.device_bytes_now) == (None, None, None, None)
    assert "running on it now" not in client.get(f"/console/instances/{name}/stop/").content.decode()


def test_an_instance_is_seen_to_stop_and_then_forgotten() -> None:
    made = pool(state="stopped")
    assert rows("instances")[str(made.instance.pk)].state == "stopped"
    Instance.objects.update(state_changed_at=timezone.now() - timedelta(minutes=11))
    assert rows("instances") == {}


def test_a_node_that_is_gone_is_told() -> None:
    with pytest.raises(Gone):
        FEED.read(f"node:{uuid4()}", now=timezone.now())


@pytest.mark.parametrize("scope", ["", "instances", "nodes", "node"])
def test_a_read_costs_the_same_for_a_larger_pool(scope: str, django_assert_num_queries: DjangoAssertNumQueries) -> None:
    made = pool()
    scope = f"node:{made.device.node_id}" if scope == "node" else scope
    queries = {"": 6, "instances": 2, "nodes": 1}.get(scope, 5)
    for more in range(2):
        with django_assert_num_queries(queries):
            FEED.read(scope, now=timezone.now())
        Node.objects.create(name=f"more-{more}", state="online", token_digest=f"{more:064}", token_last_four="0000")
        for _ in range(5):
            Instance.objects.create(version=made.version, node=made.device.node, engine="vllm", state="ready")


def test_rates_are_of_the_last_minute() -> None:
    acme = tenant("acme")
    now = timezone.now().replace(second=30, microsecond=0)
    usage(acme, at=now, requests=60, tokens=300)
    usage(acme, at=now - timedelta(minutes=1), model="b", requests=60, tokens=300)
    usage(acme, at=now - timedelta(minutes=2), model="c", requests=6000, tokens=3000)
    figures = build_console_frame(now=now).figures
    # Half of the previous minute is left of a sliding one.
    assert (figures.requests_per_second, figures.tokens_per_second) == (1.5, 15.0)
    assert (figures.requests, figures.failures) == (90.0, 1.5)


def test_frame_of_a_full_page_stays_small() -> None:
    pool()
    state = FEED.read("", now=timezone.now())
    assert isinstance(state, ConsoleFrame)
    frame = FEED.encoder().keyframe(state, epoch=1, seq=1, at=timezone.now())
    assert len(frame) < 1500
    assert json.loads(frame)["devices"][0]["name"] == "NVIDIA H100"
