"""Webhooks: made, changed, given a new secret, tested, disabled, deleted."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import cache
from typing import Final
from urllib.parse import urlsplit
from uuid import UUID

from django.conf import settings
from django.db import transaction
from django.utils import timezone

from core.ids import uuid7
from core.outbound import OutboundClient, OutboundError, OutboundLimits
from core.tls import outbound_context
from tenants.actor import SYSTEM, Actor
from tenants.models import Channel, Delivery, Notice, Tenant, Webhook
from tenants.policies.deliveries import DeliveryState
from tenants.policies.notices import PLATFORM_KINDS, TENANT_KINDS, NoticeKind
from tenants.services.audit import record_audit
from tenants.services.errors import Conflict, InvalidInput
from tenants.services.notices import raise_notice
from tenants.services.webhook_secrets import webhook_secret

MOST_WEBHOOKS: Final = 20
"""Of one tenant, and of the platform."""

BY_HAND: Final = "Disabled by hand."
"""Why a webhook is disabled that did not fail."""

_CHECK_SECONDS: Final = 5.0
_POST_SECONDS: Final = 10.0
_ANSWER_BYTES: Final = 64 * 1024


@dataclass(frozen=True, slots=True)
class NewSecret:
    """A webhook and its secret, which is shown now or never."""

    webhook: Webhook
    secret: str


@cache
def outbound_client() -> OutboundClient:
    """One for the process: it reads the certificates that are trusted. Raises SettingsError."""
    return OutboundClient(tls=outbound_context(settings.GATEHOUSE.outbound_ca_file))


def outbound_limits(total_seconds: float = _POST_SECONDS) -> OutboundLimits:
    """What webhooks may reach: by the installation's setting, asked at every use."""
    inside: bool = settings.GATEHOUSE.webhook_allow_private
    return OutboundLimits(
        total_seconds=total_seconds, answer_bytes=_ANSWER_BYTES, allow_private=inside, allow_http=inside
    )


@transaction.atomic
def create_webhook(
    tenant: Tenant | None, *, url: str, actor: Actor, events: Sequence[str] = (), client: OutboundClient | None = None
) -> NewSecret:
    """Without a tenant, of the platform. `events`: kinds of notices that its owner is told of, none for all.

    Raises InvalidInput for any other event, and for an address that cannot be used or is inside this network;
    Conflict beyond MOST_WEBHOOKS.
    """
    events = _events(events, tenant)
    host = _check(url, client)
    if Webhook.objects.filter(tenant=tenant).count() >= MOST_WEBHOOKS:
        raise Conflict(f"There are {MOST_WEBHOOKS} webhooks already.")
    webhook = Webhook.objects.create(tenant=tenant, url=url, events=events)
    _tell("webhook.created", webhook, actor, after={"host": host, "events": events})
    return NewSecret(webhook, webhook_secret(webhook.pk, webhook.secret_version))


def lock_webhook(webhook_id: UUID) -> Webhook:
    """The webhook, its row locked until the transaction ends. Raises Webhook.DoesNotExist."""
    return Webhook.objects.select_for_update(of=("self",)).select_related("tenant").get(pk=webhook_id)


@transaction.atomic
def change_webhook(
    webhook_id: UUID,
    *,
    actor: Actor,
    url: str | None = None,
    events: Sequence[str] | None = None,
    enabled: bool | None = None,
    client: OutboundClient | None = None,
) -> Webhook:
    """None leaves a value as it is. To disable it ends its pending deliveries, to enable it forgets its failures.

    Raises Webhook.DoesNotExist, and InvalidInput as `create_webhook`.
    """
    webhook = lock_webhook(webhook_id)
    before = {"url": webhook.url, "events": webhook.events, "enabled": webhook.enabled}
    if url is not None and url != webhook.url:
        _check(url, client)
        webhook.url = url
        webhook.failing_since = None
    if events is not None:
        webhook.events = _events(events, webhook.tenant, had=webhook.events)
    if enabled is not None and enabled != webhook.enabled:
        webhook.enabled = enabled
        webhook.failing_since, webhook.disabled_reason = None, "" if enabled else BY_HAND
        if not enabled:
            _end_pending(webhook)
    after = {"url": webhook.url, "events": webhook.events, "enabled": webhook.enabled}
    if after != before:
        webhook.save()
        for values in (before, after):
            values["host"] = host_of(str(values.pop("url")))  # an address may have a token in it
        _tell("webhook.changed", webhook, actor, before=before, after=after)
    return webhook


