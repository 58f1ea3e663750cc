"""Looking at a portal with a member's eyes: exactly theirs, changing nothing, on record from begin to end."""

from datetime import timedelta

import pytest
from django.contrib.sessions.models import Session
from django.test import Client
from django.utils import timezone

from dashboard.live.base import Viewer
from dashboard.live.feeds.audit import AuditFeed
from dashboard.live.viewers import read_viewers
from dashboard.models import Export
from dashboard.viewing import SESSION_KEY
from tenants.actor import SYSTEM
from tenants.models import ApiKey, AuditEvent, Membership, Tenant, TenantRole, User
from tenants.policies.roles import Object
from tenants.services import create_api_key
from tests.dashboard.people import person, tenant

pytestmark = pytest.mark.django_db


@pytest.fixture
def acme() -> Tenant:
    return tenant("acme", ada=TenantRole.OWNER, ben=TenantRole.VIEWER)


def look_as(client: Client, name: str, *, by: str = "operator") -> User:
    """An operator begins to look as NAME."""
    olga = person("olga", platform_role=by)
    client.force_login(olga)
    member = User.objects.get(email=f"{name}@example.com")
    answer = client.post("/console/tenants/acme/view-as/", {"member": str(member.pk)})
    assert answer.headers["Location"] == "/t/acme/"
    return olga


def test_the_portal_is_what_the_member_sees(client: Client, acme: Tenant) -> None:
    client.force_login(User.objects.get(email="ben@example.com"))
    own = client.get("/t/acme/keys/")
    look_as(client, "ben")
    seen = client.get("/t/acme/keys/")
    assert seen.context["access"].role == own.context["access"].role == "viewer"
    assert not seen.context["access"].may_create_keys
    assert "/t/acme/keys/new/" not in seen.content.decode()
    assert [tenant.slug for tenant in seen.context["shell"].tenants] == ["acme"]


def test_every_page_names_whom_and_offers_to_end_it(client: Client, acme: Tenant) -> None:
    look_as(client, "ben")
    for page in ("/t/acme/", "/t/acme/keys/", "/t/acme/usage/", "/t/acme/members/", "/security/"):
        text = client.get(page).content.decode()
        assert "as Ben (Viewer) sees it" in text, page
        assert 'action="/view-as/end/"' in text, page


def test_a_persons_page_leads_to_looking_as_them_where_lists_are_too_long(client: Client, acme: Tenant) -> None:
    client.force_login(person("olga", platform_role="operator"))
    ben = User.objects.get(email="ben@example.com")
    link = f"/console/tenants/acme/view-as/?member={ben.pk}"
    assert link in client.get(f"/console/people/{ben.pk}/").content.decode()
    assert [one.user for one in client.get(link).context["members"]] == [ben]
    assert len(client.get("/console/tenants/acme/view-as/?member=x").context["members"]) == 2
    client.force_login(person("rita", platform_role="read_only"))
    assert "view-as" not in client.get(f"/console/people/{ben.pk}/").content.decode()


def test_the_console_and_other_tenants_are_closed(client: Client, acme: Tenant) -> None:
    tenant("bank")
    look_as(client, "ada")
    assert client.get("/t/bank/").status_code == 404
    closed = client.get("/console/overview/")
    assert closed.status_code == 403
    assert 'action="/view-as/end/"' in closed.content.decode()
    assert client.get("/").headers["Location"] == "/t/acme/"


def test_other_tenants_of_the_member_stay_closed_for_they_are_not_told_of_it(client: Client, acme: Tenant) -> None:
    tenant("bank", ben=TenantRole.OWNER)
    look_as(client, "ben")
    assert client.get("/t/bank/").status_code == 404
    assert [one.slug for one in client.get("/t/acme/").context["shell"].tenants] == ["acme"]
    key = Session.objects.get().session_key
    viewer = read_viewers([key])[key]
    assert isinstance(viewer, Viewer)
    assert viewer.roles == {"acme": "viewer"}


