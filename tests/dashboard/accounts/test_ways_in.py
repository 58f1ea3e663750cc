"""Invitations and recovery links: who they let in, once, and in time."""

from dataclasses import replace
from datetime import timedelta
from io import StringIO

import pytest
from allauth.mfa.models import Authenticator
from allauth.mfa.totp.internal.auth import TOTP, generate_totp_secret
from celery import current_app
from django.core import mail
from django.core.management import CommandError, call_command
from django.test import Client
from django.utils import timezone
from pytest_django import DjangoCaptureOnCommitCallbacks, Settings

from dashboard.accounts.log_in import CAME_BY_LINK_UNTIL
from tenants import services
from tenants.actor import SYSTEM, user_actor
from tenants.models import AuditEvent, Invitation, LoginLink, Membership, Tenant, TenantRole, TenantState, User
from tenants.policies.roles import Standing
from tenants.services.people import login_link
from tenants.tasks import mail_invitation
from tests.dashboard.people import PASSWORD, person, tenant

pytestmark = pytest.mark.django_db
OWNER = Standing("", "owner")
NEW = {"display_name": "Neo N.", "password": "a-long-and-new-phrase", "again": "a-long-and-new-phrase"}


@pytest.fixture
def acme() -> Tenant:
    return tenant("acme", ada=TenantRole.OWNER)


def invite(acme: Tenant, email: str = "neo@example.com", role: str = "developer") -> str:
    """The path of a new invitation's link."""
    actor = user_actor(User.objects.get(email="ada@example.com").pk)
    new = services.create_invitation(acme, email=email, role=role, standing=OWNER, actor=actor)
    return f"/invitations/{new.secret}/"


def log_in(client: Client, name: str) -> None:
    client.post("/login/", {"username": f"{name}@example.com", "password": PASSWORD})


def test_someone_new_makes_an_account_and_is_in(client: Client, acme: Tenant) -> None:
    path = invite(acme)
    page = client.get(path).content.decode()
    assert "Invitation to Acme" in page
    assert "neo@example.com is invited as: Developer." in page
    answer = client.post(path, NEW)
    assert (answer.status_code, answer["Location"]) == (302, "/t/acme/")
    assert client.get("/t/acme/").status_code == 200
    neo = User.objects.get(email="neo@example.com")
    assert (neo.display_name, neo.platform_role, Membership.objects.get(user=neo).role) == ("Neo N.", "", "developer")
    assert Client().get(path).status_code == Client().post(path, NEW).status_code == 404
    told = AuditEvent.objects.get(action="invitation.accepted")
    assert (told.actor_id, told.after) == (neo.pk, {"user": str(neo.pk), "role": "developer"})


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"password": "short", "again": "short"}, "too short. It must have at least 12 characters."),
        ({"password": "neo@example.com", "again": "neo@example.com"}, "too similar to your name or address."),
        ({"again": "another"}, "not the same"),
        ({"display_name": ""}, "required"),
    ],
)
def test_what_is_wrong_is_said_and_nothing_is_made(
    client: Client, acme: Tenant, change: dict[str, str], said: str
) -> None:
    answer = client.post(invite(acme), {**NEW, **change})
    assert (answer.status_code, said in answer.content.decode()) == (422, True)
    assert not User.objects.filter(email="neo@example.com").exists()
    assert Invitation.objects.get().accepted_at is None


def test_who_has_an_account_logs_in_first(client: Client, acme: Tenant) -> None:
    person("neo")
    path = invite(acme)
    assert f"/login/?next={path}" in client.get(path).content.decode()
    assert "There is an account" in client.post(path, NEW).content.decode()
    assert not Membership.objects.filter(user__email="neo@example.com").exists()
    log_in(client, "neo")
    assert "Become a member" in client.get(path).content.decode()
    assert client.post(path)["Location"] == "/t/acme/"
    assert Membership.objects.get(user__email="neo@example.com").role == "developer"


def test_a_link_is_no_use_to_someone_else(client: Client, acme: Tenant) -> None:
    person("eve")
    path = invite(acme)
    log_in(client, "eve")
    assert client.get(path).status_code == client.post(path).status_code == 403
    assert not Membership.objects.filter(user__email="eve@example.com").exists()


