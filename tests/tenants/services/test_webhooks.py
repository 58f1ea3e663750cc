"""Webhooks against a real HTTP server: signed, retried, judged at every sending, given up."""

import base64
import dataclasses
import hashlib
import hmac
import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from datetime import datetime, timedelta
from pathlib import Path

import pytest
from django.conf import settings
from django.db import connection
from django.utils import timezone
from pytest_django import Settings

from core.outbound import OutboundClient
from core.refusals import Conflict, InvalidInput
from tenants.actor import SYSTEM
from tenants.models import AuditEvent, Delivery, Notice, Tenant, Webhook
from tenants.policies.deliveries import DISABLE_SECONDS, GIVE_UP_SECONDS
from tenants.policies.notices import NoticeKind
from tenants.services import deliveries, webhooks
from tenants.services.deliveries import (
    Delivered,
    NotDelivered,
    Outcome,
    Post,
    Senders,
    claim_due,
    end_overdue_deliveries,
    send_due_deliveries,
)
from tenants.services.notices import raise_notice
from tenants.services.senders import SENDERS, post_message
from tests.doubles.authority import Authority
from tests.doubles.raw_server import answering, raw_server
from tests.doubles.receiver import Received, Receiver
from tests.factories import make_tenant
from tests.waiting import wait_until

pytestmark = pytest.mark.django_db


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    receiver = Receiver()
    yield receiver
    receiver.close()


@pytest.fixture
def inside(settings: Settings) -> None:
    """Private addresses are allowed: the receiver is on this machine."""
    settings.GATEHOUSE = dataclasses.replace(settings.GATEHOUSE, webhook_allow_private=True)


def notify(tenant: Tenant, key: str = "once") -> Notice:
    notice = raise_notice(NoticeKind.TENANT_RESUMED, tenant=tenant, payload={"a": 1}, dedupe_key=key, actor=SYSTEM)
    assert notice is not None
    return notice


def send(now: datetime | None = None) -> int:
    moment = now or timezone.now()
    return send_due_deliveries(SENDERS, now=lambda: moment, jitter=lambda: 0.0)


def verify(received: Received, secret: str) -> bool:
    """As the Standard Webhooks specification says it, written from the specification and not from our code."""
    key = base64.b64decode(secret.removeprefix("whsec_"))
    signed = f"{received.headers['webhook-id']}.{received.headers['webhook-timestamp']}.".encode() + received.body
    expected = base64.b64encode(hmac.new(key, signed, hashlib.sha256).digest()).decode()
    given = [part.split(",", 1) for part in received.headers["webhook-signature"].split(" ")]
    return any(version == "v1" and hmac.compare_digest(signature, expected) for version, signature in given)


@pytest.mark.usefixtures("inside")
def test_a_notice_reaches_the_webhook_signed(receiver: Receiver) -> None:
    tenant = make_tenant()
    new = webhooks.create_webhook(tenant, url=receiver.url, actor=SYSTEM)
    notify(tenant)
    assert send() == 1
    (received,) = receiver.received
    delivery = Delivery.objects.get()
    told = json.loads(received.body)
    assert told["id"] == received.headers["webhook-id"] == str(delivery.pk)
    assert told["type"] == "tenant_resumed"
    assert told["data"] == {"tenant": tenant.slug, "a": 1}
    assert verify(received, new.secret)
    assert not verify(received, webhooks.create_webhook(tenant, url=receiver.url, actor=SYSTEM).secret)
    assert (delivery.state, delivery.attempts, delivery.last_status) == ("delivered", 1, 204)
    assert send(timezone.now() + timedelta(days=1)) == 0


@pytest.mark.usefixtures("inside")
def test_for_a_day_after_a_rotation_both_secrets_sign(receiver: Receiver) -> None:
    tenant = make_tenant()
    old = webhooks.create_webhook(tenant, url=receiver.url, actor=SYSTEM)
    new = webhooks.rotate_webhook_secret(old.webhook.pk, actor=SYSTEM)
    notify(tenant)
    send()
    assert verify(receiver.received[0], old.secret)
    assert verify(receiver.received[0], new.secret)
    notify(tenant, "later")
    send(timezone.now() + timedelta(days=1, minutes=1))
    assert not verify(receiver.received[1], old.secret)
    assert verify(receiver.received[1], new.secret)


@pytest.mark.usefixtures("inside")
def test_no_secret_is_stored(receiver: Receiver) -> None:
    new = webhooks.create_webhook(make_tenant(), url=receiver.url, actor=SYSTEM)
    rows = [*Webhook.objects.values_list(), *AuditEvent.objects.values_list("before", "after")]
    assert new.secret.removeprefix("whsec_") not in str(rows)


