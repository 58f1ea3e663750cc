"""Celery's view of this app: one service each, safe to run twice."""

from celery import shared_task
from django.utils import timezone

from gateway.services import response_retention


@shared_task(name="gateway.tasks.delete_expired_responses")  # type: ignore[untyped-decorator]  # Celery has no types
def delete_expired_responses() -> int:
    """Delete stored responses whose time is over; returns how many."""
    return response_retention.delete_expired_responses(now=timezone.now())
