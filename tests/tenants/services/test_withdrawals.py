"""What somebody invited to is open no longer than they could invite to it."""

from collections.abc import Callable

import pytest
from django.core.exceptions import PermissionDenied

from tenants.actor import SYSTEM, user_actor
from tenants.models import AuditEvent, Invitation, PlatformRole, RoleSource, Tenant, TenantRole, User
from tenants.policies.roles import Standing
from tenants.services import (
    accept_invitation_as_new,
    add_member,
    apply_claims,
    change_member_role,
    change_person,
    create_invitation,
    remove_member,
)
from tenants.services.erasure import erase_person
from tests.factories import make_member, make_tenant, make_user

pytestmark = pytest.mark.django_db
OWNER = Standing("", "owner")


@pytest.fixture
def acme() -> Tenant:
    """It has an owner, so that others may go."""
    tenant = make_tenant()
    make_member(tenant, role=TenantRole.OWNER)
    return tenant


@pytest.fixture
def ada(acme: Tenant) -> User:
    return make_member(acme, role=TenantRole.OWNER)


def invite(tenant: Tenant, by: User, role: str) -> str:
    """The link's secret."""
    standing = Standing(
        by.active_platform_role, tenant.memberships.filter(user=by).values_list("role", flat=True).first()
    )
    address = f"{role}-{Invitation.objects.count()}@example.test"
    return create_invitation(tenant, email=address, role=role, standing=standing, actor=user_actor(by.pk)).secret


def still_open() -> set[str]:
    return set(Invitation.objects.filter(withdrawn_at=None, accepted_at=None).values_list("role", flat=True))


def test_invitations_of_a_removed_member_are_withdrawn_with_them_and_audited(acme: Tenant, ada: User) -> None:
    bea = make_member(acme, role=TenantRole.ADMIN)
    secret = invite(acme, ada, "admin")
    invite(acme, bea, "viewer")
    accepted = accept_invitation_as_new(invite(acme, ada, "developer"), display_name="", password="a-long-phrase-91")
    remove_member(acme, ada.pk, standing=OWNER, actor=user_actor(bea.pk))
    assert still_open() == {"viewer"}
    with pytest.raises(Invitation.DoesNotExist):
        accept_invitation_as_new(secret, display_name="", password="a-long-phrase-91")
    told = AuditEvent.objects.get(action="invitation.withdrawn")
    assert (told.tenant_id, told.actor_id, told.before) == (acme.pk, bea.pk, {"role": "admin"})
    assert acme.memberships.filter(user=accepted).exists()


def test_of_a_lowered_role_stays_open_what_it_could_still_invite_to(acme: Tenant, ada: User) -> None:
    for role in ("owner", "admin", "viewer"):
        invite(acme, ada, role)
    change_member_role(acme, ada.pk, "admin", standing=OWNER, actor=SYSTEM)
    assert still_open() == {"admin", "viewer"}
    change_member_role(acme, ada.pk, "developer", standing=OWNER, actor=SYSTEM)
    assert still_open() == set()


def test_other_tenants_and_platform_roles_keep_theirs(acme: Tenant, ada: User) -> None:
    other, olga = make_tenant(), make_user(platform_role=PlatformRole.OPERATOR)
    add_member(other, ada, role=TenantRole.OWNER, actor=SYSTEM)
    add_member(acme, olga, role=TenantRole.VIEWER, actor=SYSTEM)
    invite(other, ada, "owner")
    invite(acme, olga, "admin")
    for one in (ada, olga):
        remove_member(acme, one.pk, standing=OWNER, actor=SYSTEM)
    assert still_open() == {"owner", "admin"}


def _demoted(olga: User) -> None:
    change_person(olga.pk, platform_role=PlatformRole.READ_ONLY, actor=SYSTEM)


def _switched_off(olga: User) -> None:
    change_person(olga.pk, is_active=False, actor=SYSTEM)


def _erased(olga: User) -> None:
    erase_person(olga.pk, actor=SYSTEM)


def _left_the_group(olga: User) -> None:
    User.objects.filter(pk=olga.pk).update(platform_role_source=RoleSource.CLAIMS)
    apply_claims(olga, {}, actor=SYSTEM)


@pytest.mark.parametrize("deed", [_demoted, _switched_off, _erased, _left_the_group])
def test_who_operates_the_platform_no_longer_has_invited_nobody(acme: Tenant, deed: Callable[[User], None]) -> None:
    olga = make_user(platform_role=PlatformRole.OPERATOR)
    invite(acme, olga, "owner")
    deed(olga)
    assert still_open() == set()
    assert AuditEvent.objects.filter(action="invitation.withdrawn").count() == 1


def test_claims_that_take_a_role_take_its_invitations(acme: Tenant, ada: User) -> None:
    acme.memberships.filter(user=ada).update(source=RoleSource.CLAIMS)
    invite(acme, ada, "viewer")
    apply_claims(ada, {}, actor=SYSTEM)
    assert still_open() == set()


def test_who_was_removed_while_they_invite_invites_nobody(acme: Tenant, ada: User) -> None:
    """What they might was found out before; it counts what they may when the invitation is written."""
    remove_member(acme, ada.pk, standing=OWNER, actor=SYSTEM)
    with pytest.raises(PermissionDenied, match="above their own"):
        create_invitation(acme, email="x@example.test", role="viewer", standing=OWNER, actor=user_actor(ada.pk))
    assert not Invitation.objects.exists()
