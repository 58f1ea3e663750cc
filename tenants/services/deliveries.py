"""Sending what is due: claimed in one transaction, sent outside of any, recorded in another.

A claim moves the delivery's next attempt a while ahead. Whoever claimed it and died leaves it to be attempted again
then, with the same id: receivers are told at least once. Two senders at once never claim the same one.
"""

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Final
from uuid import UUID

import msgspec
import structlog
from django.conf import settings
from django.db import transaction
from django.db.models import Q, Window
from django.db.models.functions import Coalesce, RowNumber

from tenants.models import Channel, Delivery, Tenant, User, Webhook
from tenants.policies.deliveries import (
    DISABLE_SECONDS,
    GIVE_UP_SECONDS,
    DeliveryState,
    is_to_be_disabled,
    next_attempt,
    signing_versions,
)
from tenants.policies.notices import NoticeKind
from tenants.services.mail import Mail
from tenants.services.notice_links import notice_link
from tenants.services.notice_saying import notice_said
from tenants.services.webhook_secrets import signed_headers
from tenants.services.webhooks import disable_failing_webhook

CLAIM_SECONDS: Final = 120.0
MOST_OF_ONE_WEBHOOK: Final = 4
"""In one batch: fewer than there are senders."""

_BATCH: Final = 16
_CLAIMERS: Final = 4  # at once, that find something
_SENDERS: Final = 8
_LONGEST_SECONDS: Final = 20.0  # and a batch: a worker has other things to do
_GONE: Final = 410
_KINDS: Final = frozenset(kind.value for kind in NoticeKind)
_DAY_SECONDS: Final = 86_400

logger = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Post:
    """A message to a webhook, signed."""

    url: str
    headers: dict[str, str]
    body: bytes


@dataclass(frozen=True, slots=True)
class Delivered:
    status: int | None = None  # of HTTP


@dataclass(frozen=True, slots=True)
class NotDelivered:
    """`again`: it may succeed later. `status`: of HTTP."""

    error: str
    status: int | None = None
    again: bool = True


Outcome = Delivered | NotDelivered


@dataclass(frozen=True, slots=True)
class Senders:
    """What brings messages out of the house; called on threads that may not touch the database."""

    post: Callable[[Post], Outcome]
    mail: Callable[[Mail], Outcome]


@dataclass(frozen=True, slots=True)
class _Claimed:
    """A delivery as it was claimed, and what there is to send; NotDelivered where there is nothing."""

    id: UUID
    attempts: int
    created_at: datetime
    webhook_id: UUID | None
    message: Post | Mail | NotDelivered


def send_due_deliveries(senders: Senders, *, now: Callable[[], datetime], jitter: Callable[[], float]) -> int:
    """Attempt what is due, for about half a minute; returns how many attempts. Safe to run twice, also at once."""
    began = now()
    attempted = 0
    with ThreadPoolExecutor(_SENDERS, thread_name_prefix="deliver") as threads:
        while (now() - began).total_seconds() < _LONGEST_SECONDS:
            claimed = claim_due(now())
            if not claimed:
                break
            for delivery, outcome in zip(claimed, threads.map(lambda one: _send(one, senders), claimed), strict=True):
                record_outcome(delivery, outcome, now=now(), jitter=jitter())
            attempted += len(claimed)
    return attempted


def claim_due(now: datetime, *, most: int = _BATCH) -> Sequence[_Claimed]:
    """Take deliveries whose time has come, with what there is to send.

    They are claimed first and worded then: one that cannot be worded must not give all others back.
    """
    rows = _claim(now, most)
    return [_Claimed(row.pk, row.attempts, row.created_at, row.webhook_id, _worded(row, now)) for row in rows]


@transaction.atomic
def _claim(now: datetime, most: int) -> Sequence[Delivery]:
    """Take deliveries whose time has come, those first that wait longest, and few of each webhook.

    One that is slow to answer, and has much to be told, would keep all others waiting.
    """
    due = Q(state=DeliveryState.PENDING, next_attempt_at__lte=now)
    place = Window(RowNumber(), partition_by=Coalesce("webhook_id", "pk"), order_by="next_attempt_at")
    first = Delivery.objects.filter(due).annotate(place=place).filter(place__lte=MOST_OF_ONE_WEBHOOK)
    chosen = [row.pk for row in first.only("pk").order_by("next_attempt_at")[: most * _CLAIMERS]]
    rows = list(
        Delivery.objects.select_for_update(skip_locked=True, of=("self",))
        .filter(due, pk__in=chosen)
        .select_related("notice__tenant", "user", "webhook")
        .order_by("next_attempt_at")[:most]
    )
    for row in rows:
        row.attempts += 1
        row.next_attempt_at = now + timedelta(seconds=CLAIM_SECONDS)
    Delivery.objects.bulk_update(rows, ["attempts", "next_attempt_at"])
    return rows