def test_a_members_platform_role_is_not_lent(client: Client, acme: Tenant) -> None:
    User.objects.filter(email="ben@example.com").update(platform_role="superuser", is_superuser=True, is_staff=True)
    tenant("bank")
    look_as(client, "ben")
    seen = client.get("/t/acme/")
    access = seen.context["access"]
    assert not access.may("view", Object.TENANT_AUDIT)  # a superuser's, not a viewer's
    assert not access.standing.may_give("viewer")
    assert not seen.context["shell"].may_read_platform
    assert client.get("/t/bank/").status_code == 404
    assert client.get("/console/people/").status_code == 403
    key = Session.objects.get().session_key
    viewer = read_viewers([key])[key]
    assert isinstance(viewer, Viewer)
    assert not viewer.reads_platform


def test_no_export_is_asked_for_with_borrowed_eyes(
    client: Client, acme: Tenant, monkeypatch: pytest.MonkeyPatch
) -> None:
    create_api_key(acme, name="one", actor=SYSTEM)
    look_as(client, "ada")
    assert client.get("/t/acme/keys/?format=csv").status_code == 200
    monkeypatch.setattr("dashboard.tables.sheet.CSV_LIMIT", 0)
    assert client.get("/t/acme/keys/?format=csv").status_code == 403
    assert not Export.objects.exists()


def test_nothing_can_be_changed_meanwhile(client: Client, acme: Tenant) -> None:
    look_as(client, "ada", by="superuser")
    refused = client.post("/t/acme/keys/new/", {"name": "mine"})
    assert refused.status_code == 403
    assert client.post("/console/tenants/acme/state/suspended/").status_code == 403
    by_api = client.post("/api/tenants/acme/keys/", {"name": "mine"}, content_type="application/json")
    assert (by_api.status_code, by_api.json()["code"]) == (403, "viewing_as")
    assert client.delete("/api/tenants/acme/").status_code == 403
    assert not ApiKey.objects.exists()
    assert Tenant.objects.get(slug="acme").state == "active"


def test_content_stays_closed_to_borrowed_eyes(client: Client, acme: Tenant) -> None:
    look_as(client, "ada")
    access = client.get("/t/acme/").context["access"]
    assert not access.may("view", Object.CONVERSATION)
    assert not access.may("view", Object.PERSONAL_DATA)
    assert access.may("view", Object.WEBHOOK)  # other things of an owner's are seen


def test_begin_and_end_are_in_the_audit_log(client: Client, acme: Tenant) -> None:
    olga = look_as(client, "ben")
    begun = AuditEvent.objects.get(action="view_as.begun")
    ben = User.objects.get(email="ben@example.com")
    assert (begun.actor_id, begun.tenant_id) == (olga.pk, acme.pk)
    assert begun.after["user"] == str(ben.pk)
    assert client.post("/view-as/end/").headers["Location"] == "/console/tenants/acme/"
    ended = AuditEvent.objects.get(action="view_as.ended")
    assert (ended.actor_id, ended.subject_id, ended.after["why"]) == (olga.pk, begun.subject_id, "ended")
    assert client.get("/console/overview/").status_code == 200
    assert client.get("/t/acme/").context["access"].role is None


def test_logging_out_ends_it(client: Client, acme: Tenant) -> None:
    look_as(client, "ben")
    client.post("/logout/")
    assert AuditEvent.objects.get(action="view_as.ended").after["why"] == "logged_out"


def run_out(client: Client) -> None:
    """An hour has passed."""
    session = client.session
    session[SESSION_KEY] = {**session[SESSION_KEY], "until": (timezone.now() - timedelta(seconds=1)).isoformat()}
    session.save()


@pytest.mark.parametrize("why", ["time", "role", "member"])
def test_it_is_over_when_its_time_the_role_or_the_member_is(client: Client, acme: Tenant, why: str) -> None:
    olga = look_as(client, "ben")
    if why == "time":
        run_out(client)
    elif why == "role":
        User.objects.filter(pk=olga.pk).update(platform_role="read_only")
    else:
        User.objects.filter(email="ben@example.com").update(is_active=False)
    assert client.get("/console/overview/").status_code == 200
    assert AuditEvent.objects.get(action="view_as.ended").after["why"] == "over"


