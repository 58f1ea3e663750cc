"""What tenants were told, and how far each telling came."""

from typing import Any
from uuid import UUID

from django.db.models import Count, Q, QuerySet

from tenants.models import AccessRequest, Channel, Delivery, Notice, Tenant, Webhook
from tenants.policies.deliveries import DeliveryState


def list_notices(tenant: Tenant | None) -> QuerySet[Any]:
    """A tenant's notices, or the platform's, with `mails` (how many), `mails_pending` and `mails_failed`."""
    mail = Q(deliveries__channel=Channel.EMAIL)
    return (
        Notice.objects.filter(tenant=tenant)
        .annotate(
            mails=Count("deliveries", filter=mail),
            mails_pending=Count("deliveries", filter=mail & Q(deliveries__state=DeliveryState.PENDING)),
            mails_failed=Count("deliveries", filter=mail & Q(deliveries__state=DeliveryState.FAILED)),
        )
        .order_by("-id")
    )


def list_webhooks(tenant: Tenant | None) -> QuerySet[Webhook]:
    """A tenant's webhooks, or the platform's."""
    return Webhook.objects.filter(tenant=tenant).order_by("-id")


def get_webhook(tenant: Tenant | None, webhook_id: UUID) -> Webhook:
    """Raises Webhook.DoesNotExist, also for another tenant's."""
    return Webhook.objects.get(tenant=tenant, pk=webhook_id)


def list_deliveries(webhook: Webhook) -> QuerySet[Delivery]:
    """What was sent to a webhook, and what came of it."""
    return Delivery.objects.filter(webhook=webhook).select_related("notice").order_by("-id")


def list_requests(tenant: Tenant | None = None, *, state: str | None = None) -> QuerySet[AccessRequest]:
    """Requests of one tenant, or of all."""
    requests = AccessRequest.objects.select_related("tenant").order_by("-id")
    if tenant is not None:
        requests = requests.filter(tenant=tenant)
    return requests if state is None else requests.filter(state=state)


def get_request(request_id: UUID, *, tenant: Tenant | None = None) -> AccessRequest:
    """Raises AccessRequest.DoesNotExist, also for another tenant's."""
    return list_requests(tenant).get(pk=request_id)
