"""Where mails and webhooks lead: to the page of what they tell of, at the address that this installation was told."""

import dataclasses
from collections.abc import Callable
from typing import Any
from uuid import UUID

import msgspec
import pytest
from django.test import Client
from django.utils import timezone
from pytest_django import Settings

from tenants.actor import SYSTEM
from tenants.models import Notice, PlatformRole, Tenant, TenantRole, User, Webhook
from tenants.policies.notices import PLATFORM_KINDS, TENANT_KINDS, NoticeKind, audience_of
from tenants.services.deliveries import Delivered, Outcome, Post, Senders, send_due_deliveries
from tenants.services.mail import Mail
from tenants.services.notice_links import notice_link
from tenants.services.notices import raise_notice
from tenants.services.requests import request_model
from tenants.services.webhooks import delete_webhook, disable_failing_webhook
from tests.factories import make_key, make_member, make_tenant, make_user
from tests.gateway.slo_rows import ttft_objective

pytestmark = pytest.mark.django_db

BASE = "https://gw.example.test"
Told = Callable[..., tuple[list[str], list[dict[str, Any]]]]


@pytest.fixture
def tell(settings: Settings) -> Told:
    """Raises a notice, with this installation's address or without one: bodies of mails, and data of posts."""

    def told(
        kind: NoticeKind, tenant: Tenant | None, web_url: str | None = BASE, **payload: object
    ) -> tuple[list[str], list[dict[str, Any]]]:
        settings.GATEHOUSE = dataclasses.replace(settings.GATEHOUSE, smtp_url="smtp://mail", web_url=web_url)
        raise_notice(kind, tenant=tenant, payload=payload, dedupe_key=str(timezone.now()), actor=SYSTEM)
        mails, posts = list[str](), list[dict[str, Any]]()

        def post(one: Post) -> Outcome:
            posts.append(msgspec.json.decode(one.body)["data"])
            return Delivered(200)

        def mail(one: Mail) -> Outcome:
            mails.append(one.body)
            return Delivered()

        now = timezone.now()
        send_due_deliveries(Senders(post, mail), now=lambda: now, jitter=lambda: 0.0)
        return mails, posts

    return told


def hook(tenant: Tenant | None) -> Webhook:
    return Webhook.objects.create(tenant=tenant, url="https://hook.example.test/")


def test_an_alert_leads_operators_to_the_console_and_members_to_their_portal(tell: Told) -> None:
    tenant = make_tenant()
    make_user(platform_role=PlatformRole.OPERATOR)
    make_member(tenant, role=TenantRole.OWNER)
    hook(None)
    hook(tenant)
    objective = ttft_objective(tenant=tenant)
    for whose, address in ((None, "console"), (tenant, f"t/{tenant.slug}")):
        link = f"{BASE}/{address}/slo/{objective.pk}/"
        (mail,), (data,) = tell(NoticeKind.OBJECTIVE_BURNING, whose, objective=str(objective.pk), severity="page")
        assert mail.endswith(f"\n\n{link}\n")
        assert data["link"] == link


def test_a_webhook_of_the_platforms_that_is_disabled_leads_to_its_page_in_the_console(
    tell: Told, client: Client, settings: Settings
) -> None:
    operator = make_user(platform_role=PlatformRole.OPERATOR)
    off, _other = hook(None), hook(None)
    disable_failing_webhook(off.pk, reason="It answered 410.", now=timezone.now())
    settings.GATEHOUSE = dataclasses.replace(settings.GATEHOUSE, web_url=BASE)
    link = notice_link(Notice.objects.get(kind=NoticeKind.WEBHOOK_DISABLED))
    assert link == f"{BASE}/console/settings/webhooks/{off.pk}/"
    client.force_login(operator)
    assert "It answered 410." in client.get(link.removeprefix(BASE)).content.decode()
    (mail,), posts = tell(NoticeKind.WEBHOOK_DISABLED, None, webhook=str(off.pk), host="h", reason="It hurts.")
    assert mail.endswith(f"\n\n{link}\n")
    assert [post["link"] for post in posts] == [link, link]  # of both notices, to the other one


