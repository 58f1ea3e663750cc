"""Tells the hubs that a session has ended, so that its sockets close at once and not at the next look."""

from typing import Any

from django.contrib.sessions.models import Session
from django.db import transaction
from django.db.models.signals import post_delete
from django.utils import timezone

from core import bus


def connect() -> None:
    post_delete.connect(_tell, sender=Session, dispatch_uid="live-log-outs")


def _tell(instance: Session, **_: Any) -> None:
    if instance.expire_date <= timezone.now():
        return  # pruned by the thousand; sockets of a session end by its date
    # The session is gone for everyone only once it is committed; the signal of the log-out itself comes before.
    transaction.on_commit(lambda: bus.hint(bus.PEOPLE, 0))
