"""One look at the pool in which several instances are placed: each sees what those before it took."""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from uuid import UUID

from gpupool.policies.placement.pick import place
from gpupool.policies.placement.rights import Standing, standings
from gpupool.policies.placement.views import (
    ClaimView,
    DeviceView,
    Need,
    Placed,
    Placement,
    Preempt,
    QuotaView,
    ReservationView,
    Unplaced,
)


class Round:
    """Devices, quotas and rights, as they become while decisions are made."""

    def __init__(
        self,
        devices: Iterable[DeviceView],
        *,
        quotas: Iterable[QuotaView] = (),
        reservations: Sequence[ReservationView] = (),
        now: float = 0.0,
    ) -> None:
        self._devices = {device.device_id: device for device in devices}
        self._quotas = {quota.quota_id: quota for quota in quotas}
        self._reservations = reservations
        self._now = now
        self._due: list[Standing] | None = None
        self._first: dict[UUID, int] = {}  # priority of a tenant's first need that its right does not cover

    def place(self, need: Need, *, holder: UUID, may_preempt: bool = True, by_right: bool = True) -> Placement:
        """Decide, and keep in mind what was decided. `by_right`: others may go for its tenant's reservation."""
        quotas = [quota for quota in self._quotas.values() if quota.counts(need)]
        made = place(
            tuple(self._devices.values()),
            need,
            quotas=quotas,
            reservations=self._reservations,
            may_preempt=may_preempt,
            by_right=by_right,
        )
        match made:
            case Placed(device_ids=device_ids):
                self._take(device_ids, need, holder)
                for quota in quotas:
                    self._quotas[quota.quota_id] = _with(quota, device_ids, need)
            case Preempt(instances=instances, device_ids=device_ids):
                self._send_off(frozenset(instances))
                self._take(device_ids, need, None)
            case Unplaced(waits_for=device_ids) if device_ids:
                # Kept free for it: what leaves does so at different times, and who comes later would take each.
                self._take(device_ids, need, None)
        return made

    def is_due(self, need: Need) -> bool:
        """Whether its tenant has a right to it that it does not hold yet. Asked once for each, the most important
        first: where a tenant's right does not cover one, what matters less to the tenant itself goes not before it.
        """
        if self._due is None:
            self._due = standings(self._reservations, tuple(self._devices.values()))
        covering = next((one for one in self._due if one.covers(need)), None)
        if need.tenant_id is None or covering is None or need.priority < self._first.get(need.tenant_id, need.priority):
            if need.tenant_id is not None:
                self._first.setdefault(need.tenant_id, need.priority)
            return False
        self._due[self._due.index(covering)] = replace(
            covering,
            unmet_devices=max(0, covering.unmet_devices - need.devices),
            unmet_bytes=max(0, covering.unmet_bytes - need.memory_bytes * need.devices),
        )
        return True

    def _take(self, device_ids: Sequence[UUID], need: Need, holder: UUID | None) -> None:
        claim = need.claim(holder, now=self._now)
        for device_id in device_ids:
            self._add(device_id, claim)
        if not need.host_memory_bytes:
            return
        node_id = self._devices[device_ids[0]].node_id
        beside = ClaimView(holder, need.host_memory_bytes, tenant_id=need.tenant_id, priority=need.priority)
        for device in [one for one in self._devices.values() if one.kind == "cpu" and one.node_id == node_id]:
            self._add(device.device_id, beside)

    def _add(self, device_id: UUID, claim: ClaimView) -> None:
        device = self._devices[device_id]
        self._devices[device_id] = replace(
            device, claimed_bytes=device.claimed_bytes + claim.memory_bytes, claims=(*device.claims, claim)
        )

    def _send_off(self, instances: frozenset[UUID]) -> None:
        """They were told to go: nobody else asks them again, and who waits waits for what they leave."""
        for device in list(self._devices.values()):
            if any(claim.holder in instances for claim in device.claims):
                claims = tuple(
                    replace(claim, leaving=True) if claim.holder in instances else claim for claim in device.claims
                )
                self._devices[device.device_id] = replace(device, claims=claims)


def _with(quota: QuotaView, device_ids: Sequence[UUID], need: Need) -> QuotaView:
    return replace(
        quota,
        held_devices=quota.held_devices.union(device_ids),
        held_bytes=quota.held_bytes + need.memory_bytes * len(device_ids),
    )
