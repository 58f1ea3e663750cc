"""Claims on devices as pages and accounts read them, and the tables of the PostgreSQL lease store."""

from django.db import models

from core.models import TimeOrderedModel
from gpupool.models.inventory import Device


class LeaseStatus(models.TextChoices):
    FREE = "free", "Free"
    ALLOCATED = "allocated", "Allocated"
    FAILED = "failed", "Failed"
    UNKNOWN = "unknown", "Unknown"


class Lease(TimeOrderedModel):
    """A claim on one device's memory by one holder. The sum of active claims never exceeds the device."""

    device = models.ForeignKey(Device, on_delete=models.PROTECT, related_name="leases")
    holder = models.CharField(max_length=200)  # instance:<uuid>
    tenant_id = models.UUIDField(null=True, blank=True)
    memory_bytes = models.BigIntegerField()
    share = models.FloatField(null=True)  # of the device's compute, 0 to 1; null: not limited
    whole = models.BooleanField(default=False)  # nobody else may claim of the device
    status = models.CharField(max_length=10, choices=LeaseStatus, default=LeaseStatus.ALLOCATED)
    lease_id = models.BigIntegerField()  # int64, as etcd's; the same on every device of one claim
    fencing_token = models.BigIntegerField()  # the store's revision at the claim
    boot_id = models.CharField(max_length=64, blank=True)  # validity epoch
    claimed_at = models.DateTimeField(auto_now_add=True)
    released_at = models.DateTimeField(null=True, blank=True)

    class Meta:
        constraints = [
            models.UniqueConstraint(
                fields=["device", "holder"],
                condition=models.Q(released_at__isnull=True),
                name="gpupool_lease_active_once",
            )
        ]
        indexes = [
            models.Index(fields=["lease_id"], name="gpupool_lease_number"),
            models.Index(fields=["holder"], name="gpupool_lease_held", condition=models.Q(released_at__isnull=True)),
        ]

    def __str__(self) -> str:
        return f"{self.holder} on {self.device_id}"


class FencingBase(models.Model):
    """What the lease store's revisions are added to, so that tokens only grow: see policies.fencing_base."""

    singleton = models.BooleanField(primary_key=True, default=True)
    store_id = models.CharField(max_length=64)
    base = models.BigIntegerField()
    newest_revision = models.BigIntegerField()  # of that store, as far as it is known

    def __str__(self) -> str:
        return f"{self.base} with {self.store_id}"


class StoreRevision(models.Model):
    """The store's one counter; locking its row orders all writes."""

    singleton = models.BooleanField(primary_key=True, default=True)
    revision = models.BigIntegerField(default=0)
    compacted_revision = models.BigIntegerField(default=0)
    next_lease_id = models.BigIntegerField(default=1)

    def __str__(self) -> str:
        return str(self.revision)


class StoreLease(models.Model):
    """A time to live that entries can hang on; it expires by the database's clock."""

    lease_id = models.BigIntegerField(primary_key=True)
    ttl_seconds = models.FloatField()
    expires_at = models.DateTimeField()

    def __str__(self) -> str:
        return str(self.lease_id)


class StoreEntry(models.Model):
    key = models.CharField(max_length=500, primary_key=True)
    value = models.BinaryField()
    create_revision = models.BigIntegerField()
    mod_revision = models.BigIntegerField()
    version = models.BigIntegerField(default=1)
    lease = models.ForeignKey(StoreLease, null=True, on_delete=models.CASCADE, related_name="entries")

    def __str__(self) -> str:
        return self.key


class StoreEvent(models.Model):
    """What a watcher reads: puts and deletes by revision."""

    revision = models.BigIntegerField()
    key = models.CharField(max_length=500)
    value = models.BinaryField(null=True)  # null: deleted
    at = models.DateTimeField(auto_now_add=True)

    class Meta:
        constraints = [models.UniqueConstraint(fields=["revision", "key"], name="gpupool_storeevent_once")]

    def __str__(self) -> str:
        return f"{self.revision} {self.key}"
