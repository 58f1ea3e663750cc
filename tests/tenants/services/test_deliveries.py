"""Who gets what when: nobody who left is written to, and no webhook keeps the others waiting."""

import dataclasses
from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any

import pytest
from django.utils import timezone
from pytest_django import Settings

from core.refusals import Conflict
from tenants.actor import SYSTEM
from tenants.models import Delivery, Membership, PlatformRole, Tenant, TenantRole, Webhook
from tenants.policies.deliveries import DISABLE_SECONDS
from tenants.policies.notice_texts import NoticeText
from tenants.policies.notices import NoticeKind
from tenants.services import deliveries, webhooks
from tenants.services.deliveries import Delivered, NotDelivered, Outcome, Post, Senders, claim_due, send_due_deliveries
from tenants.services.mail import Mail
from tenants.services.notice_saying import notice_said
from tenants.services.notices import raise_notice
from tests.factories import make_member, make_tenant, make_user

pytestmark = pytest.mark.django_db


@pytest.fixture(autouse=True)
def _mailing(settings: Settings) -> None:
    settings.GATEHOUSE = dataclasses.replace(settings.GATEHOUSE, smtp_url="smtp://mail.example.test")


class Sent:
    """Takes everything."""

    def __init__(self) -> None:
        self.mails: list[Mail] = []
        self.posts: list[Post] = []

    def _post(self, post: Post) -> Outcome:
        self.posts.append(post)
        return Delivered(200)

    def _mail(self, mail: Mail) -> Outcome:
        self.mails.append(mail)
        return Delivered()

    def send(self) -> int:
        now = timezone.now() + timedelta(seconds=1)
        return send_due_deliveries(Senders(self._post, self._mail), now=lambda: now, jitter=lambda: 0.0)


def notify(tenant: Tenant | None, key: str) -> None:
    raise_notice(NoticeKind.TENANT_RESUMED, tenant=tenant, payload={}, dedupe_key=key, actor=SYSTEM)


def test_who_left_before_it_was_sent_is_not_written_to() -> None:
    tenant, sent = make_tenant(), Sent()
    stays, leaves = (make_member(tenant, role=TenantRole.OWNER) for _ in range(2))
    resigns, operator = (make_user(platform_role=PlatformRole.OPERATOR) for _ in range(2))
    notify(tenant, "of-tenant")
    notify(None, "of-platform")
    assert Delivery.objects.count() == 4
    Membership.objects.filter(user=leaves).delete()
    resigns.platform_role = PlatformRole.NONE
    resigns.save()
    sent.send()
    assert sorted(mail.to for mail in sent.mails) == sorted([stays.email, operator.email])
    assert sorted(Delivery.objects.values_list("state", flat=True)) == ["delivered"] * 2 + ["failed"] * 2


def test_one_that_cannot_be_worded_keeps_no_other_from_being_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    def odd(kind: NoticeKind, payload: Mapping[str, Any], language: str) -> NoticeText:
        if payload.get("odd"):
            raise KeyError("tenant")  # a payload of another version, say
        return notice_said(kind, payload, language)

    monkeypatch.setattr(deliveries, "notice_said", odd)
    make_user(platform_role=PlatformRole.OPERATOR)
    kind, sent = NoticeKind.TENANT_RESUMED, Sent()
    raise_notice(kind, tenant=None, payload={"odd": True}, dedupe_key="odd", actor=SYSTEM)
    notify(None, "even")
    assert sent.send() == 2
    assert len(sent.mails) == 1
    assert sorted(Delivery.objects.values_list("state", "attempts", "last_error")) == [
        ("delivered", 1, ""),
        ("pending", 1, "It could not be sent."),  # by the next version, perhaps
    ]


def test_a_webhook_with_much_to_be_told_leaves_room_for_others() -> None:
    busy, calm = make_tenant(), make_tenant()
    for tenant in (busy, calm):
        Webhook.objects.create(tenant=tenant, url=f"https://{tenant.slug}.example.test/")
    for number in range(40):
        notify(busy, str(number))
    notify(calm, "calm")
    now = timezone.now() + timedelta(seconds=1)
    claimed = claim_due(now)
    urls = [one.message.url for one in claimed if isinstance(one.message, Post)]
    assert len(urls) == deliveries.MOST_OF_ONE_WEBHOOK + 1
    assert sum("calm" in url or calm.slug in url for url in urls) == 1
    sent = Sent()
    assert sent.send() == 40 - deliveries.MOST_OF_ONE_WEBHOOK
    assert len({post.headers["webhook-id"] for post in sent.posts}) == 40 - deliveries.MOST_OF_ONE_WEBHOOK


def test_one_test_at_a_time_goes_to_a_webhook() -> None:
    webhook = Webhook.objects.create(tenant=make_tenant(), url="https://hook.example.test/")
    webhooks.send_test_notice(webhook.pk, actor=SYSTEM)
    with pytest.raises(Conflict):  # or anybody's server could be knocked at a thousand times
        webhooks.send_test_notice(webhook.pk, actor=SYSTEM)
    Sent().send()
    webhooks.send_test_notice(webhook.pk, actor=SYSTEM)


def test_one_failure_long_after_another_disables_nothing_yet() -> None:
    webhook = Webhook.objects.create(tenant=make_tenant(), url="https://hook.example.test/")
    outcomes: list[Outcome] = [NotDelivered("It answered 500.", 500), NotDelivered("It answered 500.", 500)]

    def send(now: datetime) -> None:
        senders = Senders(lambda post: outcomes.pop(0) if outcomes else Delivered(200), lambda mail: Delivered())
        send_due_deliveries(senders, now=lambda: now, jitter=lambda: 0.0)

    notify(webhook.tenant, "first")
    start = timezone.now()
    send(start)
    Delivery.objects.update(state="failed", ended_at=start)  # given up; then nothing was to be told for days
    notify(webhook.tenant, "second")
    later = start + timedelta(seconds=2 * DISABLE_SECONDS)
    Delivery.objects.filter(state="pending").update(created_at=later)
    send(later)
    send(later + timedelta(seconds=30))
    webhook.refresh_from_db()
    assert (webhook.enabled, webhook.failing_since) == (True, None)
    assert Delivery.objects.order_by("-id").values_list("state", flat=True)[0] == "delivered"