@pytest.mark.usefixtures("inside")
@pytest.mark.parametrize("status", [302, 400, 500, 503])
def test_a_failed_delivery_is_tried_again_with_the_same_id(receiver: Receiver, status: int) -> None:
    tenant = make_tenant()
    receiver.answers = [status]
    webhooks.create_webhook(tenant, url=receiver.url, actor=SYSTEM)
    notify(tenant)
    now = timezone.now()
    assert send(now) == 1
    delivery = Delivery.objects.get()
    assert (delivery.state, delivery.last_status) == ("pending", status)
    assert str(status) in delivery.last_error
    assert send(now + timedelta(seconds=1)) == 0
    assert send(now + timedelta(seconds=11)) == 1
    delivery.refresh_from_db()
    assert (delivery.state, delivery.attempts, delivery.last_error) == ("delivered", 2, "")
    first, second = receiver.received
    assert first.headers["webhook-id"] == second.headers["webhook-id"]
    assert second.path == "/hook"  # no redirect was followed


@pytest.mark.usefixtures("inside")
def test_a_delivery_is_given_up_after_a_day(receiver: Receiver) -> None:
    tenant = make_tenant()
    receiver.close()
    webhooks.create_webhook(tenant, url=receiver.url, actor=SYSTEM)
    notify(tenant)
    now = timezone.now()
    attempts = 0
    while Delivery.objects.get().state == "pending":
        now = max(now, Delivery.objects.get().next_attempt_at)
        attempts += send(now)
    delivery = Delivery.objects.get()
    assert delivery.state == "failed"
    assert 15 <= attempts <= 40
    assert GIVE_UP_SECONDS * 0.8 < (now - delivery.created_at).total_seconds() <= GIVE_UP_SECONDS + 1


@pytest.mark.usefixtures("inside")
def test_a_delivery_whose_sender_died_is_sent_by_another(receiver: Receiver) -> None:
    tenant = make_tenant()
    webhooks.create_webhook(tenant, url=receiver.url, actor=SYSTEM)
    notify(tenant)
    now = timezone.now()
    assert len(claim_due(now)) == 1  # and that was the last that was heard of it
    assert send(now + timedelta(seconds=1)) == 0
    assert send(now + timedelta(seconds=deliveries.CLAIM_SECONDS + 1)) == 1
    assert Delivery.objects.get().state == "delivered"


@pytest.mark.usefixtures("inside")
@pytest.mark.django_db(transaction=True)
def test_a_delivery_in_flight_when_its_worker_is_killed_is_made_by_another(receiver: Receiver) -> None:
    tenant = make_tenant()
    webhooks.create_webhook(tenant, url=receiver.url, actor=SYSTEM)
    notify(tenant)
    receiver.answering.clear()
    run = "import django; django.setup(); from tenants.tasks import send_deliveries; send_deliveries()"
    environ = {**os.environ, "GATEHOUSE_WEBHOOK_ALLOW_PRIVATE": "true"}
    worker = subprocess.Popen([sys.executable, "-c", run], env=environ)
    try:
        wait_until(lambda: len(receiver.received) == 1, "the worker's attempt", deadline_seconds=30)
    finally:
        worker.kill()
        worker.wait()
        receiver.answering.set()
    assert send() == 0
    assert send(timezone.now() + timedelta(seconds=deliveries.CLAIM_SECONDS + 1)) == 1
    first, second = receiver.received
    assert first.headers["webhook-id"] == second.headers["webhook-id"] == json.loads(second.body)["id"]
    delivery = Delivery.objects.get()
    assert (delivery.state, delivery.attempts) == ("delivered", 2)


@pytest.mark.usefixtures("inside")
def test_a_message_that_cannot_be_sent_keeps_no_other_from_it(receiver: Receiver) -> None:
    tenant = make_tenant()
    webhooks.create_webhook(tenant, url=receiver.url, actor=SYSTEM)
    webhooks.create_webhook(tenant, url=f"{receiver.url}/other", actor=SYSTEM)

    def post(message: Post) -> Outcome:
        if message.url.endswith("/other"):
            raise RuntimeError("a defect")
        return SENDERS.post(message)

    notify(tenant)
    now = timezone.now()
    assert send_due_deliveries(Senders(post, SENDERS.mail), now=lambda: now, jitter=lambda: 0.0) == 2
    assert sorted(Delivery.objects.values_list("state", flat=True)) == ["delivered", "pending"]


@pytest.mark.usefixtures("inside")
def test_what_takes_every_sender_down_is_given_up_too(receiver: Receiver) -> None:
    tenant = make_tenant()
    webhooks.create_webhook(tenant, url=receiver.url, actor=SYSTEM)
    notify(tenant)
    now = timezone.now()
    claim_due(now)
    assert end_overdue_deliveries(now=now + timedelta(hours=23)) == 0
    assert end_overdue_deliveries(now=now + timedelta(hours=25)) == 1
    assert end_overdue_deliveries(now=now + timedelta(hours=25)) == 0
    assert Delivery.objects.get().state == "failed"


