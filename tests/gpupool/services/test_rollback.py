"""A version that cannot be loaded gives way to the last one that could."""

from datetime import timedelta

import msgspec
import pytest
from django.utils import timezone

from core.clock import ManualClock, SystemClock
from gpupool import services
from gpupool.controller.upkeep import keep_up_once
from gpupool.models import Instance, InstanceState, ModelVersion, VersionState
from gpupool.reads.instances import read_candidates
from gpupool.services.inventory import apply_observed
from tenants.actor import SYSTEM
from tenants.models import AuditEvent
from tests.factories import make_tenant
from tests.gpupool.pool import a_device, a_version, an_online_node, place_one, seen

pytestmark = pytest.mark.django_db


def stands(version: ModelVersion) -> tuple[str, int, bool]:
    version.refresh_from_db()
    return version.state, version.replicas, version.last_stable_at is not None


@pytest.mark.shows("R104")
def test_a_new_version_that_fails_to_load_is_rolled_back_to_the_last_stable_one() -> None:
    node = an_online_node(a_device("gpu0"))
    old = a_version("m", replicas=1)
    good = place_one(old, node)
    apply_observed(node.pk, node.session, seen(good, "ready", pid=1, port=21_000))
    assert stands(old) == (VersionState.SERVING, 1, True)
    services.set_replicas(old.pk, 0, actor=SYSTEM)
    services.stop_instance(good.pk, actor=SYSTEM)
    apply_observed(node.pk, node.session, seen(good, "stopped"))

    new = a_version("m", replicas=2)
    bad = place_one(new, node)
    reason = "The checksum stage failed: model.gguf differs from the manifest."
    apply_observed(node.pk, node.session, seen(bad, "failed", reason=reason))
    keep_up_once(None, clock=SystemClock(), failed_grace_seconds=30)
    assert stands(new)[0] == VersionState.SERVING  # its node still tries

    Instance.objects.filter(pk=bad.pk).update(state_changed_at=timezone.now() - timedelta(seconds=31))
    keep_up_once(None, clock=SystemClock(), failed_grace_seconds=30)
    assert stands(new) == (VersionState.ADMITTED, 0, False)
    assert stands(old) == (VersionState.SERVING, 2, True)
    assert new.state_reason == (
        f"m v2 was never ready and failed, so m v1 serves again, which was. The last word of it: {reason}"
    )
    (event,) = AuditEvent.objects.filter(action="model_version.rolled_back")
    assert event.after == {"serving": "v1", "replicas": 2, "reason": new.state_reason}
    assert read_candidates() == {}
    keep_up_once(None, clock=SystemClock(), failed_grace_seconds=30)  # once
    assert AuditEvent.objects.filter(action="model_version.rolled_back").count() == 1


def test_what_was_overtaken_or_retired_is_left_alone() -> None:
    old, new = a_version("m", replicas=1), a_version("m", replicas=1)
    services.roll_back_version(new.pk, old.pk, reason="It failed.", actor=SYSTEM)  # the other was never stable
    assert stands(new)[0] == VersionState.SERVING
    ModelVersion.objects.filter(pk=old.pk).update(last_stable_at=timezone.now(), state=VersionState.RETIRED)
    assert read_candidates() == {}  # what somebody took out stays out
    services.roll_back_version(new.pk, old.pk, reason="It failed.", actor=SYSTEM)
    assert stands(new)[0] == VersionState.SERVING
    ModelVersion.objects.filter(pk=old.pk).update(state=VersionState.SERVING)
    ModelVersion.objects.filter(pk=new.pk).update(last_stable_at=timezone.now())  # it came up after all
    services.roll_back_version(new.pk, old.pk, reason="It failed.", actor=SYSTEM)
    assert stands(new)[0] == VersionState.SERVING
    with pytest.raises(ModelVersion.DoesNotExist):
        services.roll_back_version(new.pk, new.model_id, reason="", actor=SYSTEM)


def test_nobody_is_rolled_back_to_anothers_own_version() -> None:
    theirs, new = a_version("m", replicas=1), a_version("m", replicas=1)
    ModelVersion.objects.filter(pk=theirs.pk).update(last_stable_at=timezone.now(), tenant_id=make_tenant().pk)
    assert [[one.version_id for one in versions] for versions in read_candidates().values()] == [[theirs.pk], [new.pk]]
    services.roll_back_version(new.pk, theirs.pk, reason="It failed.", actor=SYSTEM)
    assert stands(new)[0] == VersionState.SERVING


def test_what_happened_to_a_tenants_own_version_is_the_tenants_to_read() -> None:
    tenant = make_tenant()
    old, new = a_version("m", replicas=1), a_version("m", replicas=1)
    ModelVersion.objects.filter(pk__in=(old.pk, new.pk)).update(tenant_id=tenant.pk)
    ModelVersion.objects.filter(pk=old.pk).update(last_stable_at=timezone.now())
    services.roll_back_version(new.pk, old.pk, reason="It failed.", actor=SYSTEM)
    assert AuditEvent.objects.get(action="model_version.rolled_back").tenant_id == tenant.pk


