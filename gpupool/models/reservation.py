"""What tenants have a right to of the pool's devices, whether they use it or not."""

from django.db import models

from core.models import TimeOrderedModel


class Reservation(TimeOrderedModel):
    """Devices (or memory of them) kept for one tenant. Others may borrow what lies idle, and are preempted."""

    tenant_id = models.UUIDField()
    gpu_tag = models.CharField(max_length=80, blank=True)  # of devices with this tag; empty: of any
    devices = models.PositiveIntegerField(default=0)
    memory_bytes = models.BigIntegerField(default=0)
    lendable = models.BooleanField(default=True)
    created_at = models.DateTimeField(auto_now_add=True)

    class Meta:
        constraints = [models.UniqueConstraint(fields=["tenant_id", "gpu_tag"], name="gpupool_reservation_once")]

    def __str__(self) -> str:
        return f"{self.devices} devices for {self.tenant_id}"
