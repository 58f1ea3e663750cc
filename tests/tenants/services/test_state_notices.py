"""What people are told at once, to whom, by e-mail and in their language."""

import dataclasses
import smtplib
from datetime import timedelta
from typing import Any

import pytest
from django.core import mail
from django.utils import timezone
from pytest_django import Settings

from tenants.actor import SYSTEM
from tenants.models import Delivery, Notice, PlatformRole, TenantRole, TenantState, User
from tenants.policies.notices import AUDIENCES, NoticeKind
from tenants.reads.notices import list_notices
from tenants.services.deliveries import send_due_deliveries
from tenants.services.keys import revoke_api_key
from tenants.services.notice_saying import notice_said
from tenants.services.notices import raise_notice
from tenants.services.senders import SENDERS
from tenants.services.tenants import set_tenant_state
from tests.factories import make_key, make_member, make_tenant, make_user

pytestmark = pytest.mark.django_db


@pytest.fixture
def smtp(settings: Settings) -> None:
    """There is a mail server, and what it gets is in `mail.outbox`."""
    settings.GATEHOUSE = dataclasses.replace(settings.GATEHOUSE, smtp_url="smtp://mail")
    settings.EMAIL_BACKEND = "django.core.mail.backends.locmem.EmailBackend"


def send() -> int:
    now = timezone.now()
    return send_due_deliveries(SENDERS, now=lambda: now, jitter=lambda: 0.0)


def test_a_compromised_key_is_told_of_once() -> None:
    tenant = make_tenant()
    key = make_key(tenant).key
    revoke_api_key(key.pk, actor=SYSTEM, compromised=True)
    revoke_api_key(key.pk, actor=SYSTEM, compromised=True)
    notice = Notice.objects.get(kind="key_compromised")
    assert notice.payload == {"key": str(key.pk), "name": key.name, "masked": key.masked}
    revoke_api_key(make_key(tenant).key.pk, actor=SYSTEM)
    assert Notice.objects.count() == 1


def test_without_a_mail_server_the_notice_is_in_the_list_all_the_same() -> None:
    tenant = make_tenant()
    make_member(tenant, role=TenantRole.OWNER)
    set_tenant_state(tenant.pk, TenantState.SUSPENDED, actor=SYSTEM)
    assert list_notices(tenant).values_list("mails", flat=True).get() == 0
    assert send() == 0


@pytest.mark.usefixtures("smtp")
def test_people_are_written_to_by_their_role_and_in_their_language() -> None:
    tenant = make_tenant()
    members = {role: make_member(tenant, role=role) for role in TenantRole}
    User.objects.filter(pk=members[TenantRole.ADMIN].pk).update(language="zh-hans")
    left = make_member(tenant, role=TenantRole.OWNER)
    User.objects.filter(pk=left.pk).update(is_active=False)
    make_member(make_tenant(), role=TenantRole.OWNER)
    make_user(platform_role=PlatformRole.SUPERUSER)
    set_tenant_state(tenant.pk, TenantState.SUSPENDED, actor=SYSTEM)
    assert send() == 4
    subjects = {message.to[0]: message.subject for message in mail.outbox}
    told = (TenantRole.OWNER, TenantRole.ADMIN, TenantRole.DEVELOPER, TenantRole.BILLING)
    assert set(subjects) == {members[role].email for role in told}
    assert subjects[members[TenantRole.ADMIN].email].endswith("已暂停")
    assert subjects[members[TenantRole.OWNER].email].endswith("is suspended")
    assert list_notices(tenant).values_list("mails", "mails_pending").get() == (4, 0)


@pytest.mark.usefixtures("smtp")
def test_what_concerns_the_platform_goes_to_those_who_operate_it() -> None:
    operator = make_user(platform_role=PlatformRole.OPERATOR)
    make_user(platform_role=PlatformRole.READ_ONLY)
    make_user()
    raise_notice(NoticeKind.BUDGET_SHARE, tenant=None, payload={"share": 80}, dedupe_key="x", actor=SYSTEM)
    send()
    assert [message.to for message in mail.outbox] == [[operator.email]]


