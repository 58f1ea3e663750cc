"""How an instance came to its state, and the end of its log while somebody reads it."""

from datetime import timedelta

import msgspec
import pytest
from django.utils import timezone

from gpupool import services
from gpupool.models import Instance, InstanceEvent, InstanceLog
from gpupool.services.traces import EVENT_RETENTION, LOG_RETENTION, LOG_WANTED, ask_for_log, prune_traces
from gpupool.stream.desired import read_desired
from gpupool.stream.messages import LogFact
from tenants.actor import SYSTEM
from tenants.models import AuditEvent
from tenants.services import InvalidInput
from tests.gpupool.pool import OnlineNode, a_device, a_version, an_online_node, place_one, seen

pytestmark = pytest.mark.django_db


def _placed() -> tuple[OnlineNode, Instance]:
    node = an_online_node(a_device("gpu-0"))
    return node, place_one(a_version("tiny"), node)


def _tell(node: OnlineNode, instance: Instance, *facts: LogFact) -> None:
    report = msgspec.structs.replace(seen(instance, "ready", pid=7, port=21000), logs=list(facts))
    services.apply_observed(node.pk, node.session, report)


def test_every_step_is_kept_with_what_fell_between_two_reports() -> None:
    node, instance = _placed()
    _tell(node, instance)
    services.stop_instance(instance.pk, actor=SYSTEM, reason="Enough.")
    steps = [(one.kind, one.value, one.before, one.through) for one in InstanceEvent.objects.order_by("pk")]
    assert steps[0] == ("state", "requested", "", [])
    assert ("state", "ready", "staging", ["loading", "warming"]) in steps
    assert ("wish", "stopped", "running", []) in steps
    assert steps[-1][:3] == ("state", "draining", "ready")
    assert InstanceEvent.objects.filter(by="node", value="ready").exists()


def test_a_log_is_told_only_while_somebody_reads_it() -> None:
    node, instance = _placed()
    fact = LogFact(instance_id=instance.pk, text="loading\n--api-key hunter2hunter2")
    _tell(node, instance, fact)
    assert not InstanceLog.objects.exists()
    assert read_desired(node.pk).logs == []
    assert ask_for_log(instance.pk, actor=SYSTEM).told_at is None
    assert read_desired(node.pk).logs == [instance.pk]
    _tell(node, instance, fact)
    log = ask_for_log(instance.pk, actor=SYSTEM)
    assert log.told_at is not None
    assert log.text == "loading\n--api-key [hidden]"  # the web process does not trust its agents to have hidden it
    InstanceLog.objects.update(wanted_until=timezone.now())
    assert read_desired(node.pk).logs == []


def test_a_node_tells_nothing_of_others_instances() -> None:
    _, instance = _placed()
    ask_for_log(instance.pk, actor=SYSTEM)
    other = an_online_node(a_device("gpu-1"), name="node-2")
    report = msgspec.structs.replace(
        seen(instance, "ready", pid=7, port=21000), logs=[LogFact(instance_id=instance.pk, text="forged")], devices=[]
    )
    services.apply_observed(other.pk, other.session, report)
    assert InstanceLog.objects.get().text == ""


def test_reading_a_log_is_audited_once_for_each_sitting() -> None:
    _, instance = _placed()
    now = timezone.now()
    for second in (0, 2, 25, 50):
        ask_for_log(instance.pk, actor=SYSTEM, now=now + timedelta(seconds=second))
    assert AuditEvent.objects.filter(action="instance.log_read").count() == 1
    ask_for_log(instance.pk, actor=SYSTEM, now=now + timedelta(minutes=10))
    assert AuditEvent.objects.filter(action="instance.log_read").count() == 2


def test_an_attached_engine_has_no_log_here() -> None:
    attached = services.attach_engine("http://10.0.0.1:8000", engine="vllm", model_name="m", actor=SYSTEM)
    assert [one.value for one in InstanceEvent.objects.order_by("pk")] == ["requested", "warming"]
    with pytest.raises(InvalidInput, match="its log lies where it was started"):
        ask_for_log(attached.instance.pk, actor=SYSTEM)


def test_old_steps_and_unread_logs_are_deleted() -> None:
    _, instance = _placed()
    ask_for_log(instance.pk, actor=SYSTEM)
    now = timezone.now()
    assert prune_traces(now=now) == 0
    assert prune_traces(now=now + LOG_WANTED + LOG_RETENTION + timedelta(seconds=1)) == 1
    steps = InstanceEvent.objects.count()
    assert prune_traces(now=now + EVENT_RETENTION + timedelta(minutes=1)) == steps
    assert prune_traces(now=now + EVENT_RETENTION + timedelta(minutes=1)) == 0
