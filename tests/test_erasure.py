"""What is erased is nowhere, and nothing else is gone: shown by looking into every table that the database has."""

import json
import os
from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

import pytest
from django.apps import apps
from django.conf import settings
from django.contrib.admin.models import LogEntry
from django.contrib.contenttypes.models import ContentType
from django.contrib.sessions.backends.db import SessionStore
from django.db import connection
from django.utils import timezone

import dashboard.holdings
import gateway.holdings
import gpupool.holdings
import tenants.holdings
from config.database_roles import grant_runtime
from core.models import IdempotencyRecord
from core.refusals import Conflict
from gateway.models import StoredConversation
from gpupool.models import FineTuningJob, Instance
from gpupool.services.catalogue import create_model
from tenants import erasure, services
from tenants.actor import SYSTEM, user_actor
from tenants.models import AuditEvent, PlatformRole, Tenant, TenantRole, TenantState, UsageRecord, User
from tenants.policies.roles import Standing as RoleStanding
from tenants.reads.export import export_person, export_tenant
from tenants.services import create_access_token
from tenants.services.departments import change_tenant
from tenants.services.erasure import erase_person, erase_tenant, finish_erasures, quiet_after
from tenants.services.limits import create_limit
from tenants.services.requests import request_model
from tenants.standing import Standing
from tests.canaries import SECRET, Filler, holding_models, places_of
from tests.factories import make_key, make_member, make_tenant, make_user

pytestmark = pytest.mark.django_db
ACME, OTHER = "canaryacme91d2", "canaryother4be7"
AS_OPERATOR = RoleStanding("superuser", None)


@pytest.fixture(autouse=True)
def _cheap_passwords(settings: Any) -> None:
    settings.PASSWORD_HASHERS = ["django.contrib.auth.hashers.MD5PasswordHasher"]


def _filled(word: str, operator: User) -> Tenant:
    """A tenant that does all sorts of things, and has a row of everything."""
    tenant = services.create_tenant(slug=f"{word}-slug", name=f"{word} name", actor=SYSTEM)
    person = services.create_user(
        email=f"{word}@example.test", password="x" * 20, display_name=f"{word} person", actor=SYSTEM
    )
    services.add_member(tenant, person, role=TenantRole.OWNER, actor=SYSTEM)
    key = services.create_api_key(tenant, name=f"{word} key", actor=SYSTEM)
    services.change_api_key(key.key.pk, name=f"{word} key again", actor=SYSTEM)
    services.create_invitation(
        tenant, email=f"{word}-guest@example.test", role="viewer", days=7, standing=AS_OPERATOR, actor=SYSTEM
    )
    create_access_token(person, name=f"{word} token", actor=SYSTEM)
    services.create_login_link(person, actor=SYSTEM)
    change_tenant(tenant.pk, name=f"{word} renamed", actor=SYSTEM)
    create_model(f"{word}-private", tenant_id=tenant.pk, actor=SYSTEM)
    request_model(tenant, model="m", reason=f"{word} reason", actor=user_actor(person.pk))
    elsewhere = make_tenant()
    services.create_invitation(elsewhere, email=person.email, role="viewer", days=7, standing=AS_OPERATOR, actor=SYSTEM)
    services.create_role_mapping(claim="email", value=person.email, platform_role="read_only", actor=SYSTEM)
    Filler(word, Tenant.objects.get(pk=tenant.pk), person).fill()
    session = SessionStore()
    session["_auth_user_id"], session["account"] = str(person.pk), {"email": person.email}
    session.save()
    for edited, shown in ((key.key.pk, f"{word} key"), (person.pk, f"{word} person")):
        LogEntry.objects.create(
            user=operator,
            content_type=ContentType.objects.get_for_model(Tenant),
            object_id=str(edited),
            object_repr=shown,
            action_flag=2,
        )
    for number, body in enumerate(({"id": str(tenant.pk), "name": f"{word} name"}, {"email": person.email})):
        IdempotencyRecord.objects.create(
            person_id=operator.pk,
            key_digest=f"{number}{word}".encode(),
            target="POST /api/tenants/",
            request_digest=b"x",
            status=201,
            body=body,
            created_at=timezone.now(),
        )
    return Tenant.objects.get(pk=tenant.pk)


