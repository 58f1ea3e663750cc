"""What is needed to compare counters with the ledger: spools that have ended, and the engines' own counters."""

from django.db import models

from core.models import TimeOrderedModel


class EndedSpool(models.Model):
    """A dead process whose spool was brought into the ledger whole: nothing more of it is to come."""

    process_id = models.UUIDField(primary_key=True)
    sequence = models.BigIntegerField()  # of its last row, `lost` ones included; 0 for none
    ended_at = models.DateTimeField(auto_now_add=True, db_index=True)

    def __str__(self) -> str:
        return f"{self.process_id} through {self.sequence}"


class EngineReading(models.Model):
    """An engine's token counters when they were last read, one row for each instance."""

    instance_id = models.UUIDField(primary_key=True)
    engine = models.CharField(max_length=32)
    at = models.DateTimeField()
    process_started = models.FloatField(null=True)  # as the engine says it, seconds since the epoch
    input_tokens = models.BigIntegerField(null=True)
    output_tokens = models.BigIntegerField(null=True)
    cached_tokens = models.BigIntegerField(null=True)

    def __str__(self) -> str:
        return f"{self.instance_id} at {self.at:%Y-%m-%d %H:%M}"


class EngineDrift(TimeOrderedModel):
    """One endpoint between two readings: what the ledger has, what the engine counted. Tokens; null is unknown.

    `tolerance_*`: tokens of requests that were under way at one of the two readings, which may be on either side of it,
    and bounds of those that were lost in between. What is not through the door is on the engine's side alone: warm-ups,
    and whoever else may use an attached engine; so are attempts that failed before another engine answered.
    """

    instance_id = models.UUIDField()
    engine = models.CharField(max_length=32)
    model = models.CharField(max_length=200)
    since = models.DateTimeField()
    until = models.DateTimeField()
    restarted = models.BooleanField(default=False)  # the engine's counters began anew: what they had is not known whole
    requests = models.IntegerField(default=0)
    ledger_input = models.BigIntegerField(default=0)
    ledger_cached = models.BigIntegerField(default=0)
    ledger_output = models.BigIntegerField(default=0)
    estimated_output = models.BigIntegerField(default=0)  # of ledger_output, what no engine had told
    without_cached = models.BooleanField(default=False)  # engine_input leaves out what the engine had in its cache
    engine_input = models.BigIntegerField(null=True)
    engine_output = models.BigIntegerField(null=True)
    engine_cached = models.BigIntegerField(null=True)
    tolerance_input = models.BigIntegerField(default=0)
    tolerance_output = models.BigIntegerField(default=0)

    class Meta:
        constraints = [models.UniqueConstraint(fields=["instance_id", "until"], name="gateway_enginedrift_once")]
        indexes = [models.Index(fields=["until"]), models.Index(fields=["instance_id", "-id"])]

    def __str__(self) -> str:
        return f"{self.instance_id} until {self.until:%Y-%m-%d %H:%M}"

    @property
    def difference_input(self) -> int | None:
        """Engine less ledger, of what the engine counts as input; None where it does not say."""
        if self.engine_input is None:
            return None
        return self.engine_input - self.ledger_input + (self.ledger_cached if self.without_cached else 0)

    @property
    def difference_output(self) -> int | None:
        """Engine less ledger."""
        return None if self.engine_output is None else self.engine_output - self.ledger_output

    @property
    def explained(self) -> bool | None:
        """Whether what differs may be requests that were under way; None where the engine restarted or says nothing."""
        if self.restarted or (self.difference_input is None and self.difference_output is None):
            return None
        return (
            abs(self.difference_input or 0) <= self.tolerance_input
            and abs(self.difference_output or 0) <= self.tolerance_output
        )
