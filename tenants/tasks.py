"""Celery's view of this app: one service each, safe to run twice."""

import random
from datetime import timedelta
from uuid import UUID

from celery import shared_task
from django.conf import settings
from django.utils import timezone

from tenants.services import (
    alerts,
    configuration,
    deliveries,
    endings,
    erasure,
    grants,
    invitations,
    latency,
    ledger,
    partitions,
    pruning,
    refusals,
    requests,
    rollups,
)
from tenants.services.senders import SENDERS

_LATELY = timedelta(days=1)  # budgets of those who used nothing stand where they stood


@shared_task(name="tenants.tasks.ensure_partitions")
def ensure_partitions() -> list[str]:
    """Make the ledger's partitions ahead of time; returns the names of those made."""
    return partitions.ensure_partitions()


@shared_task(name="tenants.tasks.prune_marks")
def prune_marks() -> int:
    """Delete ledger marks of processes that are long gone; returns how many."""
    return ledger.prune_marks(now=timezone.now())


@shared_task(name="tenants.tasks.send_deliveries")
def send_deliveries() -> int:
    """Send notices to people and webhooks; returns how many attempts."""
    deliveries.end_overdue_deliveries(now=timezone.now())
    return deliveries.send_due_deliveries(SENDERS, now=timezone.now, jitter=random.random)


@shared_task(name="tenants.tasks.prune_deliveries")
def prune_deliveries() -> int:
    """Delete the log of deliveries of long ago; returns how many."""
    return deliveries.prune_deliveries(now=timezone.now())


@shared_task(name="tenants.tasks.tell_active_budgets")
def tell_active_budgets() -> int:
    """Tell of budgets of those who used something just now; returns how many."""
    now = timezone.now()
    return alerts.tell_budgets(now=now, active_since=now - timedelta(minutes=15))


@shared_task(name="tenants.tasks.tell_what_comes")
def tell_what_comes() -> int:
    """Tell of what ends soon, and of budgets once more; returns how many were new."""
    now = timezone.now()
    ending = alerts.tell_expiring_keys(now=now) + alerts.tell_endings(now=now)
    return ending + alerts.tell_budgets(now=now, active_since=now - _LATELY)


@shared_task(name="tenants.tasks.tell_forecasts", time_limit=3300)
def tell_forecasts() -> int:
    """Tell of months that will not do; returns how many were new. Some milliseconds for each monthly budget."""
    now = timezone.now()
    return alerts.tell_forecasts(now=now, active_since=now - _LATELY)


@shared_task(name="tenants.tasks.end_what_is_over")
def end_what_is_over() -> int:
    """Write down the end of grants, raised limits and requests whose time is over; returns how many."""
    now = timezone.now()
    return grants.remove_expired_grants(now) + endings.end_boosts(now=now) + requests.expire_requests(now=now)


@shared_task(name="tenants.tasks.prune_minutes")
def prune_minutes() -> int:
    """Delete old sums by the minute, whose hours stay, and old histograms and refusals; returns how many."""
    now = timezone.now()
    kept = timedelta(days=settings.GATEHOUSE.minutes_kept_days)
    others = latency.prune_latency(now=now, minutes_kept=kept) + refusals.prune_refusals(now=now, older_than=kept)
    return rollups.prune_minutes(now=now, older_than=kept) + others


@shared_task(name="tenants.tasks.mail_invitation", autoretry_for=(OSError,), retry_backoff=True, max_retries=6)
def mail_invitation(invitation_id: str, sealed_link: str) -> bool:
    """Send an invitation's link; tried again while the mail server is away. The link can be copied all the while."""
    return invitations.mail_invitation(UUID(invitation_id), sealed_link)


@shared_task(name="tenants.tasks.prune_configuration_history")
def prune_configuration_history() -> int:
    """Delete history of configuration that nobody rolls back to; returns how many rows."""
    return configuration.prune_history()


@shared_task(name="tenants.tasks.prune_sessions")
def prune_sessions() -> None:
    """Delete sessions past their time."""
    pruning.prune_sessions()


@shared_task(name="tenants.tasks.prune_login_links")
def prune_login_links() -> int:
    """Delete links that log nobody in any more; returns how many."""
    return pruning.prune_login_links(now=timezone.now())


@shared_task(name="tenants.tasks.prune_invitations")
def prune_invitations() -> int:
    """Delete invitations that ended long ago; returns how many."""
    return pruning.prune_invitations(now=timezone.now())


@shared_task(name="tenants.tasks.finish_erasures")
def finish_erasures() -> int:
    """Go on with erasures of tenants that were broken off; returns how many."""
    return erasure.finish_erasures(now=timezone.now())
