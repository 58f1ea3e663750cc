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