@pytest.mark.parametrize("of_tenant", [True, False])
@pytest.mark.parametrize("odd", [None, "no uuid", 7])
def test_of_a_deleted_webhook_the_settings_card_is_left(
    tell: Told, client: Client, of_tenant: bool, odd: object
) -> None:
    tenant = make_tenant() if of_tenant else None
    person = (
        make_user(platform_role=PlatformRole.OPERATOR) if tenant is None else make_member(tenant, role=TenantRole.OWNER)
    )
    hook(tenant)
    gone = hook(tenant)
    delete_webhook(gone.pk, actor=SYSTEM)
    link = f"{BASE}/t/{tenant.slug}/settings/#webhooks" if tenant else f"{BASE}/console/settings/#webhooks"
    (mail,), (data,) = tell(NoticeKind.WEBHOOK_DISABLED, tenant, webhook=odd or str(gone.pk), host="h", reason="R.")
    assert mail.endswith(f"\n\n{link}\n")
    assert data["link"] == link
    client.force_login(person)
    assert 'id="webhooks"' in client.get(link.removeprefix(BASE)).content.decode()


def test_of_a_deleted_objective_the_list_is_left(tell: Told) -> None:
    tenant = make_tenant()
    make_member(tenant, role=TenantRole.OWNER)
    gone = {"objective": str(UUID(int=7)), "ended_by": "deleted"}
    assert tell(NoticeKind.OBJECTIVE_RECOVERED, tenant, **gone)[0][0].endswith(f"{BASE}/t/{tenant.slug}/slo/\n")


def test_without_an_address_of_its_own_mails_are_as_ever_and_webhooks_have_no_link(tell: Told) -> None:
    make_user(platform_role=PlatformRole.OPERATOR)
    hook(None)
    (mail,), (data,) = tell(NoticeKind.OBJECTIVE_BURNING, None, web_url=None, objective=str(UUID(int=7)))
    assert mail.endswith("\n\nhttp://127.0.0.1:8000/\n")
    assert "link" not in data


def test_what_has_no_page_leads_home_in_mails_and_nowhere_in_webhooks(tell: Told) -> None:
    make_user(platform_role=PlatformRole.OPERATOR)
    hook(None)
    lacking = (NoticeKind.WEBHOOK_DISABLED, NoticeKind.OBJECTIVE_BURNING)  # what they are of
    for kind in (NoticeKind.KEY_EXPIRING, *lacking):
        (mail,), (data,) = tell(kind, None, web_url=BASE + "/")
        assert mail.endswith(f"\n\n{BASE}/\n")
        assert "link" not in data


def test_what_no_page_can_be_of_is_told_all_the_same_and_keeps_no_other_from_being_sent(tell: Told) -> None:
    tenant = make_tenant()
    make_member(tenant, role=TenantRole.OWNER)
    hook(tenant)
    kind, own = NoticeKind.OBJECTIVE_BURNING, UUID(int=7)
    link = f"{BASE}/t/{tenant.slug}/slo/{own}/"
    for odd in ("no uuid", None):
        raise_notice(kind, tenant=tenant, payload={"objective": odd}, dedupe_key=str(odd), actor=SYSTEM)
    (mail,), posts = tell(kind, tenant, objective=str(own))  # all three are claimed at once
    assert mail.endswith(f"\n\n{link}\n")
    assert [post.get("link") for post in posts] == [None, None, link]
    (mail,), _posts = tell(kind, tenant, objective="no uuid")
    assert mail.endswith(f"\n\n{BASE}/\n")


@pytest.mark.parametrize("kind", list(NoticeKind))
def test_whatever_either_is_told_of_has_a_link_that_opens_a_page_for_everybody_who_gets_it(
    kind: NoticeKind, settings: Settings, client: Client
) -> None:
    settings.GATEHOUSE = dataclasses.replace(settings.GATEHOUSE, web_url=BASE)
    tenant = make_tenant()
    payload = {
        "key": str(make_key(tenant).key.pk),
        "objective": str(ttft_objective(tenant=tenant).pk),
        "request": str(request_model(tenant, model="m", reason="x", actor=SYSTEM).pk),
    }

    def link_to(whose: Tenant | None) -> str | None:
        return notice_link(Notice(kind=kind.value, tenant=whose, payload=payload | {"webhook": str(hook(whose).pk)}))

    def opens(person: User, whose: Tenant | None) -> None:
        link = link_to(whose)
        assert link is not None
        client.force_login(person)
        assert client.get(link.removeprefix(BASE)).status_code == 200

    assert (link_to(tenant) is not None, link_to(None) is not None) == (kind in TENANT_KINDS, kind in PLATFORM_KINDS)
    if kind in TENANT_KINDS:
        for role in audience_of(kind, of_tenant=True).tenant_roles or TenantRole:
            opens(make_member(tenant, role=TenantRole(role)), tenant)
    if kind in PLATFORM_KINDS:
        roles = audience_of(kind, of_tenant=False).platform_roles
        assert roles
        for role in roles:
            opens(make_user(platform_role=PlatformRole(role)), None)
