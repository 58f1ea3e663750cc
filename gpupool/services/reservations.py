"""Reservations: devices and memory that a tenant has a right to."""

from typing import Final
from uuid import UUID

from django.db import IntegrityError, transaction

from core.epochs import Section
from core.refusals import Conflict, InvalidInput
from gpupool.models import Reservation
from gpupool.policies.version_needs import LARGEST_BYTES, LONGEST_TAG
from gpupool.services.changes import Changes
from tenants.actor import Actor
from tenants.models import Tenant
from tenants.services import record_audit

MOST_DEVICES: Final = 100_000


@transaction.atomic
def create_reservation(
    tenant_id: UUID,
    *,
    actor: Actor,
    gpu_tag: str = "",
    devices: int = 0,
    memory_bytes: int = 0,
    lendable: bool = True,
) -> Reservation:
    """Keep devices, or memory of them, for a tenant; `gpu_tag` empty: of any GPU.

    What is lent comes back by preemption when the tenant needs it; what is not lent lies idle until then.
    Raises InvalidInput for a tenant that does not exist or a reservation of nothing, Conflict where the tenant has one
    of that tag already.
    """
    if not Tenant.objects.filter(pk=tenant_id).exists():
        raise InvalidInput("tenant_id", "There is no such tenant.")
    if len(gpu_tag) > LONGEST_TAG or (gpu_tag and not gpu_tag.isprintable()):
        raise InvalidInput("gpu_tag", f"A tag has at most {LONGEST_TAG} printable characters.")
    _check(devices, memory_bytes)
    reservation = Reservation(
        tenant_id=tenant_id, gpu_tag=gpu_tag, devices=devices, memory_bytes=memory_bytes, lendable=lendable
    )
    try:
        with transaction.atomic():
            reservation.save(force_insert=True)
    except IntegrityError as error:
        raise Conflict("The tenant has a reservation of this tag already: change that.") from error
    _tell("reservation.created", reservation, actor, after=_values(reservation))
    return reservation


@transaction.atomic
def change_reservation(
    reservation_id: UUID,
    *,
    actor: Actor,
    devices: int | None = None,
    memory_bytes: int | None = None,
    lendable: bool | None = None,
) -> Reservation:
    """Keep more or less; None leaves a value as it is. Raises Reservation.DoesNotExist, InvalidInput."""
    reservation = lock_reservation(reservation_id)
    before = _values(reservation)
    reservation.devices = reservation.devices if devices is None else devices
    reservation.memory_bytes = reservation.memory_bytes if memory_bytes is None else memory_bytes
    reservation.lendable = reservation.lendable if lendable is None else lendable
    _check(reservation.devices, reservation.memory_bytes)
    if _values(reservation) != before:
        reservation.save(update_fields=["devices", "memory_bytes", "lendable"])
        _tell("reservation.changed", reservation, actor, before=before, after=_values(reservation))
    return reservation


@transaction.atomic
def delete_reservation(reservation_id: UUID, *, actor: Actor) -> None:
    """Give the right up; what runs by it runs on. Raises Reservation.DoesNotExist."""
    reservation = lock_reservation(reservation_id)
    before, pk = _values(reservation), reservation.pk
    reservation.delete()
    reservation.pk = pk  # for the audit row
    _tell("reservation.deleted", reservation, actor, before=before)


def lock_reservation(reservation_id: UUID) -> Reservation:
    """Its row locked until the transaction ends. Raises Reservation.DoesNotExist."""
    return Reservation.objects.select_for_update().get(pk=reservation_id)


def _check(devices: int, memory_bytes: int) -> None:
    if not 0 <= devices <= MOST_DEVICES:
        raise InvalidInput("devices", f"A reservation has at most {MOST_DEVICES} devices.")
    if not 0 <= memory_bytes <= LARGEST_BYTES:
        raise InvalidInput("memory_bytes", "A size in bytes is not negative.")
    if not devices and not memory_bytes:
        raise InvalidInput("devices", "Say how many devices are kept, or how much of their memory.")


def _values(reservation: Reservation) -> dict[str, object]:
    return {
        "gpu_tag": reservation.gpu_tag,
        "devices": reservation.devices,
        "memory_bytes": reservation.memory_bytes,
        "lendable": reservation.lendable,
    }


def _tell(
    what: str,
    reservation: Reservation,
    actor: Actor,
    *,
    before: dict[str, object] | None = None,
    after: dict[str, object] | None = None,
) -> None:
    record_audit(what, subject=reservation, actor=actor, tenant_id=reservation.tenant_id, before=before, after=after)
    changes = Changes()
    changes.add(Section.POOL, reservation.pk)
    changes.publish()
