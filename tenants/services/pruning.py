"""Deletes what people came in by once it is over: sessions, log-in links, invitations. The audit log keeps that it was.

Each is safe to run twice, and beside itself.
"""

from datetime import datetime, timedelta
from importlib import import_module
from typing import Final

from django.conf import settings
from django.db.models import Q

from tenants.models import Invitation, LoginLink

INVITATIONS_KEPT: Final = timedelta(days=90)
"""After their end: for as long a tenant's owners see who came by which."""


def prune_sessions() -> None:
    """Delete sessions past their time, as Django's `clearsessions` does."""
    import_module(settings.SESSION_ENGINE).SessionStore.clear_expired()


def prune_login_links(*, now: datetime) -> int:
    """Delete links that were used or are past their time; returns how many."""
    return LoginLink.objects.filter(Q(used_at__isnull=False) | Q(expires_at__lte=now)).delete()[0]


def prune_invitations(*, now: datetime) -> int:
    """Delete invitations that were accepted, withdrawn or expired long ago; returns how many."""
    long_ago = now - INVITATIONS_KEPT
    over = Q(accepted_at__lt=long_ago) | Q(withdrawn_at__lt=long_ago)
    expired = Q(accepted_at__isnull=True, withdrawn_at__isnull=True, expires_at__lt=long_ago)
    return Invitation.objects.filter(over | expired).delete()[0]
