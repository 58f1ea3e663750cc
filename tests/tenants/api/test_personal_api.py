"""Exports and erasure by the control API: whose they are, and what each is told."""

import json
from dataclasses import replace
from io import BytesIO, TextIOWrapper
from pathlib import Path
from typing import Any

import pytest
from django.core.management import CommandError, call_command
from pytest_django import Settings
from rest_framework.test import APIClient

from tenants import services
from tenants.actor import SYSTEM
from tenants.models import AuditEvent, PlatformRole, Tenant, TenantRole, TenantState, User
from tests.factories import make_member, make_tenant, make_user

pytestmark = pytest.mark.django_db


@pytest.fixture
def acme() -> Tenant:
    return make_tenant("acme")


def client_of(user: User) -> APIClient:
    client = APIClient()
    client.force_authenticate(user)
    return client


def lines_of(answer: Any) -> list[Any]:
    return [json.loads(line) for line in b"".join(answer).splitlines()]


def test_owners_and_superusers_export_and_nobody_else(acme: Tenant) -> None:
    owner = make_member(acme, role=TenantRole.OWNER)
    superuser = make_user(platform_role=PlatformRole.SUPERUSER)
    for person in (owner, superuser):
        answer = client_of(person).get("/api/tenants/acme/export/")
        assert (answer.status_code, answer["content-type"]) == (200, "application/x-ndjson")
        assert answer["content-disposition"] == 'attachment; filename="acme.jsonl"'
        lines = lines_of(answer)
        assert lines[-1] == {"rows": len(lines) - 2}
    refused = [make_member(acme, role=TenantRole.ADMIN), make_user(platform_role=PlatformRole.OPERATOR)]
    assert [client_of(person).get("/api/tenants/acme/export/").status_code for person in refused] == [403, 403]
    assert client_of(make_user()).get("/api/tenants/acme/export/").status_code == 404
    assert AuditEvent.objects.filter(action="tenant.exported").count() == 2


def test_people_export_themselves_and_superusers_everybody(acme: Tenant) -> None:
    member = make_member(acme)
    superuser = make_user(platform_role=PlatformRole.SUPERUSER)
    for asker in (member, superuser):
        lines = lines_of(client_of(asker).get(f"/api/people/{member.pk}/export/"))
        assert {line["row"]["email"] for line in lines[1:-1] if line["table"] == "tenants.User"} == {member.email}
    owner = make_member(acme, role=TenantRole.OWNER)
    assert client_of(owner).get(f"/api/people/{member.pk}/export/").status_code == 403
    assert client_of(superuser).get(f"/api/people/{acme.pk}/export/").status_code == 404


def test_a_tenant_is_erased_by_superusers_once_and_when_it_is_quiet(acme: Tenant, settings: Settings) -> None:
    superuser = make_user(platform_role=PlatformRole.SUPERUSER)
    client = client_of(superuser)
    for person, status in (
        (make_member(acme, role=TenantRole.OWNER), 403),
        (make_user(platform_role=PlatformRole.OPERATOR), 403),
        (make_user(), 404),
    ):
        assert client_of(person).delete("/api/tenants/acme/").status_code == status
    assert client.delete("/api/tenants/acme/").json()["detail"] == "The tenant is not suspended: suspend it first."
    services.set_tenant_state(acme.pk, TenantState.SUSPENDED, actor=SYSTEM)
    answer = client.delete("/api/tenants/acme/")
    assert answer.status_code == 409
    assert "may run until" in answer.json()["detail"]
    settings.GATEHOUSE = replace(settings.GATEHOUSE, snapshot_stale_seconds=-1e4)  # as if that long had passed
    assert client.delete("/api/tenants/acme/").status_code == 204
    assert client.delete("/api/tenants/acme/").status_code == 404


def test_a_person_is_erased_by_superusers_and_no_last_owner(acme: Tenant) -> None:
    client = client_of(make_user(platform_role=PlatformRole.SUPERUSER))
    owner, member = make_member(acme, role=TenantRole.OWNER), make_member(acme)
    assert client_of(owner).delete(f"/api/people/{member.pk}/").status_code == 403
    assert client.delete(f"/api/people/{owner.pk}/").status_code == 409
    assert client.delete(f"/api/people/{member.pk}/").status_code == 204
    assert client.delete(f"/api/people/{member.pk}/").status_code == 404
    assert AuditEvent.objects.get(action="user.erased").subject_id == member.pk


@pytest.mark.shows("R5")
def test_retention_is_the_tenants_own_to_set(acme: Tenant) -> None:
    client = client_of(make_member(acme, role=TenantRole.ADMIN))
    told = client.get("/api/tenants/acme/").json()
    assert (told["response_retention_days"], told["conversation_retention_days"]) == (30, 30)
    change: dict[str, int | str] = {"response_retention_days": 7, "conversation_retention_days": 0}
    told = client.patch("/api/tenants/acme/", change, format="json", headers={"if-match": "*"}).json()
    assert (told["response_retention_days"], told["conversation_retention_days"]) == (7, 0)
    for days in (-1, 3651, "many"):
        change = {"conversation_retention_days": days}
        answer = client.patch("/api/tenants/acme/", change, format="json", headers={"if-match": "*"})
        assert (answer.status_code, [*answer.json()["errors"]]) == (400, ["conversation_retention_days"])
    assert Tenant.objects.get(pk=acme.pk).conversation_retention_days == 0


def test_the_command_writes_a_new_file(acme: Tenant, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    member = make_member(acme)
    call_command("export", "--tenant", "acme", "--output", str(tmp_path / "acme.jsonl"))
    assert json.loads((tmp_path / "acme.jsonl").read_bytes().splitlines()[0])["tenant"] == str(acme.pk)
    with pytest.raises(CommandError, match="cannot be written: File exists"):
        call_command("export", "--tenant", "acme", "--output", str(tmp_path / "acme.jsonl"))
    with pytest.raises(CommandError, match="no such tenant"):
        call_command("export", "--tenant", "nobody")
    written = BytesIO()
    monkeypatch.setattr("sys.stdout", TextIOWrapper(written))
    call_command("export", "--person", member.email.upper())
    assert member.email.encode() in written.getvalue()