@pytest.mark.parametrize("end", ["expired", "withdrawn"])
def test_one_that_ended_lets_nobody_in(client: Client, acme: Tenant, end: str) -> None:
    path = invite(acme)
    now = timezone.now()
    Invitation.objects.update(**({"expires_at": now} if end == "expired" else {"withdrawn_at": now}))
    answer = client.post(path, NEW)
    assert answer.status_code == 404
    assert "past its time" in answer.content.decode()
    assert not User.objects.filter(email="neo@example.com").exists()


def test_nobody_loses_a_higher_role_by_an_invitation(client: Client, acme: Tenant) -> None:
    person("neo")
    path = invite(acme, role="viewer")
    services.add_member(acme, User.objects.get(email="neo@example.com"), role=TenantRole.ADMIN, actor=SYSTEM)
    log_in(client, "neo")
    client.post(path)
    assert Membership.objects.get(user__email="neo@example.com").role == "admin"


def test_an_invitation_is_mailed_where_there_is_a_mail_server(
    acme: Tenant,
    settings: Settings,
    monkeypatch: pytest.MonkeyPatch,
    django_capture_on_commit_callbacks: DjangoCaptureOnCommitCallbacks,
) -> None:
    sent: list[tuple[str, list[str]]] = []
    monkeypatch.setattr(current_app, "send_task", lambda name, arguments: sent.append((name, arguments)))
    with django_capture_on_commit_callbacks(execute=True):
        invite(acme, "first@example.com")
    assert sent == []
    settings.GATEHOUSE = replace(settings.GATEHOUSE, smtp_url="smtp://mail.example")
    with django_capture_on_commit_callbacks(execute=True):
        path = invite(acme)
    ((name, arguments),) = sent
    assert name == "tenants.tasks.mail_invitation"
    assert path not in str(arguments)
    assert mail_invitation(*arguments) is True
    assert mail.outbox[0].to == ["neo@example.com"]
    assert path in mail.outbox[0].body
    Invitation.objects.update(withdrawn_at=timezone.now())
    assert mail_invitation(*arguments) is False


@pytest.mark.parametrize(
    ("inviter", "invited", "subject"),
    [
        ("zh-hans", None, "邀请您加入 Gatehouse 上的 Acme"),
        ("zh-hans", "en", "Invitation to Acme on Gatehouse"),
        ("", "zh-hans", "邀请您加入 Gatehouse 上的 Acme"),
        ("", None, "Invitation to Acme on Gatehouse"),
    ],
)
def test_an_invitation_is_mailed_in_the_language_of_whom_it_is_for_or_who_sends_it(
    acme: Tenant,
    settings: Settings,
    monkeypatch: pytest.MonkeyPatch,
    django_capture_on_commit_callbacks: DjangoCaptureOnCommitCallbacks,
    inviter: str,
    invited: str | None,
    subject: str,
) -> None:
    sent: list[list[str]] = []
    monkeypatch.setattr(current_app, "send_task", lambda name, arguments: sent.append(arguments))
    settings.GATEHOUSE = replace(settings.GATEHOUSE, smtp_url="smtp://mail.example")
    if invited is not None:
        person("neo")
        User.objects.filter(email="neo@example.com").update(language=invited)
    with django_capture_on_commit_callbacks(execute=True):
        path = invite(acme)
    Invitation.objects.update(invited_by=User.objects.get(email="ada@example.com"))
    User.objects.filter(email="ada@example.com").update(language=inviter)
    assert mail_invitation(*sent[0]) is True
    assert mail.outbox[0].subject == subject
    assert path in mail.outbox[0].body


def test_members_page_offers_what_a_role_allows(client: Client, acme: Tenant) -> None:
    vic = person("vic")
    services.add_member(acme, vic, role=TenantRole.VIEWER, actor=SYSTEM)
    invite(acme)
    client.force_login(vic)
    page = client.get("/t/acme/members/").content.decode()
    assert "ada@example.com" in page
    assert "neo@example.com" not in page
    for path in ("members/invite/", f"members/{vic.pk}/role/", f"members/{vic.pk}/remove/"):
        assert f"/t/acme/{path}" not in page
        assert client.get(f"/t/acme/{path}").status_code == client.post(f"/t/acme/{path}").status_code == 403
    withdraw = f"/t/acme/invitations/{Invitation.objects.get().pk}/withdraw/"
    assert client.post(withdraw).status_code == 403
    log_in(owner := Client(), "ada")
    services.set_tenant_state(acme.pk, TenantState.SUSPENDED, actor=SYSTEM)
    assert owner.post("/t/acme/members/invite/", {"email": "x@example.com", "role": "viewer", "days": 7}).status_code == 403  # fmt: skip  # noqa: E501
    assert owner.post(withdraw)["Location"] == "/t/acme/members/"
    assert Invitation.objects.get().withdrawn_at is not None


