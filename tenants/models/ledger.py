"""What was used: one row for each forwarded request, and sums of them by the minute."""

from django.db import models
from django.db.models.functions import Now


class UsageRecord(models.Model):
    """One forwarded request; the key is the request's UUIDv7.

    The table is range-partitioned by `id`, that is by time (see the first migration): a partition a
    month, made ahead, and a default one. No foreign keys: rows outlive what they name.
    """

    id = models.UUIDField(primary_key=True)
    tenant_id = models.UUIDField()
    key_id = models.UUIDField(null=True)
    model = models.CharField(max_length=200)
    version_id = models.UUIDField(null=True)
    instance_id = models.UUIDField(null=True)
    engine_request_id = models.CharField(max_length=200, blank=True)
    door = models.CharField(max_length=8)  # relay, drf
    api = models.CharField(max_length=16)
    streamed = models.BooleanField()
    outcome = models.CharField(max_length=12)
    status = models.PositiveSmallIntegerField()
    error_code = models.CharField(max_length=64, blank=True)
    usage_source = models.CharField(max_length=12)
    input_tokens = models.BigIntegerField(null=True)
    cached_tokens = models.BigIntegerField(null=True)
    output_tokens = models.BigIntegerField(null=True)
    started_at = models.DateTimeField()
    duration_ms = models.FloatField(null=True)
    ttft_ms = models.FloatField(null=True)
    attempts = models.PositiveSmallIntegerField(default=1)
    process_id = models.UUIDField()  # whose spool it came from
    sequence = models.BigIntegerField()  # its place in that spool
    subject_id = models.UUIDField(null=True)  # of a token; see tenants.principal
    cost_micros = models.BigIntegerField(default=0, db_default=0)
    price_id = models.UUIDField(null=True)
    # Of a `lost` row that limits counted: bounds, which the limits hold to be used. Nobody is billed for them.
    reserved_input = models.BigIntegerField(null=True)
    reserved_output = models.BigIntegerField(null=True)
    reserved_micros = models.BigIntegerField(null=True)
    # Where the time went; None: not measured, or it did not come so far. What is left of ttft_ms is the prefill, of
    # duration_ms the decoding.
    queue_ms = models.FloatField(null=True)  # from arrival until it was handed to the (last) endpoint
    tokenise_ms = models.FloatField(null=True)  # of that, where the prompt's tokens were counted
    connect_ms = models.FloatField(null=True)  # until that endpoint had a connection
    first_decode_ms = models.FloatField(null=True)  # from the first content to the second
    # When the row was written, some moments after the request ended; by arrival, long ones come behind newer ones.
    settled_at = models.DateTimeField(db_default=Now())

    class Meta:
        indexes = [
            models.Index(fields=["tenant_id", "-id"]),
            models.Index(fields=["key_id", "-id"]),
            models.Index(fields=["model", "-id"], name="tenants_usage_model"),
            models.Index(  # few, and looked for among many
                fields=["-id"],
                condition=~models.Q(outcome="success"),
                name="tenants_usage_unwell",
            ),
            models.Index(
                fields=["tenant_id", "-id"],
                condition=~models.Q(outcome="success"),
                name="tenants_usage_tenant_unwell",
            ),
            models.Index(  # rollups do not name subjects
                fields=["subject_id", "-id"],
                condition=models.Q(subject_id__isnull=False),
                name="tenants_usagerecord_subject",
            ),
            models.Index(fields=["settled_at", "id"], name="tenants_usage_settled"),
            models.Index(fields=["tenant_id", "settled_at", "id"], name="tenants_usage_tenant_settled"),
        ]

    def __str__(self) -> str:
        return f"{self.id} {self.outcome}"


class UsageSums(models.Model):
    """What every rollup sums."""

    tenant_id = models.UUIDField()
    key_id = models.UUIDField(null=True)
    model = models.CharField(max_length=200)
    requests = models.BigIntegerField(default=0)
    failures = models.BigIntegerField(default=0)  # failed, truncated, lost
    cancelled = models.BigIntegerField(default=0)
    input_tokens = models.BigIntegerField(default=0)
    cached_tokens = models.BigIntegerField(default=0)
    output_tokens = models.BigIntegerField(default=0)
    duration_ms = models.FloatField(default=0)
    ttft_ms = models.FloatField(default=0)
    ttft_count = models.BigIntegerField(default=0)
    cost_micros = models.BigIntegerField(default=0, db_default=0)

    class Meta:
        abstract = True


