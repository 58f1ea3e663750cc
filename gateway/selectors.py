"""Reads of this app."""

from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

from django.db.models import QuerySet

from gateway.models import EngineDrift, StoredConversation
from tenants.models import Tenant


def list_drift(*, since: datetime | None = None, **filters: Any) -> QuerySet[EngineDrift]:
    """The ledger beside engines' counters, newest first. `filters`: instance_id, engine, model, restarted."""
    windows = EngineDrift.objects.order_by("-id").filter(**filters)
    return windows if since is None else windows.filter(until__gte=since)


def list_conversations(tenant: Tenant, *, now: datetime, **filters: Any) -> QuerySet[StoredConversation]:
    """A tenant's that are still kept, newest first, without what was said. `filters`: key_id, model, api, outcome."""
    kept_since = now - timedelta(days=tenant.conversation_retention_days)
    rows = StoredConversation.objects.filter(tenant_id=tenant.pk, expires_at__gt=now, created_at__gt=kept_since)
    return rows.filter(**filters).defer("messages", "answer").order_by("-id")


def get_conversation(tenant: Tenant, conversation_id: UUID, *, now: datetime) -> StoredConversation:
    """One of them, whole. Raises StoredConversation.DoesNotExist."""
    return list_conversations(tenant, now=now).defer(None).get(pk=conversation_id)