def recover(*arguments: str) -> str:
    """The path that the command prints."""
    out = StringIO()
    call_command("recover", *arguments, stdout=out, stderr=StringIO())
    return out.getvalue().strip().removeprefix("http://127.0.0.1:8000")


def test_recovering_resets_the_factor_and_lets_in_once(client: Client) -> None:
    olga = person("olga", platform_role="operator")
    TOTP.activate(olga, generate_totp_secret())
    client.force_login(olga)
    path = recover("Olga@example.com")
    assert client.get("/console/overview/").status_code == 302
    fresh = Client()
    assert fresh.get(path).status_code == 200  # asking does not use it up
    answer = fresh.post(path)
    assert (answer.status_code, answer["Location"]) == (302, "/security/password/")
    form = {"new_password1": "a-new-long-phrase", "new_password2": "a-new-long-phrase"}
    assert fresh.post("/security/password/", form)["Location"] == "/security/"
    assert fresh.get("/console/overview/").status_code == 200
    assert fresh.get("/security/app/").status_code == 200
    olga.refresh_from_db()
    assert olga.check_password("a-new-long-phrase")
    assert fresh.post("/security/password/", form).status_code == 422  # the old one is asked for again
    assert Client().post(path).status_code == 404
    assert not Authenticator.objects.exists()
    told = set(AuditEvent.objects.values_list("action", flat=True))
    assert {"second_factor.reset", "login_link.created", "login_link.used", "user.password_changed"} <= told
    assert path.split("/")[-2] not in str(list(AuditEvent.objects.values())) + str(list(LoginLink.objects.values()))


def test_a_link_gives_nothing_to_whoever_is_logged_in_already(client: Client) -> None:
    ada, eve = person("ada"), person("eve")
    TOTP.activate(eve, generate_totp_secret())  # so that the link leads to a second step, and not in
    client.force_login(ada)
    path = login_link(services.create_login_link(eve, actor=SYSTEM).secret).removeprefix("http://127.0.0.1:8000")
    assert client.post(path)["Location"].startswith("/login/second-factor/")
    form = {"new_password1": "a-new-long-phrase", "new_password2": "a-new-long-phrase"}
    client.post("/security/password/", form)
    ada.refresh_from_db()
    assert not ada.check_password("a-new-long-phrase")
    assert "_auth_user_id" not in client.session


def test_the_old_password_is_asked_for_again_a_while_after_coming_by_a_link(client: Client) -> None:
    olga = person("olga")
    client.post(login_link(services.create_login_link(olga, actor=SYSTEM).secret).removeprefix("http://127.0.0.1:8000"))
    session = client.session
    session[CAME_BY_LINK_UNTIL] -= 15 * 60
    session.save()
    form = {"new_password1": "a-new-long-phrase", "new_password2": "a-new-long-phrase"}
    assert client.post("/security/password/", form).status_code == 422


def test_a_link_works_for_fifteen_minutes_and_the_newest_alone(client: Client) -> None:
    olga = person("olga")
    first, second = recover("olga@example.com"), recover("olga@example.com")
    assert client.post(first).status_code == 404
    link = LoginLink.objects.get()
    assert timedelta(minutes=14) < link.expires_at - timezone.now() <= timedelta(minutes=15)
    LoginLink.objects.update(expires_at=timezone.now())
    assert client.post(second).status_code == 404
    path = recover("olga@example.com")
    services.change_person(olga.pk, is_active=False, actor=SYSTEM)
    assert client.post(path).status_code == 404


def test_a_superuser_is_made_only_while_there_is_none(client: Client) -> None:
    with pytest.raises(CommandError, match="Nobody has"):
        recover("root@example.com")
    assert client.post(recover("root@example.com", "--superuser")).status_code == 302
    root = User.objects.get(email="root@example.com")
    assert (root.platform_role, root.is_superuser, root.is_active) == ("superuser", True, True)
    with pytest.raises(CommandError, match="There is a superuser"):
        recover("eve@example.com", "--superuser")
    User.objects.update(is_active=False)
    with pytest.raises(CommandError, match="switched off"):
        recover("root@example.com")
    person("olga", platform_role="operator")
    recover("olga@example.com", "--superuser")
    assert User.objects.get(email="olga@example.com").platform_role == "superuser"
