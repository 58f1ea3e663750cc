"""How much of what tenants may hold is claimed, and how much of that is in use now."""

from dataclasses import dataclass
from datetime import datetime
from uuid import UUID

from gpupool.models import Instance, InstanceState
from gpupool.policies.placement.views import QuotaView
from gpupool.reads.placement import owner_of, read_quotas
from gpupool.selectors import figure


@dataclass(frozen=True, slots=True)
class QuotaUse:
    """One limit on GPUs or their memory. `used_bytes`: what processes have of the GPUs; None: somebody does not say."""

    quota: QuotaView
    used_bytes: int | None

    @property
    def held(self) -> int:
        """GPUs or bytes, as the limit counts."""
        return len(self.quota.held_devices) if self.quota.metric == "gpus" else self.quota.held_bytes


def read_quota_use(now: datetime) -> list[QuotaUse]:
    """Every limit on GPUs and their memory."""
    quotas = read_quotas(now)
    if not quotas:
        return []
    running = _running(now)
    return [QuotaUse(quota, _sum(quota, running)) for quota in quotas]


def _running(now: datetime) -> list[tuple[UUID | None, str, int | None]]:
    """(tenant, model, bytes in use) of every instance that has a process on a GPU."""
    columns = ("used", "version__model__name", "tenant_id", "version__tenant_id", "version__model__tenant_id")
    rows = (
        Instance.objects.annotate(used=figure("device_bytes", now))
        .exclude(state=InstanceState.STOPPED)
        .filter(pid__isnull=False, version__device_kind="gpu")
    )
    return [(owner_of(*owners), model, used) for used, model, *owners in rows.values_list(*columns)]


def _sum(quota: QuotaView, running: list[tuple[UUID | None, str, int | None]]) -> int | None:
    known = [
        used
        for tenant, model, used in running
        if (quota.tenants is None or tenant in quota.tenants) and quota.model in ("", model)
    ]
    total = 0
    for used in known:
        if used is None:
            return None
        total += used
    return total