class UsageMinute(UsageSums):
    """Sums of usage records by tenant, key, model and minute of `started_at`."""

    minute = models.DateTimeField()

    class Meta:
        constraints = [
            models.UniqueConstraint(
                fields=["tenant_id", "key_id", "model", "minute"],
                name="tenants_usageminute_once",
                nulls_distinct=False,
            )
        ]
        indexes = [
            models.Index(fields=["minute"]),
            models.Index(fields=["tenant_id", "minute"]),  # a tenant's page must not grow with years of history
        ]

    def __str__(self) -> str:
        return f"{self.tenant_id} {self.model} {self.minute:%Y-%m-%d %H:%M}"


class UsageHour(UsageSums):
    """The same by the hour (UTC): the edges of a zone that is not whole hours off are minutes'."""

    hour = models.DateTimeField()

    class Meta:
        constraints = [
            models.UniqueConstraint(
                fields=["tenant_id", "key_id", "model", "hour"], name="tenants_usagehour_once", nulls_distinct=False
            )
        ]
        indexes = [models.Index(fields=["hour"]), models.Index(fields=["tenant_id", "hour"])]

    def __str__(self) -> str:
        return f"{self.tenant_id} {self.model} {self.hour:%Y-%m-%d %H}"


class UsageDay(UsageSums):
    """The same by the day (UTC)."""

    day = models.DateTimeField()

    class Meta:
        constraints = [
            models.UniqueConstraint(
                fields=["tenant_id", "key_id", "model", "day"], name="tenants_usageday_once", nulls_distinct=False
            )
        ]
        indexes = [models.Index(fields=["day"]), models.Index(fields=["tenant_id", "day"])]

    def __str__(self) -> str:
        return f"{self.tenant_id} {self.model} {self.day:%Y-%m-%d}"


class TenantHour(UsageSums):
    """Sums by tenant, model and hour (UTC), whatever the key: of a tenant with thousands of keys, the few that a chart
    is drawn from."""

    key_id = None  # takes the column away
    hour = models.DateTimeField()

    class Meta:
        constraints = [
            models.UniqueConstraint(fields=["tenant_id", "hour", "model"], name="tenants_tenanthour_once"),
        ]
        indexes = [models.Index(fields=["hour"])]

    def __str__(self) -> str:
        return f"{self.tenant_id} {self.model} {self.hour:%Y-%m-%d %H}"


class TenantDay(UsageSums):
    """The same by the day (UTC)."""

    key_id = None  # takes the column away
    day = models.DateTimeField()

    class Meta:
        constraints = [
            models.UniqueConstraint(fields=["tenant_id", "day", "model"], name="tenants_tenantday_once"),
        ]
        indexes = [models.Index(fields=["day"])]

    def __str__(self) -> str:
        return f"{self.tenant_id} {self.model} {self.day:%Y-%m-%d}"


class PlatformMinute(models.Model):
    """Sums over all tenants by the minute in which requests ended.

    What the console calls the last minute: by `started_at`, a request longer than that would never be in it.
    """

    minute = models.DateTimeField(primary_key=True)
    requests = models.BigIntegerField(default=0)
    failures = models.BigIntegerField(default=0)  # failed, truncated, lost
    tokens = models.BigIntegerField(default=0)  # input and output

    def __str__(self) -> str:
        return f"{self.minute:%Y-%m-%d %H:%M}"


class LedgerMark(models.Model):
    """How far a process's spool is in the ledger without a gap: everything up to `sequence` is committed."""

    process_id = models.UUIDField(primary_key=True)
    sequence = models.BigIntegerField(default=0)
    updated_at = models.DateTimeField(auto_now=True)

    def __str__(self) -> str:
        return f"{self.process_id} through {self.sequence}"


class DeadLetter(models.Model):
    """A stream entry that could not become a ledger row; kept whole, for a person to look at."""

    entry_id = models.CharField(max_length=64, unique=True)
    payload = models.BinaryField()
    reason = models.TextField()
    at = models.DateTimeField(auto_now_add=True)

    def __str__(self) -> str:
        return f"{self.entry_id}: {self.reason[:60]}"
