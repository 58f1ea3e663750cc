"""How long requests took, by histogram: counts per bucket, by minute and by hour of `started_at`.

Each array has one more place than its bounds in core.telemetry.buckets, the last for what is beyond them; counts are
not cumulative. What was not measured of a request (the first token of a whole answer) is in no bucket. Sums over all
tenants stand in tables of their own, so that a question about a model does not read every tenant's rows.
"""

from collections.abc import Mapping
from typing import Final

from django.contrib.postgres.fields import ArrayField
from django.db import models

from core.telemetry import buckets

COUNTS: Final = ("requests", "failures", "faults", "cancelled")
HISTOGRAMS: Final[Mapping[str, buckets.Bounds]] = {
    "ttft": buckets.TTFT,
    "tpot": buckets.TPOT,
    "queue": buckets.QUEUE,
    "duration": buckets.DURATION,
}
"""The columns of LatencySums that are added up, and those of buckets with their bounds."""


class LatencySums(models.Model):
    """What every one of these rollups sums."""

    model = models.CharField(max_length=200)
    version_id = models.UUIDField(null=True)
    requests = models.BigIntegerField(default=0)
    failures = models.BigIntegerField(default=0)  # failed, truncated, lost: as in UsageMinute
    faults = models.BigIntegerField(default=0)  # of them those that were not the caller's: lost, truncated, 5xx
    cancelled = models.BigIntegerField(default=0)
    ttft = ArrayField(models.BigIntegerField(), default=list)
    tpot = ArrayField(models.BigIntegerField(), default=list)
    queue = ArrayField(models.BigIntegerField(), default=list)
    duration = ArrayField(models.BigIntegerField(), default=list)

    class Meta:
        abstract = True


class LatencyMinute(LatencySums):
    """By tenant, model, version and minute."""

    tenant_id = models.UUIDField()
    minute = models.DateTimeField()

    class Meta:
        constraints = [
            models.UniqueConstraint(
                fields=["tenant_id", "model", "version_id", "minute"],
                name="tenants_latencyminute_once",
                nulls_distinct=False,
            )
        ]
        indexes = [models.Index(fields=["minute"]), models.Index(fields=["tenant_id", "minute"])]

    def __str__(self) -> str:
        return f"{self.tenant_id} {self.model} {self.minute:%Y-%m-%d %H:%M}"


class LatencyHour(LatencySums):
    """By tenant, model, version and hour (UTC)."""

    tenant_id = models.UUIDField()
    hour = models.DateTimeField()

    class Meta:
        constraints = [
            models.UniqueConstraint(
                fields=["tenant_id", "model", "version_id", "hour"],
                name="tenants_latencyhour_once",
                nulls_distinct=False,
            )
        ]
        indexes = [models.Index(fields=["hour"]), models.Index(fields=["tenant_id", "hour"])]

    def __str__(self) -> str:
        return f"{self.tenant_id} {self.model} {self.hour:%Y-%m-%d %H}"


class ModelLatencyMinute(LatencySums):
    """Over all tenants, by model, version and minute."""

    minute = models.DateTimeField()

    class Meta:
        constraints = [
            models.UniqueConstraint(
                fields=["model", "version_id", "minute"], name="tenants_modellatencyminute_once", nulls_distinct=False
            )
        ]
        indexes = [models.Index(fields=["minute"])]

    def __str__(self) -> str:
        return f"{self.model} {self.minute:%Y-%m-%d %H:%M}"


class ModelLatencyHour(LatencySums):
    """Over all tenants, by model, version and hour (UTC)."""

    hour = models.DateTimeField()

    class Meta:
        constraints = [
            models.UniqueConstraint(
                fields=["model", "version_id", "hour"], name="tenants_modellatencyhour_once", nulls_distinct=False
            )
        ]
        indexes = [models.Index(fields=["hour"])]

    def __str__(self) -> str:
        return f"{self.model} {self.hour:%Y-%m-%d %H}"


class RefusalMinute(models.Model):
    """Requests that were refused before they were forwarded; they have no row of their own in the ledger.

    Without a tenant: nobody knows who asked. `metric` and `window` are of the limit that refused, "" where none did;
    `model` is "" where none of the catalogue was named.
    """

    tenant_id = models.UUIDField(null=True)
    key_id = models.UUIDField(null=True)
    model = models.CharField(max_length=200, blank=True)
    code = models.CharField(max_length=64)
    status = models.PositiveSmallIntegerField()
    metric = models.CharField(max_length=32, blank=True)
    window = models.CharField(max_length=32, blank=True)
    minute = models.DateTimeField()
    refusals = models.BigIntegerField(default=0)

    class Meta:
        constraints = [
            models.UniqueConstraint(
                fields=["tenant_id", "key_id", "model", "code", "metric", "window", "minute"],
                name="tenants_refusalminute_once",
                nulls_distinct=False,
            )
        ]
        indexes = [models.Index(fields=["minute"]), models.Index(fields=["tenant_id", "minute"])]

    def __str__(self) -> str:
        return f"{self.code} {self.minute:%Y-%m-%d %H:%M}"