@transaction.atomic
def record_outcome(delivery: _Claimed, outcome: Outcome, *, now: datetime, jitter: float) -> None:
    """Write down how an attempt ended. What was delivered stays so, whoever else attempts it too."""
    pending = Delivery.objects.filter(pk=delivery.id, state=DeliveryState.PENDING)
    if isinstance(outcome, Delivered):
        pending.update(state=DeliveryState.DELIVERED.value, last_status=outcome.status, last_error="", ended_at=now)
        if delivery.webhook_id is not None:
            Webhook.objects.filter(pk=delivery.webhook_id, failing_since__isnull=False).update(failing_since=None)
        return
    again = next_attempt(
        delivery.attempts,
        created_at=delivery.created_at.timestamp(),
        now=now.timestamp(),
        jitter=jitter,
    )
    told: dict[str, Any] = {"last_status": outcome.status, "last_error": outcome.error[:200]}
    given_up = not outcome.again or again is None
    if again is not None and not given_up:
        told["next_attempt_at"] = datetime.fromtimestamp(again, UTC)
    else:
        told |= {"state": DeliveryState.FAILED.value, "ended_at": now}
    # Only while the claim is still ours: whoever claimed it since says how it goes on.
    pending.filter(attempts=delivery.attempts).update(**told)
    if delivery.webhook_id is not None:
        _note_failure(delivery.webhook_id, outcome, given_up=given_up, now=now)


@transaction.atomic
def end_overdue_deliveries(*, now: datetime) -> int:
    """Give up what was attempted and is a day old: also where every attempt took its sender down. Safe to run twice."""
    oldest = now - timedelta(seconds=GIVE_UP_SECONDS + CLAIM_SECONDS)
    overdue = Delivery.objects.filter(
        state=DeliveryState.PENDING, attempts__gt=0, created_at__lt=oldest, next_attempt_at__lte=now
    )
    return overdue.update(
        state=DeliveryState.FAILED.value, ended_at=now, last_error="It was given up after a day of attempts."
    )


def prune_deliveries(*, now: datetime, days: int = 90) -> int:
    """Delete ended deliveries of long ago; returns how many. Notices stay. Safe to run twice."""
    deleted, _ = Delivery.objects.filter(ended_at__isnull=False, created_at__lt=now - timedelta(days=days)).delete()
    return deleted


def _note_failure(webhook_id: UUID, outcome: NotDelivered, *, given_up: bool, now: datetime) -> None:
    """Days may pass in which there was nothing to be told: only a message that was given up ends the webhook."""
    if outcome.status == _GONE:
        disable_failing_webhook(webhook_id, reason="It answered 410: nobody is there any more.", now=now)
        return
    Webhook.objects.filter(pk=webhook_id, failing_since__isnull=True, enabled=True).update(failing_since=now)
    since = Webhook.objects.filter(pk=webhook_id).values_list("failing_since", flat=True).first()
    if given_up and since is not None and is_to_be_disabled(since.timestamp(), now.timestamp()):
        days = int(DISABLE_SECONDS / _DAY_SECONDS)
        reason = f"Every attempt failed for {days} days, the last with: {outcome.error}"
        disable_failing_webhook(webhook_id, reason=reason, now=now)


def _send(delivery: _Claimed, senders: Senders) -> Outcome:
    try:
        match delivery.message:
            case Post() as post:
                return senders.post(post)
            case Mail() as mail:
                return senders.mail(mail)
            case NotDelivered() as nothing:
                return nothing
    except Exception:
        # A defect of ours with one message must not keep what became of the others from being recorded.
        logger.exception("delivery_failed", delivery_id=str(delivery.id))
        return NotDelivered("It could not be sent.")


def _worded(row: Delivery, now: datetime) -> Post | Mail | NotDelivered:
    try:
        return _message(row, now) or NotDelivered("There is nobody to send it to any more.", again=False)
    except Exception:  # as in _send
        logger.exception("delivery_not_worded", delivery_id=str(row.pk))
        return NotDelivered("It could not be sent.")


def _message(row: Delivery, now: datetime) -> Post | Mail | None:
    if row.channel == Channel.WEBHOOK:
        return _post(row, now) if row.webhook is not None and row.webhook.enabled else None
    notice = row.notice
    if row.user is None or settings.GATEHOUSE.smtp_url is None or not _may_be_told(row.user, notice.tenant):
        return None
    if notice.kind not in _KINDS:
        return None  # of a later version than this process
    text = notice_said(NoticeKind(notice.kind), notice.payload, row.user.language)
    whose = f"{notice.tenant.name}: " if notice.tenant is not None else ""
    link = notice_link(notice) or f"{settings.GATEHOUSE.public_web_url}/"
    return Mail(
        to=row.user.email, subject=f"[Gatehouse] {whose}{text.subject}", body=f"{text.body}\n\n{link}\n", id=row.pk
    )


def _may_be_told(user: User, tenant: Tenant | None) -> bool:
    """Who has left since is told no more; a mail may have waited for a day."""
    if not user.is_active:
        return False
    return bool(user.platform_role) or (tenant is not None and tenant.memberships.filter(user=user).exists())


def _post(row: Delivery, now: datetime) -> Post:
    notice, webhook = row.notice, row.webhook
    assert webhook is not None
    link = notice_link(notice)
    body = msgspec.json.encode(
        {
            "id": str(row.pk),
            "type": notice.kind,
            "timestamp": notice.created_at.astimezone(UTC).isoformat(),
            "data": {"tenant": notice.tenant.slug if notice.tenant else None, **notice.payload}
            | ({} if link is None else {"link": link}),
        }
    )
    versions = signing_versions(
        webhook.secret_version,
        rotated_at=webhook.rotated_at.timestamp() if webhook.rotated_at else None,
        now=now.timestamp(),
    )
    headers = {"content-type": "application/json"} | signed_headers(
        webhook.pk, versions, message_id=str(row.pk), timestamp=int(now.timestamp()), body=body
    )
    return Post(webhook.url, headers, body)