@pytest.mark.usefixtures("smtp")
@pytest.mark.parametrize(
    ("error", "state"),
    [
        (smtplib.SMTPServerDisconnected("gone"), "pending"),
        (ConnectionRefusedError(), "pending"),
        (smtplib.SMTPRecipientsRefused({"a@b.test": (450, b"later")}), "pending"),
        (smtplib.SMTPRecipientsRefused({"a@b.test": (550, b"nobody")}), "failed"),
    ],
)
def test_a_mail_server_that_fails_is_tried_again(error: OSError, state: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any, **__: Any) -> int:
        raise error

    tenant = make_tenant()
    owner = make_member(tenant, role=TenantRole.OWNER)
    set_tenant_state(tenant.pk, TenantState.SUSPENDED, actor=SYSTEM)
    monkeypatch.setattr("django.core.mail.EmailMessage.send", fail)
    send()
    delivery = Delivery.objects.get()
    assert delivery.state == state
    assert owner.email not in delivery.last_error
    monkeypatch.undo()


@pytest.mark.usefixtures("smtp")
def test_a_name_with_a_line_break_makes_no_header() -> None:
    tenant = make_tenant()
    make_member(tenant, role=TenantRole.OWNER)
    payload = {"name": "a\nBcc: x@y.test", "masked": "…", "ends_at": "2026-12-01T00:00+00:00"}
    raise_notice(NoticeKind.KEY_EXPIRING, tenant=tenant, payload=payload, dedupe_key="x", actor=SYSTEM)
    send()
    assert "\n" not in mail.outbox[0].subject
    assert mail.outbox[0].bcc == []


@pytest.mark.usefixtures("smtp")
def test_who_made_a_key_is_told_unless_they_are_no_member_any_more() -> None:
    tenant = make_tenant()
    here, left = make_member(tenant), make_member(tenant)
    tenant.memberships.filter(user=left).delete()
    for number, person in enumerate((here, left)):
        key = make_key(tenant).key
        key.created_by = person
        key.save()
        revoke_api_key(key.pk, actor=SYSTEM, compromised=True)
        assert Notice.objects.count() == number + 1
    send()
    assert [message.to for message in mail.outbox] == [[here.email]]


@pytest.mark.usefixtures("smtp")
def test_who_left_in_the_meantime_is_not_written_to() -> None:
    tenant = make_tenant()
    owner = make_member(tenant, role=TenantRole.OWNER)
    set_tenant_state(tenant.pk, TenantState.SUSPENDED, actor=SYSTEM)
    User.objects.filter(pk=owner.pk).update(is_active=False)
    send()
    assert mail.outbox == []
    assert Delivery.objects.get().state == "failed"


def test_a_notice_is_raised_once_by_its_key() -> None:
    tenant = make_tenant()
    raised = [
        raise_notice(NoticeKind.TENANT_RESUMED, tenant=tenant, payload={}, dedupe_key="k", actor=SYSTEM)
        for _ in range(2)
    ]
    assert [notice is not None for notice in raised] == [True, False]
    assert timezone.now() - Notice.objects.get().created_at < timedelta(minutes=1)


@pytest.mark.parametrize("kind", NoticeKind)
@pytest.mark.parametrize("language", ["en", "zh-hans", ""])
def test_every_kind_has_words_and_an_audience(kind: NoticeKind, language: str) -> None:
    text = notice_said(kind, {"kind": "model", "model": "m"}, language)
    assert text.subject
    assert "{" not in text.subject + text.body
    assert kind in AUDIENCES


def test_words_tell_amounts_and_times_as_people_do() -> None:
    payload = {
        "metric": "money", "window": "month", "amount": 12_500_000, "used": 6_250_000, "currency": "EUR", "share": 50,
        "scope": "Acme", "period_end": "2026-12-01T00:00+01:00", "time_zone": "Europe/Berlin",
    }  # fmt: skip
    text = notice_said(NoticeKind.BUDGET_SHARE, payload, "en")
    assert text.subject == "50 % of the monthly budget of money is used"
    assert text.body.startswith(
        "Acme used 6.25 EUR of 12.50 EUR in the period that ends on 2026-12-01 00:00 Europe/Berlin."
    )
    assert "6.25 EUR" in notice_said(NoticeKind.BUDGET_SHARE, payload, "zh-hans").body
