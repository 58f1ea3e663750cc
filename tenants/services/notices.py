"""Telling people: a notice is written once, with a delivery for each person and webhook that it is told to."""

from collections.abc import Mapping
from typing import Any
from uuid import UUID

from django.conf import settings
from django.db import transaction
from django.db.models import Q

from tenants.actor import Actor
from tenants.models import Channel, Delivery, Notice, Tenant, User, Webhook
from tenants.policies.notices import NoticeKind, audience_of
from tenants.services.audit import record_audit


@transaction.atomic
def raise_notice(
    kind: NoticeKind,
    *,
    tenant: Tenant | None,
    payload: Mapping[str, Any],
    dedupe_key: str,
    actor: Actor,
    person: UUID | None = None,
) -> Notice | None:
    """Tell what happened; None when a notice of that key was raised before. Without a tenant it is the platform's.

    `payload`: JSON values, no secrets, people by UUID. `person` is written to whatever role they have. Without a mail
    server nobody is, and the notice is in the list all the same.
    """
    notice, created = Notice.objects.get_or_create(
        dedupe_key=dedupe_key, defaults={"tenant": tenant, "kind": kind.value, "payload": dict(payload)}
    )
    if not created:
        return None
    deliveries = [
        Delivery(notice=notice, channel=Channel.WEBHOOK, webhook=webhook) for webhook in _webhooks(kind, tenant)
    ]
    if settings.GATEHOUSE.smtp_url is not None:
        deliveries += [
            Delivery(notice=notice, channel=Channel.EMAIL, user=user) for user in _people(kind, tenant, person)
        ]
    Delivery.objects.bulk_create(deliveries)
    record_audit(
        "notice.raised",
        subject=notice,
        actor=actor,
        tenant_id=tenant.pk if tenant else None,
        after={"kind": kind.value, "deliveries": len(deliveries)},
    )
    return notice


def _webhooks(kind: NoticeKind, tenant: Tenant | None) -> list[Webhook]:
    enabled = Webhook.objects.filter(tenant=tenant, enabled=True)
    return [webhook for webhook in enabled if not webhook.events or kind.value in webhook.events]


def _people(kind: NoticeKind, tenant: Tenant | None, person: UUID | None) -> list[User]:
    audience = audience_of(kind, of_tenant=tenant is not None)
    told = Q(platform_role__in=audience.platform_roles)
    if tenant is not None and audience.tenant_roles:
        told |= Q(memberships__in=tenant.memberships.filter(role__in=audience.tenant_roles))
    if person is not None:  # unless they left since
        told |= Q(pk=person, memberships__tenant=tenant) | (Q(pk=person) & ~Q(platform_role=""))
    return list(User.objects.filter(told, is_active=True).distinct())