def _later() -> datetime:
    return timezone.now() + quiet_after() + timedelta(seconds=1)


def _suspended(tenant: Tenant) -> Tenant:
    return services.set_tenant_state(tenant.pk, TenantState.SUSPENDED, actor=SYSTEM)


@pytest.mark.shows("R5", "G25")
def test_of_an_erased_tenant_nothing_is_left_in_any_table_and_of_another_everything() -> None:
    operator = make_user(platform_role=PlatformRole.SUPERUSER)
    acme, other = _filled(ACME, operator), _filled(OTHER, operator)
    before = places_of(OTHER)
    assert before == {place.replace(ACME, OTHER) for place in places_of(ACME)}
    assert len(before) > 25
    _suspended(acme)
    counts = erase_tenant(acme.pk, actor=SYSTEM, now=_later())
    assert places_of(ACME) == set()
    assert places_of(OTHER) == before
    assert counts["gateway.StoredConversation"] == counts["tenants.Webhook"] == 1
    # What is kept names it by id only.
    assert UsageRecord.objects.filter(tenant_id=acme.pk).count() == 1
    erased = AuditEvent.objects.get(action="tenant.erased")
    assert (erased.tenant_id, erased.after["rows"]["tenants.Webhook"]) == (acme.pk, 1)
    assert AuditEvent.objects.filter(action="user.erased").count() == 1
    assert Tenant.objects.filter(pk=other.pk).exists()
    with pytest.raises(Tenant.DoesNotExist):
        erase_tenant(acme.pk, actor=SYSTEM, now=_later())


def test_every_model_that_names_tenants_or_people_is_known_to_exports_and_erasure() -> None:
    held = {one.model._meta.label for one in erasure.all_held()}
    nobodys = (
        tenants.holdings.NOBODYS | gpupool.holdings.NOBODYS | gateway.holdings.NOBODYS | dashboard.holdings.NOBODYS
    )
    assert {model._meta.label for model in holding_models()} - held == set()
    assert {model._meta.label for model in apps.get_models()} == held | nobodys
    assert held & nobodys == set()


@pytest.mark.shows("R5")
def test_of_an_erased_person_nothing_is_left_and_what_they_made_names_nobody() -> None:
    operator = make_user(platform_role=PlatformRole.SUPERUSER)
    acme = _filled(ACME, operator)
    person = User.objects.get(email=f"{ACME}@example.test")
    with pytest.raises(Conflict, match="last owner of"):
        erase_person(person.pk, actor=SYSTEM)
    make_member(acme, role=TenantRole.OWNER)
    erase_person(person.pk, actor=SYSTEM)
    left = places_of(person.email) | places_of(f"{ACME} person")
    assert left == set()
    assert not User.objects.filter(pk=person.pk).exists()
    assert acme.api_keys.filter(created_by__isnull=True).exists()
    with pytest.raises(User.DoesNotExist):
        erase_person(person.pk, actor=SYSTEM)


def test_the_last_superuser_is_not_erased() -> None:
    superuser = make_user(platform_role=PlatformRole.SUPERUSER)
    with pytest.raises(Conflict, match="last superuser"):
        erase_person(superuser.pk, actor=SYSTEM)


def test_members_who_are_elsewhere_too_stay() -> None:
    acme, other = make_tenant(), make_tenant()
    both, alone, operator = make_member(acme), make_member(acme), make_user(platform_role=PlatformRole.OPERATOR)
    for person in (both, operator):
        services.add_member(other if person is both else acme, person, role=TenantRole.VIEWER, actor=SYSTEM)
    _suspended(acme)
    erase_tenant(acme.pk, actor=SYSTEM, now=_later())
    assert set(User.objects.values_list("pk", flat=True)) == {both.pk, operator.pk}
    assert alone.pk not in {both.pk, operator.pk}