@transaction.atomic
def rotate_webhook_secret(webhook_id: UUID, *, actor: Actor) -> NewSecret:
    """A new secret. For a day the one before signs beside it. Raises Webhook.DoesNotExist."""
    webhook = lock_webhook(webhook_id)
    webhook.secret_version += 1
    webhook.rotated_at = timezone.now()
    webhook.save(update_fields=["secret_version", "rotated_at"])
    _tell("webhook.secret_rotated", webhook, actor, after={"version": webhook.secret_version})
    return NewSecret(webhook, webhook_secret(webhook.pk, webhook.secret_version))


@transaction.atomic
def delete_webhook(webhook_id: UUID, *, actor: Actor) -> None:
    """With the log of its deliveries. Raises Webhook.DoesNotExist."""
    webhook = lock_webhook(webhook_id)
    _tell("webhook.deleted", webhook, actor, before={"host": host_of(webhook.url)})
    webhook.delete()


@transaction.atomic
def send_test_notice(webhook_id: UUID, *, actor: Actor) -> Delivery:
    """Send a notice that nothing happened to this webhook alone.

    Raises Webhook.DoesNotExist; Conflict when it is disabled, or the test before is still tried.
    """
    webhook = lock_webhook(webhook_id)
    if not webhook.enabled:
        raise Conflict("The webhook is disabled: enable it first.")
    tests = Delivery.objects.filter(webhook=webhook, notice__kind=NoticeKind.TEST.value)
    if tests.filter(state=DeliveryState.PENDING).exists():
        raise Conflict("A test is under way already: see the webhook's deliveries.")
    notice = Notice.objects.create(
        tenant=webhook.tenant, kind=NoticeKind.TEST.value, payload={}, dedupe_key=f"test:{uuid7()}"
    )
    _tell("webhook.tested", webhook, actor)
    return Delivery.objects.create(notice=notice, channel=Channel.WEBHOOK, webhook=webhook)


@transaction.atomic
def disable_failing_webhook(webhook_id: UUID, *, reason: str, now: datetime) -> bool:
    """Give a webhook up that fails, and tell its owners; False when it is disabled or gone already."""
    webhook = Webhook.objects.select_for_update(of=("self",)).select_related("tenant").filter(pk=webhook_id).first()
    if webhook is None or not webhook.enabled:
        return False
    webhook.enabled, webhook.disabled_reason = False, reason[:200]
    webhook.save(update_fields=["enabled", "disabled_reason"])
    _end_pending(webhook)
    _tell("webhook.disabled", webhook, SYSTEM, after={"reason": webhook.disabled_reason})
    raise_notice(
        NoticeKind.WEBHOOK_DISABLED,
        tenant=webhook.tenant,
        payload={"webhook": str(webhook.pk), "host": host_of(webhook.url), "reason": webhook.disabled_reason},
        dedupe_key=f"webhook-disabled:{webhook.pk}:{now.isoformat()}",
        actor=SYSTEM,
    )
    return True


def _end_pending(webhook: Webhook) -> None:
    Delivery.objects.filter(webhook=webhook, state=DeliveryState.PENDING).update(
        state=DeliveryState.FAILED.value, last_error="The webhook was disabled.", ended_at=timezone.now()
    )


def _check(url: str, client: OutboundClient | None) -> str:
    """The host of an address that may be posted to now; it is judged again whenever something is sent."""
    try:
        return (client or outbound_client()).check(url, limits=outbound_limits(_CHECK_SECONDS)).host
    except OutboundError as error:
        raise InvalidInput("url", str(error)) from error


def host_of(url: str) -> str:
    """What may be told of an address everywhere, its host and port: the rest may have a token in it."""
    try:
        return urlsplit(url).netloc.rpartition("@")[2]
    except ValueError:
        return ""  # brackets that hold no address


def origin_of(url: str) -> str:
    """Its scheme and `host_of`."""
    return f"{url.partition(':')[0]}://{host_of(url)}"


def _events(events: Sequence[str], tenant: Tenant | None, *, had: Sequence[str] = ()) -> list[str]:
    """Without what its owner is never told of, unless it has chosen that before it was refused."""
    kinds = PLATFORM_KINDS if tenant is None else TENANT_KINDS
    if set(events) - kinds - set(had):
        raise InvalidInput("events", f"Events are some of {', '.join(sorted(kinds))}.")
    return sorted(set(events))


def _tell(
    action: str,
    webhook: Webhook,
    actor: Actor,
    before: dict[str, object] | None = None,
    after: dict[str, object] | None = None,
) -> None:
    record_audit(action, subject=webhook, actor=actor, tenant_id=webhook.tenant_id, before=before, after=after)