def test_one_that_was_replaced_after_it_failed_counts_as_having_failed() -> None:
    node = an_online_node(a_device("gpu0"))
    old, new = a_version("m", replicas=1), a_version("m", replicas=1)
    ModelVersion.objects.filter(pk=old.pk).update(last_stable_at=timezone.now())
    bad = place_one(new, node)
    failed = seen(bad, "failed", reason="No.")
    fact = msgspec.structs.replace(failed.instances[0], restarts=5)
    apply_observed(node.pk, node.session, msgspec.structs.replace(failed, instances=[fact]))
    services.stop_instance(bad.pk, actor=SYSTEM, reason="Replaced after it failed: No.")
    gone = seen(bad, "stopped")
    fact = msgspec.structs.replace(gone.instances[0], restarts=5)
    apply_observed(node.pk, node.session, msgspec.structs.replace(gone, instances=[fact]))
    bad.refresh_from_db()
    assert bad.state == InstanceState.STOPPED
    keep_up_once(None, clock=SystemClock(), failed_grace_seconds=30)
    assert stands(new)[0] == VersionState.ADMITTED


def test_further_tries_of_its_agent_do_not_begin_the_time_anew() -> None:
    node = an_online_node(a_device("gpu0"))
    old, new = a_version("m", replicas=1), a_version("m", replicas=1)
    ModelVersion.objects.filter(pk=old.pk).update(last_stable_at=timezone.now())
    bad = place_one(new, node)
    for state in ("failed", "staging", "failed"):
        apply_observed(node.pk, node.session, seen(bad, state, reason="No such file."))
    first = bad.events.filter(value=InstanceState.FAILED).earliest("pk")
    for seconds, expected in ((29, VersionState.SERVING), (31, VersionState.ADMITTED)):
        now = timezone.now()
        first.at = now - timedelta(seconds=seconds)
        first.save()
        keep_up_once(None, clock=ManualClock(now), failed_grace_seconds=30)
        assert stands(new)[0] == expected


@pytest.mark.parametrize("ended", [True, False])
def test_one_that_is_served_again_after_it_was_rolled_back_is_tried_anew(ended: bool) -> None:
    node = an_online_node(a_device("gpu0"))
    old, new = a_version("m", replicas=1), a_version("m", replicas=1)
    ModelVersion.objects.filter(pk=old.pk).update(last_stable_at=timezone.now())
    bad = place_one(new, node)
    apply_observed(node.pk, node.session, seen(bad, "failed", reason="No."))
    long_ago = timezone.now() - timedelta(minutes=1)
    Instance.objects.filter(pk=bad.pk).update(state_changed_at=long_ago, restarts=5)
    keep_up_once(None, clock=SystemClock(), failed_grace_seconds=30)
    assert stands(new)[0] == VersionState.ADMITTED
    if ended:
        Instance.objects.filter(pk=bad.pk).update(state=InstanceState.STOPPED)
    ModelVersion.objects.filter(pk=new.pk).update(state=VersionState.SERVING, replicas=1)
    keep_up_once(None, clock=SystemClock(), failed_grace_seconds=30)
    assert stands(new)[0] == VersionState.SERVING
    again = place_one(new, node)
    apply_observed(node.pk, node.session, seen(again, "failed", reason="No."))
    Instance.objects.filter(pk=again.pk).update(state_changed_at=long_ago)
    keep_up_once(None, clock=SystemClock(), failed_grace_seconds=30)
    assert stands(new)[0] == VersionState.ADMITTED


def test_one_node_that_cannot_load_it_does_not_end_what_another_is_still_loading() -> None:
    here, there = an_online_node(a_device("gpu0")), an_online_node(a_device("gpu1"), name="node-2")
    old, new = a_version("m", replicas=1), a_version("m", replicas=2)
    ModelVersion.objects.filter(pk=old.pk).update(last_stable_at=timezone.now())
    bad, slow = place_one(new, here), place_one(new, there)
    apply_observed(here.pk, here.session, seen(bad, "failed", reason="No such file."))
    apply_observed(there.pk, there.session, seen(slow, "loading", pid=1, port=21_000))
    Instance.objects.filter(pk=bad.pk).update(state_changed_at=timezone.now() - timedelta(minutes=1))
    keep_up_once(None, clock=SystemClock(), failed_grace_seconds=30)
    assert stands(new)[0] == VersionState.SERVING
    Instance.objects.filter(pk=slow.pk).update(restarts=1)  # it has failed as well
    keep_up_once(None, clock=SystemClock(), failed_grace_seconds=30)
    assert stands(new)[0] == VersionState.ADMITTED