def test_a_tenant_is_erased_only_when_nothing_of_it_can_be_under_way() -> None:
    acme = make_tenant("acme")
    key = make_key(acme)
    with pytest.raises(Conflict, match="not suspended"):
        erase_tenant(acme.pk, actor=SYSTEM, now=_later())
    _suspended(acme)
    with pytest.raises(Conflict, match="may run until"):
        erase_tenant(acme.pk, actor=SYSTEM)
    department = services.create_tenant(slug="below", name="Below", actor=SYSTEM)
    Tenant.objects.filter(pk=department.pk).update(parent=acme)
    with pytest.raises(Conflict, match="Departments belong to it: below"):
        erase_tenant(acme.pk, actor=SYSTEM, now=_later())
    acme.refresh_from_db()
    assert acme.erasing_at is None
    assert acme.api_keys.filter(pk=key.key.pk).exists()
    # Resumed and suspended again, it is to wait anew.
    services.set_tenant_state(acme.pk, TenantState.ACTIVE, actor=SYSTEM)
    with pytest.raises(Conflict, match="not suspended"):
        erase_tenant(acme.pk, actor=SYSTEM, now=_later())


@pytest.mark.parametrize("state", ["draining", "ready"])
def test_instances_and_jobs_of_a_tenant_are_in_the_way(state: str) -> None:
    operator = make_user(platform_role=PlatformRole.SUPERUSER)
    acme = _filled(ACME, operator)
    _suspended(acme)
    Instance.objects.update(state=state)
    FineTuningJob.objects.update(state="running")
    with pytest.raises(Conflict, match=r"1 of its fine-tuning jobs .* not stopped"):
        erase_tenant(acme.pk, actor=SYSTEM, now=_later())


def test_requests_that_its_limits_still_count_are_in_the_way(monkeypatch: pytest.MonkeyPatch) -> None:
    acme = make_tenant()
    create_limit(metric="concurrency", window="standing", amount=5, tenant=acme, actor=SYSTEM)
    _suspended(acme)

    def two_under_way(limit_ids: Sequence[UUID]) -> dict[UUID, Standing]:
        return {limit_id: Standing(used=0, reserved=2, remaining=3, reset_seconds=0) for limit_id in limit_ids}

    monkeypatch.setattr("tenants.standing._readers", [two_under_way])
    with pytest.raises(Conflict, match="2 of its requests are under way"):
        erase_tenant(acme.pk, actor=SYSTEM, now=_later())
    monkeypatch.setattr("tenants.standing._readers", [])
    erase_tenant(acme.pk, actor=SYSTEM, now=_later())


def test_the_role_that_processes_run_as_may_erase() -> None:
    operator = make_user(platform_role=PlatformRole.SUPERUSER)
    acme = _filled(ACME, operator)
    _suspended(acme)
    role = f"erasure_{os.getpid()}"
    with connection.cursor() as cursor:
        cursor.execute(f"CREATE ROLE {role}")
        grant_runtime(role)
        cursor.execute(f"SET LOCAL ROLE {role}")
        erase_tenant(acme.pk, actor=SYSTEM, now=_later())
        cursor.execute("RESET ROLE")
    assert places_of(ACME) == set()


def test_an_erasure_that_was_broken_off_is_gone_on_with(monkeypatch: pytest.MonkeyPatch) -> None:
    acme = make_tenant()
    _suspended(acme)

    def die(*_: Any, **__: Any) -> None:
        raise RuntimeError("killed")

    with monkeypatch.context() as patched:
        patched.setattr("tenants.services.erasure._erase_rest", die)
        with pytest.raises(RuntimeError):
            erase_tenant(acme.pk, actor=SYSTEM, now=_later())
    acme.refresh_from_db()
    assert acme.erasing_at is not None
    with pytest.raises(Conflict, match="being erased"):
        services.set_tenant_state(acme.pk, TenantState.ACTIVE, actor=SYSTEM)
    assert finish_erasures(now=_later()) == 0  # perhaps somebody still is at it
    assert finish_erasures(now=_later() + timedelta(minutes=6)) == 1
    assert not Tenant.objects.filter(pk=acme.pk).exists()


