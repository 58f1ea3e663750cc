"""Moves that would ease the pool, of its devices and claims as they are now."""

from uuid import UUID

from gpupool.models import Instance
from gpupool.policies.rebalance import Move, propose
from gpupool.reads.placement import need_of, read_devices


def propose_moves(*, most: int = 20) -> tuple[list[Move], dict[UUID, str]]:
    """The moves, and names of the devices that they are about."""
    devices = read_devices()
    holders = [claim.holder for device in devices for claim in device.claims if claim.holder is not None]
    instances = Instance.objects.filter(pk__in=holders, attached=False).select_related("version__model")
    needs = {instance.pk: need_of(instance.version) for instance in instances}
    return propose(devices, needs, most=most), {device.device_id: device.label for device in devices}
