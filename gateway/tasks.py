"""Celery's view of this app: one service each, safe to run twice."""

from celery import shared_task
from django.utils import timezone

from gateway.services import engine_counters, objective_alerts, refused_budgets, response_retention


@shared_task(name="gateway.tasks.delete_expired_responses")
def delete_expired_responses() -> int:
    """Delete stored responses whose time is over; returns how many."""
    return response_retention.delete_expired_responses(now=timezone.now())


@shared_task(name="gateway.tasks.delete_expired_conversations")
def delete_expired_conversations() -> int:
    """Delete stored conversations whose time is over; returns how many."""
    return response_retention.delete_expired_conversations(now=timezone.now())


@shared_task(name="gateway.tasks.reconcile_engines")
def reconcile_engines() -> int:
    """Compare the ledger with engines' own counters since the last time; returns how many endpoints were compared."""
    return engine_counters.reconcile_engines()


@shared_task(name="gateway.tasks.tell_refusing_budgets")
def tell_refusing_budgets() -> int:
    """Tell of budgets that refuse requests because of what others have reserved; returns how many were new."""
    return refused_budgets.tell_refusing_budgets(now=timezone.now())


@shared_task(name="gateway.tasks.evaluate_objectives")
def evaluate_objectives() -> int:
    """Count for objectives, open and close their alerts, and tell; returns how many were told of."""
    return objective_alerts.evaluate_objectives(now=timezone.now())
