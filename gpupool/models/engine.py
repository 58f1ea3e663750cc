"""Switches of engines: what an installation uses of the rooms that it has."""

from django.db import models

from core.models import TimeOrderedModel


class EngineSwitch(TimeOrderedModel):
    """Whether an engine's room is used. A room without a row is; only rooms that were ever switched have one."""

    name = models.CharField(max_length=32, unique=True)
    enabled = models.BooleanField(default=True)
    changed_at = models.DateTimeField(auto_now=True)

    def __str__(self) -> str:
        return f"{self.name} {'on' if self.enabled else 'off'}"
