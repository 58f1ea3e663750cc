"""Two who change the same thing at once in different ways: the second waits and is told, and neither fails."""

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from threading import Event
from typing import Any

import pytest
from django.db import connection, transaction
from rest_framework.test import APIClient

from tenants.actor import SYSTEM, user_actor
from tenants.models import Invitation, Membership, PlatformRole, Tenant, TenantRole, User
from tenants.policies.roles import Standing
from tenants.services import accept_invitation, apply_claims, change_person, create_invitation, remove_member
from tenants.services.departments import set_parent
from tests.factories import make_member, make_tenant, make_user
from tests.locks import somebody_waits
from tests.waiting import wait_until

pytestmark = pytest.mark.django_db(transaction=True)
OWNER = Standing("", "owner")


def beside(first: Callable[[], object], other: Callable[[], Any], second: Callable[[], object]) -> Any:
    """What comes of `other`, begun after `first` and waiting for a lock while `second` is done, which ends it all."""

    def run() -> Any:
        try:
            return other()
        finally:
            connection.close()

    with ThreadPoolExecutor(1) as pool:
        with transaction.atomic():
            first()
            future: Future[Any] = pool.submit(run)
            wait_until(somebody_waits, "nobody waits for a lock")
            second()
        return future.result(timeout=20)


def lock(rows: Any) -> Callable[[], object]:
    """What a change of the row begins with."""
    return lambda: list(rows.select_for_update(no_key=True))


def patch(user: User, address: str, body: dict[str, Any]) -> Any:
    client = APIClient()
    client.force_authenticate(user)
    return client.patch(address, body, format="json", HTTP_IF_MATCH="*")


def test_a_role_is_changed_while_the_member_is_removed() -> None:
    tenant = make_tenant()
    ada, bea = (make_member(tenant, role=TenantRole.OWNER) for _ in range(2))
    answer = beside(
        lock(Tenant.objects.filter(pk=tenant.pk)),
        lambda: patch(ada, f"/api/tenants/{tenant.slug}/members/{bea.pk}/", {"role": "viewer"}),
        lambda: remove_member(tenant, bea.pk, standing=OWNER, actor=SYSTEM),
    )
    assert answer.status_code == 404
    assert not Membership.objects.filter(user=bea).exists()


def test_where_locks_are_taken_crosswise_all_the_same_it_is_a_conflict() -> None:
    first, second = make_tenant(), make_tenant()
    root = make_user(platform_role=PlatformRole.SUPERUSER)
    held = Event()

    def crosswise() -> Any:
        try:
            with transaction.atomic():
                lock(Tenant.objects.filter(pk=second.pk))()
                held.set()
                # PostgreSQL looks for a deadlock once a wait: the change has to be the last that begins to wait.
                wait_until(somebody_waits, "nobody waits for a lock")
                answer = patch(root, f"/api/tenants/{first.slug}/", {"name": "x"})
                transaction.set_rollback(True)
                return answer
        finally:
            connection.close()

    with ThreadPoolExecutor(1) as pool:
        with transaction.atomic():
            with connection.cursor() as cursor:
                cursor.execute("SET LOCAL deadlock_timeout = '60s'")  # so that the other one is told
                cursor.execute("SET LOCAL lock_timeout = '30s'")
            lock(Tenant.objects.filter(pk=first.pk))()
            future: Future[Any] = pool.submit(crosswise)
            assert held.wait(20)
            lock(Tenant.objects.filter(pk=second.pk))()
        answer = future.result(timeout=20)
    assert (answer.status_code, answer.json()["type"]) == (409, "urn:gatehouse:problem:conflict")


def test_two_superusers_are_changed() -> None:
    ada, bea = (make_user(platform_role=PlatformRole.SUPERUSER) for _ in range(2))
    answer = beside(
        lock(User.objects.filter(pk=ada.pk)),
        lambda: patch(ada, f"/api/people/{bea.pk}/", {"display_name": "Bea"}),
        lambda: change_person(ada.pk, display_name="Ada", actor=SYSTEM),
    )
    assert answer.status_code == 200
    assert set(User.objects.values_list("display_name", flat=True)) == {"Ada", "Bea"}


def test_an_invitation_is_replaced_while_it_is_accepted() -> None:
    tenant, user = make_tenant(), make_user()
    new = create_invitation(tenant, email=user.email, role="viewer", standing=OWNER, actor=SYSTEM)
    beside(
        lock(Invitation.objects.filter(pk=new.invitation.pk)),
        lambda: create_invitation(tenant, email=user.email, role="admin", standing=OWNER, actor=SYSTEM),
        lambda: accept_invitation(new.secret, user, actor=SYSTEM),
    )
    assert Membership.objects.get(user=user).role == "viewer"
    assert Invitation.objects.get(pk=new.invitation.pk).withdrawn_at is None


def test_who_is_removed_while_they_invite_invites_nobody() -> None:
    tenant = make_tenant()
    ada, bea = (make_member(tenant, role=TenantRole.OWNER) for _ in range(2))
    client = APIClient()
    client.force_authenticate(ada)
    address, body = f"/api/tenants/{tenant.slug}/invitations/", {"email": "x@example.test", "role": "owner"}
    answer = beside(
        lock(Tenant.objects.filter(pk=tenant.pk)),
        lambda: client.post(address, body, format="json"),
        lambda: remove_member(tenant, ada.pk, standing=OWNER, actor=user_actor(bea.pk)),
    )
    assert answer.status_code == 403
    assert not Invitation.objects.exists()


def test_a_parent_is_changed_while_a_tenant_is_put_below_it() -> None:
    above, below, part, whole = (make_tenant() for _ in range(4))
    root = make_user(platform_role=PlatformRole.SUPERUSER)
    answer = beside(
        lambda: set_parent(part.pk, whole.pk, actor=SYSTEM),
        lambda: patch(root, f"/api/tenants/{above.slug}/", {"parent": whole.slug}),
        lambda: set_parent(below.pk, above.pk, actor=SYSTEM),
    )
    assert answer.status_code == 200
    below.refresh_from_db()
    assert below.parent_id == above.pk


def without_waiting(deed: Callable[[], object]) -> None:
    """Do it on another connection; fails where it would wait for the running transaction."""

    def run() -> None:
        try:
            with connection.cursor() as cursor:
                cursor.execute("SET lock_timeout = '5s'")
            deed()
        finally:
            connection.close()

    with ThreadPoolExecutor(1) as pool:
        pool.submit(run).result()


def test_a_member_is_removed_while_their_rights_change() -> None:
    tenant = make_tenant()
    ada = make_member(tenant)
    with transaction.atomic():
        lock(User.objects.filter(pk=ada.pk))()
        without_waiting(lambda: remove_member(tenant, ada.pk, standing=OWNER, actor=SYSTEM))
    assert not Membership.objects.exists()


def test_an_invitation_is_accepted_while_its_person_logs_in_by_a_provider() -> None:
    tenant, ada = make_tenant(), make_user()
    new = create_invitation(tenant, email=ada.email, role="viewer", standing=OWNER, actor=SYSTEM)
    with transaction.atomic():
        apply_claims(ada, {}, actor=SYSTEM)
        without_waiting(lambda: accept_invitation(new.secret, ada, actor=SYSTEM))
    assert Membership.objects.get().tenant == tenant
