"""What was in the devices' memory: the last minutes frame by frame, a day and more by the minute."""

from django.db import models

from gpupool.models.inventory import Device


class MemoryFrame(models.Model):
    """The whole pool's memory at one moment, as `policies.memory_wire` packs it."""

    id = models.BigAutoField(primary_key=True)
    at = models.DateTimeField(unique=True)
    whole = models.BooleanField()  # a keyframe; others say what changed since the one before
    payload = models.BinaryField()

    def __str__(self) -> str:
        return f"{self.at:%H:%M:%S}"


class DeviceMinute(models.Model):
    """One device's memory at one minute."""

    id = models.BigAutoField(primary_key=True)
    device = models.ForeignKey(Device, on_delete=models.CASCADE, related_name="memory_minutes")
    minute = models.DateTimeField(db_index=True)
    size_mib = models.BigIntegerField(null=True)  # None: it did not say
    parts = models.JSONField()  # MiB by the id of the tenant: see policies.memory_history

    class Meta:
        constraints = [models.UniqueConstraint(fields=["device", "minute"], name="gpupool_memory_minute_once")]

    def __str__(self) -> str:
        return f"{self.device_id} {self.minute:%H:%M}"
