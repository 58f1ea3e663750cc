"""What the controller reads: which endings of a version's instances count against it."""

import pytest
from django.utils import timezone

from gpupool import services
from gpupool.controller.world import read_world
from gpupool.models import Device, ModelVersion
from gpupool.policies.lease import Refused
from gpupool.policies.reconcile import VersionView
from gpupool.selectors import list_devices_overview
from tenants.actor import SYSTEM
from tests.gpupool.pool import a_device, a_version, an_online_node, place_one, seen

pytestmark = pytest.mark.django_db


def _view(version: ModelVersion) -> VersionView:
    world = read_world(now=timezone.now(), connected=[], live_nodes=[], answering=[])
    (view,) = [view for view in world.versions if view.version_id == version.pk]
    return view


def test_an_instance_that_failed_and_was_replaced_counts() -> None:
    node, version = an_online_node(a_device("gpu-0")), a_version("m", replicas=1)
    for _ in range(2):
        instance = place_one(version, node)
        services.apply_observed(node.pk, node.session, seen(instance, "failed", reason="no such file"))
        services.stop_instance(instance.pk, actor=SYSTEM)
    view = _view(version)
    assert view.failures == 2
    assert view.last_failure_at is not None


def test_one_that_was_ready_ends_the_row() -> None:
    node, version = an_online_node(a_device("gpu-0")), a_version("m", replicas=1)
    instance = place_one(version, node)
    services.apply_observed(node.pk, node.session, seen(instance, "ready", pid=7, port=21000))
    services.stop_instance(instance.pk, actor=SYSTEM)
    services.apply_observed(node.pk, node.session, seen(instance, "stopped"))
    assert _view(version).failures == 0


def test_one_that_only_waited_for_a_place_did_not_fail() -> None:
    version = a_version("m", replicas=1)
    for _ in range(5):  # wanted, and taken back before there was room
        services.stop_instance(services.request_instance(version.pk, actor=SYSTEM).pk, actor=SYSTEM)
    assert _view(version).failures == 0


def test_a_node_in_maintenance_takes_nothing_new_and_says_why() -> None:
    node, version = an_online_node(a_device("gpu-0")), a_version("m", replicas=1)
    services.set_node_maintenance(node.pk, True, reason="A fan is being replaced.", actor=SYSTEM)
    (view,) = read_world(now=timezone.now(), connected=[node.pk], live_nodes=[node.pk], answering=[]).nodes
    assert view.maintenance
    instance = services.request_instance(version.pk, actor=SYSTEM)
    refused = services.claim_and_place(instance.pk, Device.objects.get().pk, actor=SYSTEM)
    assert isinstance(refused, Refused)
    assert refused.reason == "Node node-1 is in maintenance."
    assert list_devices_overview()[0].schedulable_bytes == 0