@pytest.mark.usefixtures("inside")
def test_a_webhook_that_fails_for_days_is_disabled_and_its_owners_are_told(receiver: Receiver) -> None:
    tenant = make_tenant()
    receiver.answers = [500] * 100
    webhook = webhooks.create_webhook(tenant, url=receiver.url, actor=SYSTEM).webhook
    notify(tenant, "first")
    start = timezone.now()
    send(start)
    webhook.refresh_from_db()
    assert webhook.failing_since == start
    notify(tenant, "second")
    send(start + timedelta(seconds=DISABLE_SECONDS))
    webhook.refresh_from_db()
    assert not webhook.enabled
    assert "5 days" in webhook.disabled_reason
    assert Notice.objects.filter(kind="webhook_disabled", tenant=tenant).count() == 1
    assert set(Delivery.objects.values_list("state", flat=True)) == {"failed"}
    assert webhooks.change_webhook(webhook.pk, enabled=True, actor=SYSTEM).disabled_reason == ""


@pytest.mark.usefixtures("inside")
def test_success_ends_a_series_of_failures_and_410_the_webhook(receiver: Receiver) -> None:
    tenant = make_tenant()
    receiver.answers = [500, 204, 410]
    webhook = webhooks.create_webhook(tenant, url=receiver.url, actor=SYSTEM).webhook
    notify(tenant, "first")
    now = timezone.now()
    send(now)
    send(now + timedelta(seconds=30))
    webhook.refresh_from_db()
    assert webhook.failing_since is None
    notify(tenant, "second")
    send(now + timedelta(seconds=60))
    webhook.refresh_from_db()
    assert not webhook.enabled
    with pytest.raises(Conflict):
        webhooks.send_test_notice(webhook.pk, actor=SYSTEM)


@pytest.mark.usefixtures("inside")
def test_a_test_goes_to_one_webhook_alone(receiver: Receiver) -> None:
    tenant = make_tenant()
    webhooks.create_webhook(tenant, url=receiver.url + "/other", actor=SYSTEM)
    webhook = webhooks.create_webhook(tenant, url=receiver.url, events=["key_expiring"], actor=SYSTEM).webhook
    webhooks.send_test_notice(webhook.pk, actor=SYSTEM)
    send()
    assert [(r.path, json.loads(r.body)["type"]) for r in receiver.received] == [("/hook", "test")]


@pytest.mark.usefixtures("inside")
def test_a_webhook_gets_the_events_it_asked_for_of_its_own_tenant(receiver: Receiver) -> None:
    tenant, other = make_tenant(), make_tenant()
    webhooks.create_webhook(tenant, url=receiver.url + "/all", actor=SYSTEM)
    webhooks.create_webhook(tenant, url=receiver.url + "/keys", events=["key_expiring"], actor=SYSTEM)
    webhooks.create_webhook(other, url=receiver.url + "/other", actor=SYSTEM)
    webhooks.create_webhook(None, url=receiver.url + "/platform", actor=SYSTEM)
    notify(tenant)
    send()
    assert [r.path for r in receiver.received] == ["/hook/all"]


@pytest.mark.parametrize(
    "url",
    [
        "http://example.com/",
        "https://127.0.0.1/",
        "https://10.0.0.1/hook",
        "https://192.168.1.1/",
        "https://172.16.0.1/",
        "https://100.64.0.1/",
        "https://169.254.169.254/latest/meta-data",
        "https://[::1]/",
        "https://[::ffff:127.0.0.1]/",
        "https://[fd00::1]/",
        "https://[fe80::1]/",
        "https://0.0.0.0/",
        "https://localhost/",
        "https://user:password@example.com/",
        "ftp://example.com/",
        "https://",
        "nothing",
        "https://2130706433/",
        "https://0x7f000001/",
    ],
)
def test_no_webhook_points_inside(url: str) -> None:
    with pytest.raises(InvalidInput) as refused:
        webhooks.create_webhook(make_tenant(), url=url, actor=SYSTEM)
    assert refused.value.field == "url"
    assert not Webhook.objects.exists()


@pytest.mark.usefixtures("inside")
@pytest.mark.parametrize("url", ["http://169.254.169.254/", "http://[fd00:ec2::254]/", "http://224.0.0.1/"])
def test_metadata_services_are_never_reached(url: str) -> None:
    with pytest.raises(InvalidInput):
        webhooks.create_webhook(make_tenant(), url=url, actor=SYSTEM)


