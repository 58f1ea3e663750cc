"""The leader's hold on the book of devices: kept in line with reports and database, claimed from for placements."""

import contextlib
from collections.abc import Collection
from typing import Final
from uuid import UUID

import structlog
from django.core.exceptions import ObjectDoesNotExist

from gpupool import services
from gpupool.controller.looking import InThread
from gpupool.leases.base import StoreUnavailable
from gpupool.leases.devices import Allocated, BookView, Denied, DeviceBook
from gpupool.leases.fencing import Fence, Superseded
from gpupool.models import Device, Lease, NodeState
from gpupool.policies.device_record import DeviceFacts, RecordedClaim, mend, standing_of
from gpupool.policies.lease import Portion, Refused
from tenants.actor import SYSTEM

logger = structlog.get_logger(__name__)

_LOOKS: Final = 3


class BookKeeper:
    """For one term of one leader, and used by one task at a time."""

    def __init__(self, book: DeviceBook, *, fence: Fence, in_thread: InThread) -> None:
        self._book = book
        self._fence = fence
        self._call = in_thread

    def wrote(self, revision: int) -> bool:
        return self._book.wrote(revision)

    async def look(self) -> BookView:
        """The book as it is once it says what the nodes report and the database holds.

        Whatever a crash has left between the store and the database ends here, either way. Raises
        StoreUnavailable, Superseded, django.db.Error.
        """
        for _ in range(_LOOKS):
            view = await self._book.read()
            facts, recorded = await self._read(view.live_nodes)
            fixes = mend(view.book, facts, recorded)
            if not fixes:
                return view
            await self._book.apply(view, fixes)
        return await self._book.read()

    async def place(self, instance_id: UUID, device_ids: Collection[UUID]) -> None:
        """Claim in the store, then write it down and hand the instance over; on a refusal the claim ends again.

        Where nobody can say whether it was written down, the claim stays: the next look knows. Raises
        StoreUnavailable, Superseded, django.db.Error.
        """
        plan = await self._call(lambda: services.plan_claim(instance_id, *device_ids))
        if isinstance(plan, Refused):
            await self._explain(instance_id, plan.reason)
            return
        outcome = await self._book.allocate(plan.holder, plan.portions, node_id=plan.node_id, boot_id=plan.boot_id)
        match outcome:
            case Denied(device_id=device_id, reason=reason):
                subject = "Its claim" if device_id is None else plan.labels[device_id]
                await self._explain(instance_id, f"{subject}: {reason}.")
            case Allocated(token=token):
                await self._write_down(instance_id, device_ids, outcome)
                logger.info("claimed", holder=plan.holder, token=token, devices=[*plan.labels.values()])

    async def _write_down(self, instance_id: UUID, device_ids: Collection[UUID], claim: Allocated) -> None:
        numbers = services.ClaimNumbers(lease_id=claim.token, fencing_token=claim.token)
        try:
            written = await self._call(
                lambda: services.claim_and_place(
                    instance_id, *device_ids, actor=SYSTEM, numbers=numbers, fence=self._fence
                )
            )
        except (ObjectDoesNotExist, Superseded) as error:
            await self._give_back(claim, str(error))
            raise
        if isinstance(written, Refused):
            logger.info("claim_refused", holder=claim.holder, reason=written.reason)
            await self._give_back(claim, written.reason)

    async def _give_back(self, claim: Allocated, reason: str) -> None:
        with contextlib.suppress(StoreUnavailable, Superseded):  # the next look finds it, whoever leads then
            await self._book.release(claim.holder, token=claim.token, reason=reason)

    async def _explain(self, instance_id: UUID, reason: str) -> None:
        logger.info("claim_refused", instance=str(instance_id), reason=reason)
        await self._call(lambda: services.explain_waiting(instance_id, reason, actor=SYSTEM, fence=self._fence))

    async def _read(self, live: Collection[UUID]) -> tuple[list[DeviceFacts], list[RecordedClaim]]:
        return await self._call(lambda: (read_facts(live), read_recorded()))


def read_facts(live_nodes: Collection[UUID]) -> list[DeviceFacts]:
    """Every device as its node reports it, and as it stands while its node is silent."""
    columns = (
        "pk", "node_id", "memory_bytes", "allocatable", "node__boot_id", "node__state", "present", "isolated_at",
        "isolated_reason", "health",
    )  # fmt: skip
    facts = []
    for pk, node_id, size, allocatable, boot_id, state, present, isolated_at, why, health in Device.objects.values_list(
        *columns
    ).order_by("pk"):
        standing, reason = standing_of(
            reachable=state == NodeState.ONLINE and node_id in live_nodes,
            present=present,
            isolated=None if isolated_at is None else why,
            health=health,
        )
        facts.append(DeviceFacts(pk, node_id, size, allocatable, boot_id, standing, reason))
    return facts


def read_recorded() -> list[RecordedClaim]:
    """Every claim that is active, over all its devices."""
    active = Lease.objects.filter(released_at__isnull=True).select_related("device").order_by("pk")
    # At every look, and of each device that is claimed: its node alone, not its readings.
    active = active.only(
        "holder", "fencing_token", "boot_id", "memory_bytes", "share", "whole", "device__node_id",
    )  # fmt: skip
    found: dict[str, list[Lease]] = {}
    for lease in active:
        found.setdefault(lease.holder, []).append(lease)
    return [
        RecordedClaim(
            holder=holder,
            token=leases[0].fencing_token,
            node_id=leases[0].device.node_id,
            boot_id=leases[0].boot_id,
            portions={one.device_id: Portion(one.memory_bytes, one.share, one.whole) for one in leases},
        )
        for holder, leases in found.items()
    ]