def test_an_erasure_that_fails_holds_up_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    tenants = [_suspended(make_tenant()) for _ in range(2)]
    Tenant.objects.update(erasing_at=timezone.now())

    def remove(tenant_id: UUID) -> None:
        if tenant_id == tenants[0].pk:
            raise RuntimeError("a defect")

    monkeypatch.setattr(erasure, "sweep", remove)
    assert finish_erasures(now=_later() + timedelta(minutes=6)) == 1
    assert [*Tenant.objects.filter(erasing_at__isnull=False)] == tenants[:1]


@pytest.mark.shows("R5", "G25")
def test_an_export_has_all_rows_of_one_and_no_secret() -> None:
    operator = make_user(platform_role=PlatformRole.SUPERUSER)
    acme = _filled(ACME, operator)
    _filled(OTHER, operator)
    text = b"".join(export_tenant(acme, at=timezone.now())).decode()
    lines = [json.loads(line) for line in text.splitlines()]
    assert lines[0]["tenant"] == str(acme.pk)
    assert lines[-1] == {"rows": len(lines) - 2}
    tables = {line["table"] for line in lines[1:-1]}
    assert tables == {one.model._meta.label for one in erasure.all_held() if one.tenant}
    assert [word for word in (OTHER, SECRET, "digest", "password") if word in text] == []
    person = User.objects.get(email=f"{ACME}@example.test")
    text = b"".join(export_person(person, at=timezone.now())).decode()
    tables = {json.loads(line)["table"] for line in text.splitlines()[1:-1]}
    assert tables == {one.model._meta.label for one in erasure.all_held() if one.people or one.addresses}
    assert [word for word in (OTHER, SECRET, "password") if word in text] == []


def test_an_export_of_a_person_tells_nobody_elses_address() -> None:
    acme, operator = make_tenant(), make_user(platform_role=PlatformRole.SUPERUSER)
    for email in ("guest@example.test", operator.email):
        services.create_invitation(
            acme, email=email, role="viewer", days=7, standing=AS_OPERATOR, actor=user_actor(operator.pk)
        )
    LogEntry.objects.create(
        user=operator,
        content_type=ContentType.objects.get_for_model(User),
        object_id=str(acme.pk),
        object_repr="guest@example.test",
        change_message='[{"added": {"name": "e-mail address", "object": "guest@example.test"}}]',
        action_flag=2,
    )
    lines = [json.loads(line) for line in b"".join(export_person(operator, at=timezone.now())).splitlines()]
    assert "guest@example.test" not in json.dumps(lines)
    invited = [line["row"]["email"] for line in lines if line.get("table") == "tenants.Invitation"]
    assert invited == [None, operator.email]


def test_much_content_is_read_and_deleted_in_pages() -> None:
    acme = make_tenant()
    now = timezone.now()
    one = {"tenant_id": acme.pk, "key_id": acme.pk, "model": "m", "api": "chat", "streamed": False}
    one |= {"outcome": "success", "messages": "[]", "answer": "[]", "created_at": now, "expires_at": now}
    StoredConversation.objects.bulk_create(StoredConversation(**one) for _ in range(1201))
    lines = b"".join(export_tenant(acme, at=now)).splitlines()
    assert sum(b"gateway.StoredConversation" in line for line in lines) == 1201
    _suspended(acme)
    assert erase_tenant(acme.pk, actor=SYSTEM, now=_later())["gateway.StoredConversation"] == 1201


def test_how_long_to_wait_is_what_a_door_may_still_do() -> None:
    env = settings.GATEHOUSE
    assert replace(env, total_deadline_seconds=5.0).total_deadline_seconds == 5.0
    assert quiet_after() > timedelta(seconds=env.total_deadline_seconds + env.snapshot_stale_seconds)