def test_a_name_that_came_to_stand_for_an_inner_address_is_not_posted_to(
    receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers = iter([["203.0.114.7"], ["127.0.0.1"]])
    client = OutboundClient(resolve=lambda host, port: next(answers))
    monkeypatch.setattr("tenants.services.senders.outbound_client", lambda: client)
    port = receiver.url.split(":")[2].split("/")[0]
    tenant = make_tenant()
    webhooks.create_webhook(tenant, url=f"https://rebinding.test:{port}/", actor=SYSTEM, client=client)
    notify(tenant)
    send()
    assert receiver.received == []
    assert "inside this network" in Delivery.objects.get().last_error


@pytest.mark.usefixtures("inside")
def test_a_certificate_of_the_settings_authority_is_accepted(settings: Settings, tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    with raw_server(answering(b"thanks"), tls=authority.server("IP:127.0.0.1")) as server:
        post = Post(url=f"https://127.0.0.1:{server.port}/", headers={}, body=b"{}")
        webhooks.outbound_client.cache_clear()
        try:
            refused = post_message(post)
            settings.GATEHOUSE = dataclasses.replace(settings.GATEHOUSE, outbound_ca_file=authority.ca_file)
            webhooks.outbound_client.cache_clear()
            assert isinstance(post_message(post), Delivered)
        finally:
            webhooks.outbound_client.cache_clear()
    assert isinstance(refused, NotDelivered)
    assert "certificate" in refused.error


@pytest.mark.parametrize("events", [["nothing"], ["key_expiring", ""]])
@pytest.mark.usefixtures("inside")
def test_unknown_events_are_refused(receiver: Receiver, events: list[str]) -> None:
    with pytest.raises(InvalidInput):
        webhooks.create_webhook(make_tenant(), url=receiver.url, events=events, actor=SYSTEM)


@pytest.mark.usefixtures("inside")
@pytest.mark.parametrize(
    ("of_tenant", "never"), [(True, "request_opened"), (True, "test"), (False, "key_expiring"), (False, "test")]
)
def test_what_its_owner_is_never_told_of_is_refused_unless_it_was_chosen_before(
    receiver: Receiver, of_tenant: bool, never: str
) -> None:
    tenant = make_tenant() if of_tenant else None
    with pytest.raises(InvalidInput, match="Events are some of"):
        webhooks.create_webhook(tenant, url=receiver.url, events=[never], actor=SYSTEM)
    chosen = Webhook.objects.create(tenant=tenant, url=receiver.url, events=[never])
    both = sorted([never, "budget_share"])
    assert webhooks.change_webhook(chosen.pk, events=both, actor=SYSTEM).events == both
    assert webhooks.change_webhook(chosen.pk, events=["budget_share"], actor=SYSTEM).events == ["budget_share"]
    with pytest.raises(InvalidInput):
        webhooks.change_webhook(chosen.pk, events=both, actor=SYSTEM)


@pytest.mark.usefixtures("inside")
def test_addresses_are_not_in_the_audit_log(receiver: Receiver) -> None:
    webhook = webhooks.create_webhook(make_tenant(), url=f"{receiver.url}?token=abc", actor=SYSTEM).webhook
    webhooks.change_webhook(webhook.pk, url=f"{receiver.url}?token=def", actor=SYSTEM)
    told = str(list(AuditEvent.objects.values_list("before", "after")))
    assert "token" not in told
    assert "127.0.0.1" in told


@pytest.mark.parametrize(
    ("url", "host"),
    [
        ("https://hook.example:8443/T0KEN?key=T0KEN#T0KEN", "hook.example:8443"),
        ("https://hook.example#T0KEN", "hook.example"),
        ("https://hook.example?T0KEN", "hook.example"),
        ("https://name:T0KEN@hook.example/", "hook.example"),
        ("https://[2001:db8::1]:8443#T0KEN", "[2001:db8::1]:8443"),
        ("https://[T0KEN/", ""),
    ],
)
def test_of_an_address_its_host_alone_is_told(url: str, host: str) -> None:
    assert (webhooks.host_of(url), webhooks.origin_of(url)) == (host, f"https://{host}")


@pytest.mark.usefixtures("inside")
@pytest.mark.django_db(transaction=True)
def test_two_senders_at_once_send_each_delivery_once(receiver: Receiver) -> None:
    tenant = make_tenant()
    for number in range(10):
        notify(tenant, str(number))
    webhooks.create_webhook(tenant, url=receiver.url, actor=SYSTEM)
    for number in range(10, 50):
        notify(tenant, str(number))

    def work(run: Callable[[], int]) -> None:
        run()
        connection.close()

    threads = [threading.Thread(target=work, args=(send,)) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(receiver.received) == 40
    assert len({r.headers["webhook-id"] for r in receiver.received}) == 40
    assert settings.GATEHOUSE.webhook_allow_private
