"""Two people at once: a tenant keeps an owner, a link lets in one, the platform keeps a superuser."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier

import pytest
from django.db import connection

from core.refusals import Conflict
from tenants.actor import SYSTEM
from tenants.models import Invitation, Membership, PlatformRole, TenantRole, User
from tenants.policies.roles import Standing
from tenants.services import accept_invitation, change_member_role, change_person, create_invitation, remove_member
from tests.factories import make_member, make_tenant, make_user

OWNER = Standing("", "owner")


def at_once(*deeds: Callable[[], object]) -> list[str]:
    """The names of what each deed raised, "" for nothing; all begin together."""
    barrier = Barrier(len(deeds))

    def run(deed: Callable[[], object]) -> str:
        try:
            barrier.wait(timeout=60)
            deed()
        except (Conflict, Invitation.DoesNotExist) as error:
            return type(error).__name__
        finally:
            connection.close()
        return ""

    with ThreadPoolExecutor(len(deeds)) as pool:
        return sorted(pool.map(run, deeds))


@pytest.mark.usefixtures("transactional_db")
def test_two_owners_who_put_each_other_out_leave_one() -> None:
    tenant = make_tenant()
    ada, bea = (make_member(tenant, role=TenantRole.OWNER) for _ in range(2))
    told = at_once(
        lambda: remove_member(tenant, bea.pk, standing=OWNER, actor=SYSTEM),
        lambda: change_member_role(tenant, ada.pk, "viewer", standing=OWNER, actor=SYSTEM),
    )
    assert told == ["", "Conflict"]
    assert Membership.objects.filter(tenant=tenant, role=TenantRole.OWNER).count() == 1


@pytest.mark.usefixtures("transactional_db")
def test_a_link_that_two_open_at_once_lets_in_once() -> None:
    tenant, user = make_tenant(), make_user()
    new = create_invitation(tenant, email=user.email, role="viewer", standing=OWNER, actor=SYSTEM)
    told = at_once(*[lambda: accept_invitation(new.secret, user, actor=SYSTEM)] * 2)
    assert told == ["", "DoesNotExist"]
    assert Membership.objects.get().user == user


@pytest.mark.usefixtures("transactional_db")
def test_two_superusers_who_demote_each_other_leave_one() -> None:
    first, second = (make_user(platform_role=PlatformRole.SUPERUSER) for _ in range(2))
    told = at_once(*[lambda pk=pk: change_person(pk, platform_role="", actor=SYSTEM) for pk in (first.pk, second.pk)])
    assert told == ["", "Conflict"]
    assert User.objects.filter(platform_role=PlatformRole.SUPERUSER).count() == 1
