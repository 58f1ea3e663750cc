"""Epochs and the change table: how every process learns of a write within a quarter of a second."""

from django.db import models

from core.ids import uuid7


class TimeOrderedModel(models.Model):
    """Base of all rows with a UUIDv7 key."""

    id = models.UUIDField(primary_key=True, default=uuid7, editable=False)

    class Meta:
        abstract = True


class SectionEpoch(models.Model):
    """The newest epoch of one section of the snapshot; the row's lock orders commits."""

    section = models.CharField(max_length=32, primary_key=True)
    epoch = models.BigIntegerField(default=0)
    pruned_through = models.BigIntegerField(default=0)
    """Changes up to here were deleted: a reader that is behind it reloads the section whole."""


class Change(models.Model):
    """One changed object: (section, epoch, object)."""

    section = models.CharField(max_length=32)
    epoch = models.BigIntegerField()
    object_id = models.UUIDField()
    at = models.DateTimeField(auto_now_add=True)

    class Meta:
        constraints = [models.UniqueConstraint(fields=["section", "epoch"], name="core_change_section_epoch")]
        indexes = [models.Index(fields=["at"])]


class IdempotencyRecord(models.Model):
    """The answer to one POST with an `Idempotency-Key`; see core.api.idempotency."""

    person_id = models.UUIDField()
    key_digest = models.BinaryField(max_length=32)
    target = models.CharField(max_length=500)
    """Method and address, to look at."""
    request_digest = models.BinaryField(max_length=32)
    """Of method, address and body."""
    status = models.PositiveSmallIntegerField()
    body = models.JSONField(null=True)
    headers = models.JSONField(default=dict)
    created_at = models.DateTimeField()

    class Meta:
        constraints = [models.UniqueConstraint(fields=["person_id", "key_digest"], name="core_idempotency_key")]
        indexes = [models.Index(fields=["created_at"])]