def test_what_is_pressed_on_a_page_of_before_is_not_done_with_ones_own_hands(client: Client, acme: Tenant) -> None:
    key = create_api_key(acme, name="one", actor=SYSTEM).key
    look_as(client, "ada", by="superuser")
    run_out(client)
    refused = client.post(f"/t/acme/keys/{key.pk}/revoke/")
    assert refused.status_code == 403
    assert "You no longer look as somebody else" in refused.content.decode()
    assert AuditEvent.objects.get(action="view_as.ended").after["why"] == "over"
    assert ApiKey.objects.get(pk=key.pk).revoked_at is None
    assert client.post(f"/t/acme/keys/{key.pk}/revoke/").status_code == 302  # now they know whose hands these are
    assert ApiKey.objects.get(pk=key.pk).revoked_at is not None


def test_the_api_refuses_once_too_when_it_is_over(client: Client, acme: Tenant) -> None:
    look_as(client, "ada", by="superuser")
    run_out(client)
    by_api = client.post("/api/tenants/acme/keys/", {"name": "mine"}, content_type="application/json")
    assert (by_api.status_code, by_api.json()["code"]) == (403, "viewing_over")
    assert not ApiKey.objects.exists()


@pytest.mark.parametrize("address", ["/view-as/end/", "/logout/"])
def test_ending_what_is_over_is_no_mistake(client: Client, acme: Tenant, address: str) -> None:
    look_as(client, "ada")
    run_out(client)
    assert client.post(address).status_code == 302


def test_a_member_who_left_is_looked_as_no_more(client: Client, acme: Tenant) -> None:
    look_as(client, "ben")
    Membership.objects.filter(user__email="ben@example.com").delete()
    assert client.get("/console/overview/").status_code == 200


@pytest.mark.parametrize("role", ["read_only", ""])
def test_who_may_not_operate_may_not_look_as_others(client: Client, acme: Tenant, role: str) -> None:
    client.force_login(person("rita", platform_role=role))
    address = "/console/tenants/acme/view-as/"
    assert client.get(address).status_code == 403
    member = User.objects.get(email="ben@example.com")
    assert client.post(address, {"member": str(member.pk)}).status_code == 403
    assert SESSION_KEY not in client.session
    assert not AuditEvent.objects.filter(action="view_as.begun").exists()


@pytest.mark.parametrize("whom", ["nobody", "outsider", "deactivated", ""])
def test_only_members_who_may_log_in_can_be_looked_as(client: Client, acme: Tenant, whom: str) -> None:
    client.force_login(person("olga", platform_role="operator"))
    User.objects.filter(email="ben@example.com").update(is_active=False)
    chosen = {
        "nobody": "01900000-0000-7000-8000-000000000000",
        "outsider": str(person("eve").pk),
        "deactivated": str(User.objects.get(email="ben@example.com").pk),
        "": "",
    }[whom]
    assert client.post("/console/tenants/acme/view-as/", {"member": chosen}).status_code == 422
    assert SESSION_KEY not in client.session


def test_a_forged_session_value_is_passed_over(client: Client, acme: Tenant) -> None:
    client.force_login(person("olga", platform_role="operator"))
    for value in ("text", {"membership": "x", "until": "y"}, {}, 7):
        session = client.session
        session[SESSION_KEY] = value
        session.save()
        assert client.get("/console/overview/").status_code == 200


def test_sockets_see_with_the_same_eyes(client: Client, acme: Tenant) -> None:
    look_as(client, "ben")
    key = Session.objects.get().session_key
    viewer = read_viewers([key])[key]
    assert isinstance(viewer, Viewer)
    assert (viewer.platform_role, viewer.roles) == ("", {"acme": "viewer"})
    assert not viewer.reads_platform
    assert not AuditFeed().may_watch(viewer, "")
    assert not AuditFeed().may_watch(viewer, "tenant:acme")  # a viewer sees no audit log
    client.post("/view-as/end/")
    back = read_viewers([key])[key]
    assert isinstance(back, Viewer)
    assert AuditFeed().may_watch(back, "")
