"""What is promised of requests, how many kept the promise, and who is told when too many do not."""

from django.contrib.postgres.fields import ArrayField
from django.db import models
from django.utils import timezone

from core.models import TimeOrderedModel
from gateway.policies.slo import Kind
from gateway.policies.slo_alerts import AlertState, Severity
from tenants.models import SlaTier, Tenant, User


class Objective(TimeOrderedModel):
    """So large a share of requests is good, over a rolling window.

    What is counted are the requests that all of `model`, `tenant`, `tier` and `version_id` apply to; one that is empty
    applies to all. `tenants_own`: the tenant's managers made it, and may change it; all others are the platform's.
    """

    name = models.CharField(max_length=120)
    kind = models.CharField(max_length=12, choices=[(kind.value, kind.value) for kind in Kind])
    target = models.FloatField()  # the share that is to be good, e.g. 0.99
    threshold_seconds = models.FloatField(null=True, blank=True)  # a bound of the histogram; null: availability
    window_days = models.PositiveSmallIntegerField(default=30)
    model = models.CharField(max_length=200, blank=True)  # the name at the door
    tenant = models.ForeignKey(Tenant, null=True, blank=True, on_delete=models.CASCADE, related_name="objectives")
    tier = models.CharField(max_length=8, choices=SlaTier, blank=True)
    version_id = models.UUIDField(null=True, blank=True)  # a release
    tenants_own = models.BooleanField(default=False)
    enabled = models.BooleanField(default=True)  # else nothing is counted, and nobody is told
    preset = models.CharField(max_length=40, blank=True)  # of a tier's own objectives: tier:kind
    tallied_at = models.DateTimeField(null=True, blank=True, editable=False)  # null: its window is not counted yet
    count_failed_at = models.DateTimeField(null=True, blank=True, editable=False)  # its window took too long then
    # A share of its budget, as the last look found it. Lists sort by it: what is left now is a sum of a whole window.
    budget_remaining = models.FloatField(null=True, blank=True, editable=False)
    created_by = models.ForeignKey(User, null=True, blank=True, on_delete=models.SET_NULL, related_name="+")
    created_at = models.DateTimeField(auto_now_add=True)

    class Meta:
        constraints = [
            models.CheckConstraint(condition=models.Q(target__gt=0, target__lt=1), name="gateway_objective_target"),
            models.CheckConstraint(condition=models.Q(window_days__gte=1), name="gateway_objective_window"),
            models.UniqueConstraint(
                fields=["preset"], condition=~models.Q(preset=""), name="gateway_objective_preset_once"
            ),
            # Rules for Prometheus, alerts and people know them by name: two of one name were one in those.
            models.UniqueConstraint(
                fields=["name"], condition=models.Q(tenants_own=False), name="gateway_objective_name_once"
            ),
            models.UniqueConstraint(
                fields=["tenant", "name"],
                condition=models.Q(tenants_own=True),
                name="gateway_objective_tenants_name_once",
            ),
        ]
        indexes = [models.Index(fields=["tenant", "-id"])]

    def __str__(self) -> str:
        return self.name


class Tally(models.Model):
    """How many requests there were for an objective in some time, and how many of them were good.

    `buckets` counts them by latency, each bucket for itself, with the bounds of the objective's histogram.
    """

    total = models.BigIntegerField()
    good = models.BigIntegerField()
    buckets = ArrayField(models.BigIntegerField())

    class Meta:
        abstract = True


class ObjectiveMinute(Tally):
    """By the minute; kept for as long as minutes are looked at."""

    objective = models.ForeignKey(Objective, on_delete=models.CASCADE, related_name="minutes")
    minute = models.DateTimeField()

    class Meta:
        constraints = [  # pages add up from the index alone: rows are wide
            models.UniqueConstraint(
                fields=["objective", "minute"], include=["total", "good"], name="gateway_objectiveminute_once"
            )
        ]
        indexes = [models.Index(fields=["minute"])]

    def __str__(self) -> str:
        return f"{self.objective_id} {self.minute:%Y-%m-%d %H:%M}"


class ObjectiveHour(Tally):
    """By the hour (UTC), for the whole window."""

    objective = models.ForeignKey(Objective, on_delete=models.CASCADE, related_name="hours")
    hour = models.DateTimeField()

    class Meta:
        constraints = [
            models.UniqueConstraint(
                fields=["objective", "hour"], include=["total", "good"], name="gateway_objectivehour_once"
            )
        ]
        indexes = [models.Index(fields=["hour"])]

    def __str__(self) -> str:
        return f"{self.objective_id} {self.hour:%Y-%m-%d %H}"


class ObjectiveAlert(TimeOrderedModel):
    """A pair of windows of one objective burns too fast. One is open at most for each pair.

    `told_at` is empty while nobody was told or is to be told anew: a silence held it back.
    """

    objective = models.ForeignKey(Objective, on_delete=models.CASCADE, related_name="alerts")
    pair = models.CharField(max_length=12)  # a key of gateway.policies.slo.PAIRS
    severity = models.CharField(max_length=8, choices=[(one.value, one.value) for one in Severity])
    state = models.CharField(
        max_length=14, choices=[(one.value, one.value) for one in AlertState], default=AlertState.FIRING.value
    )
    long_burn = models.FloatField()  # as last seen while it burned
    short_burn = models.FloatField()
    opened_at = models.DateTimeField(default=timezone.now)
    calm_since = models.DateTimeField(null=True, blank=True)  # it burns no more, but not for long enough
    told_at = models.DateTimeField(null=True, blank=True)
    told = models.PositiveIntegerField(default=0)  # how often
    acknowledged_at = models.DateTimeField(null=True, blank=True)
    acknowledged_by = models.ForeignKey(User, null=True, blank=True, on_delete=models.SET_NULL, related_name="+")
    resolved_at = models.DateTimeField(null=True, blank=True)

    class Meta:
        constraints = [
            models.UniqueConstraint(
                fields=["objective", "pair"],
                condition=~models.Q(state=AlertState.RESOLVED.value),
                name="gateway_objectivealert_open_once",
            )
        ]
        indexes = [models.Index(fields=["objective", "-id"])]

    def __str__(self) -> str:
        return f"{self.objective_id} {self.pair} {self.state}"


class Silence(TimeOrderedModel):
    """Nobody is told of alerts for a time: of one objective, of a tenant's own ones, or of all of the platform's.

    `tenant` says whose silence it is: the platform's holds nothing back that a tenant set up for itself, nor the other
    way round.
    """

    objective = models.ForeignKey(Objective, null=True, blank=True, on_delete=models.CASCADE, related_name="silences")
    tenant = models.ForeignKey(Tenant, null=True, blank=True, on_delete=models.CASCADE, related_name="silences")
    reason = models.CharField(max_length=200)
    starts_at = models.DateTimeField(default=timezone.now)
    ends_at = models.DateTimeField()
    created_by = models.ForeignKey(User, null=True, blank=True, on_delete=models.SET_NULL, related_name="+")
    created_at = models.DateTimeField(auto_now_add=True)

    class Meta:
        indexes = [models.Index(fields=["ends_at"])]

    def __str__(self) -> str:
        return f"silence {self.pk} until {self.ends_at:%Y-%m-%d %H:%M}"
