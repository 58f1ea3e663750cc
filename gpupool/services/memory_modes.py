"""Memory modes written down: how many requests an instance should have at once, by how full its KV cache is."""

from collections.abc import Iterable
from uuid import UUID

from django.conf import settings
from django.db import transaction

from core.epochs import Section
from gpupool.leases.fencing import Fence, check_fence
from gpupool.models import Instance, InstanceDesire, InstanceState, MemoryMode, VersionState
from gpupool.models.catalog import PAPERS_OF_VERSION
from gpupool.policies.memory_mode import Mode, Rules, Verdict, decide
from gpupool.services.changes import Changes
from tenants.actor import Actor
from tenants.services import record_audit


def mode_rules() -> Rules:
    environment = settings.GATEHOUSE
    return Rules(
        full_cap=environment.mode_full_cap, mixed_cap=environment.mode_mixed_cap, cpu_cap=environment.mode_cpu_cap
    )


@transaction.atomic
def set_memory_modes(*, actor: Actor, fence: Fence | None = None) -> int:
    """Look at every instance and write the modes that changed; returns how many. Raises Superseded.

    An engine that does not say how full its cache is has no cap, and neither has one that does not serve.
    """
    check_fence(fence)
    rows = Instance.objects.select_related("version__model").filter(
        state=InstanceState.READY, desire=InstanceDesire.RUNNING
    )
    serving = list(rows.defer(*PAPERS_OF_VERSION).order_by("pk"))
    rules = mode_rules()
    # What takes everybody's requests: one of another tenant's, or of a version that serves no more, relieves nobody.
    on_cpu = {
        instance.version.model_id
        for instance in serving
        if instance.version.device_kind == "cpu"
        and instance.tenant_id is None
        and instance.version.state == VersionState.SERVING
    }
    verdicts = {
        instance.pk: decide(
            Mode(instance.memory_mode), instance.kv_used, cpu_ready=instance.version.model_id in on_cpu, rules=rules
        )
        for instance in serving
        if instance.version.device_kind != "cpu"
    }
    relieved = {
        instance.version.model_id
        for instance in serving
        if (verdict := verdicts.get(instance.pk)) is not None and verdict.mode is Mode.CPU
    }
    changes, changed = Changes(), 0
    for instance in serving:
        verdict = verdicts.get(instance.pk)
        if instance.version.device_kind == "cpu" and instance.version.model_id in relieved:
            verdict = Verdict(Mode.CPU, rules.cpu_cap, "It takes requests that its model's GPUs have no memory for.")
        changed += _write(instance, verdict, actor=actor, changes=changes)
    changed += _clear(instance.pk for instance in serving)
    changes.publish()
    return changed


def _write(instance: Instance, verdict: Verdict | None, *, actor: Actor, changes: Changes) -> bool:
    mode, cap = (Mode.FULL, None) if verdict is None else (verdict.mode, verdict.cap)
    if (instance.memory_mode, instance.concurrency_cap) == (mode, cap):
        return False
    # Only the two columns, and only while it still stands so: its row is its agent's to write, many times a second.
    row = Instance.objects.filter(pk=instance.pk, memory_mode=instance.memory_mode)
    if not row.update(memory_mode=MemoryMode(mode), concurrency_cap=cap):
        return False
    if instance.memory_mode != mode:
        record_audit(
            "instance.memory_mode_changed",
            subject=instance,
            actor=actor,
            tenant_id=instance.owner_id,
            before={"mode": instance.memory_mode},
            after={"mode": mode, "cap": cap, "reason": "" if verdict is None else verdict.reason},
        )
    changes.add(Section.ENDPOINTS, instance.pk)
    return True


def _clear(serving: Iterable[UUID]) -> int:
    """Those that serve no more begin anew. Not audited: their state was."""
    rows = Instance.objects.filter(concurrency_cap__isnull=False).exclude(pk__in=list(serving))
    return rows.update(memory_mode=MemoryMode.FULL, concurrency_cap=None)
