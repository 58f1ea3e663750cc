"""What the pool's devices were used for, hour by hour and tenant by tenant."""

from django.db import models


class GpuShare(models.Model):
    """A tenant's share of one instance's time in one hour (UTC), in milliseconds on the wall.

    `busy_ms`: it answered requests; `idle_ms`: it was ready and did not; `warm_ms`: it held its devices and was not
    ready yet. Multiplied by `gpus`, GPU time. `tenant_id` None is the platform's own share: nobody used the instance,
    and it is nobody's private one. See tenants.policies.showback for how time is shared out.
    """

    hour = models.DateTimeField()
    instance_id = models.UUIDField()
    tenant_id = models.UUIDField(null=True)
    model = models.CharField(max_length=200)
    version_id = models.UUIDField(null=True)
    gpus = models.PositiveSmallIntegerField()  # 0: it ran on a CPU
    busy_ms = models.BigIntegerField(default=0)
    idle_ms = models.BigIntegerField(default=0)
    warm_ms = models.BigIntegerField(default=0)
    cost_micros = models.BigIntegerField(default=0)
    price_id = models.UUIDField(null=True)

    class Meta:
        constraints = [
            models.UniqueConstraint(
                fields=["hour", "instance_id", "tenant_id"], name="tenants_gpushare_once", nulls_distinct=False
            )
        ]
        indexes = [models.Index(fields=["tenant_id", "hour"])]

    def __str__(self) -> str:
        return f"{self.instance_id} {self.hour:%Y-%m-%d %H}"
