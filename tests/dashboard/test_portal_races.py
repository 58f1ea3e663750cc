"""What somebody else deletes between a page's question and its answer is not there: 404, and no error of ours."""

from typing import Any

import pytest
from django.test import Client

from dashboard.views.portal import keys as keys_page
from tenants import services
from tenants.actor import SYSTEM
from tenants.models import ApiKey, Invitation, Membership, Tenant, TenantRole, User
from tenants.policies.roles import Standing
from tenants.reads import people
from tests.dashboard.people import tenant

pytestmark = pytest.mark.django_db


@pytest.fixture
def acme(client: Client) -> Tenant:
    made = tenant("acme", ada=TenantRole.OWNER, vic=TenantRole.VIEWER)
    client.force_login(User.objects.get(email="ada@example.com"))
    return made


def vanish_after(monkeypatch: pytest.MonkeyPatch, module: Any, look: str, rows: Any) -> None:
    """The rows are deleted as soon as the page has looked for what it is about."""
    found = getattr(module, look)

    def looked(*args: Any) -> Any:
        one = found(*args)
        rows.delete()
        return one

    monkeypatch.setattr(module, look, looked)


@pytest.mark.parametrize(("deed", "form"), [("rotate", {"overlap": "0"}), ("leaked", {}), ("revoke", {})])
def test_a_key_that_is_gone_meanwhile(
    client: Client, acme: Tenant, monkeypatch: pytest.MonkeyPatch, deed: str, form: dict[str, str]
) -> None:
    key = services.create_api_key(acme, name="k", actor=SYSTEM).key
    vanish_after(monkeypatch, keys_page, "get_api_key", ApiKey.objects.all())
    assert client.post(f"/t/acme/keys/{key.pk}/{deed}/", form).status_code == 404


@pytest.mark.parametrize(("deed", "form"), [("role", {"role": "admin"}), ("remove", {})])
def test_a_member_who_is_gone_meanwhile(
    client: Client, acme: Tenant, monkeypatch: pytest.MonkeyPatch, deed: str, form: dict[str, str]
) -> None:
    vic = User.objects.get(email="vic@example.com")
    vanish_after(monkeypatch, people, "get_member", Membership.objects.filter(user=vic))
    assert client.post(f"/t/acme/members/{vic.pk}/{deed}/", form).status_code == 404


def test_an_invitation_that_is_gone_meanwhile(client: Client, acme: Tenant, monkeypatch: pytest.MonkeyPatch) -> None:
    invited = services.create_invitation(
        acme, email="x@example.com", role="viewer", standing=Standing("", "owner"), actor=SYSTEM
    )
    vanish_after(monkeypatch, people, "get_invitation", Invitation.objects.all())
    assert client.post(f"/t/acme/invitations/{invited.invitation.pk}/withdraw/").status_code == 404
