"""What is over is deleted after a while: sessions, log-in links, invitations. Twice is once."""

from datetime import timedelta

import pytest
from django.contrib.sessions.models import Session
from django.utils import timezone

from tenants.actor import SYSTEM
from tenants.models import Invitation, LoginLink
from tenants.policies.roles import Standing
from tenants.services import create_invitation, create_login_link, use_login_link
from tenants.services.pruning import prune_invitations, prune_login_links, prune_sessions
from tests.factories import make_tenant, make_user

pytestmark = pytest.mark.django_db


def test_expired_sessions_go() -> None:
    now = timezone.now()
    for name, expires_at in (("old", now - timedelta(seconds=1)), ("new", now + timedelta(hours=1))):
        Session.objects.create(session_key=name, session_data="", expire_date=expires_at)
    prune_sessions()
    prune_sessions()
    assert [one.session_key for one in Session.objects.all()] == ["new"]


def test_used_and_expired_login_links_go() -> None:
    used, expired, fresh = (create_login_link(make_user(), actor=SYSTEM) for _ in range(3))
    use_login_link(used.secret)
    now = timezone.now()
    LoginLink.objects.filter(pk=expired.link.pk).update(expires_at=now)
    assert [prune_login_links(now=now) for _ in range(2)] == [2, 0]
    assert use_login_link(fresh.secret) == fresh.link.user


def test_invitations_go_ninety_days_after_their_end() -> None:
    tenant, now = make_tenant(), timezone.now()
    ends = {
        "accepted": {"accepted_at": now},
        "withdrawn": {"withdrawn_at": now},
        "expired": {"expires_at": now},
        "open": {"expires_at": now + timedelta(days=91)},
    }
    for name, how in ends.items():
        address = f"{name}@example.test"
        create_invitation(tenant, email=address, role="viewer", standing=Standing("", "owner"), actor=SYSTEM)
        Invitation.objects.filter(email=address).update(**how)
    Invitation.objects.filter(email="accepted@example.test").update(expires_at=now - timedelta(days=80))
    assert prune_invitations(now=now + timedelta(days=90)) == 0
    later = now + timedelta(days=90, seconds=1)
    assert [prune_invitations(now=later) for _ in range(2)] == [3, 0]
    assert [one.email for one in Invitation.objects.all()] == ["open@example.test"]
