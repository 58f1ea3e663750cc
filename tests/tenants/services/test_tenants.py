"""Tenants, members and grants: refused when wrong, audited and published when right."""

import pytest

from core.epochs import Section, current_epoch
from tenants.actor import SYSTEM
from tenants.models import AuditEvent, Grant, Membership, PlatformRole, TenantRole, TenantState, User
from tenants.selectors import get_role, get_tenant_for, list_tenants_for
from tenants.services import (
    InvalidInput,
    add_member,
    create_api_key,
    create_tenant,
    create_user,
    grant_model,
    remove_grant,
    set_tenant_state,
)
from tenants.services.departments import change_tenant

pytestmark = pytest.mark.django_db


@pytest.mark.parametrize(
    ("slug", "zone", "field"), [("no spaces", "UTC", "slug"), ("", "UTC", "slug"), ("acme", "Mars/Base", "time_zone")]
)
def test_a_malformed_tenant_is_refused(slug: str, zone: str, field: str) -> None:
    with pytest.raises(InvalidInput) as refused:
        create_tenant(slug=slug, name="Acme", actor=SYSTEM, time_zone=zone)
    assert refused.value.field == field


def test_a_taken_slug_is_refused() -> None:
    create_tenant(slug="acme", name="Acme", actor=SYSTEM)
    with pytest.raises(InvalidInput) as refused:
        create_tenant(slug="acme", name="Other", actor=SYSTEM)
    assert refused.value.field == "slug"


def test_a_slug_taken_at_the_same_moment_is_refused_too(monkeypatch: pytest.MonkeyPatch) -> None:
    create_tenant(slug="acme", name="Acme", actor=SYSTEM)
    monkeypatch.setattr("tenants.services.tenants._clean", lambda instance: None)  # looked, and found it free
    with pytest.raises(InvalidInput) as refused:
        create_tenant(slug="acme", name="Other", actor=SYSTEM)
    assert refused.value.field == "slug"


def test_suspending_is_published_once() -> None:
    tenant = create_tenant(slug="acme", name="Acme", actor=SYSTEM)
    before = current_epoch(Section.GRANTS)
    set_tenant_state(tenant.pk, TenantState.SUSPENDED, actor=SYSTEM)
    set_tenant_state(tenant.pk, TenantState.SUSPENDED, actor=SYSTEM)
    assert current_epoch(Section.GRANTS) == before + 1


def test_an_e_mail_address_is_one_person_whatever_its_case() -> None:
    create_user(email="Lin@example.test", password="a long password", actor=SYSTEM)
    with pytest.raises(InvalidInput):
        create_user(email="lin@EXAMPLE.test", password="a long password", actor=SYSTEM)
    assert User.objects.get_by_natural_key("LIN@example.test").email == "lin@example.test"


def test_only_a_platform_superuser_gets_into_the_backoffice() -> None:
    operator = create_user(
        email="op@example.test", password="x" * 12, actor=SYSTEM, platform_role=PlatformRole.OPERATOR
    )
    assert not operator.is_staff
    assert not operator.is_superuser
    assert operator.may_operate


def test_a_member_has_one_role_that_can_change() -> None:
    tenant = create_tenant(slug="acme", name="Acme", actor=SYSTEM)
    user = create_user(email="lin@example.test", password="x" * 12, actor=SYSTEM)
    add_member(tenant, user, role=TenantRole.VIEWER, actor=SYSTEM)
    add_member(tenant, user, role=TenantRole.OWNER, actor=SYSTEM)
    add_member(tenant, user, role=TenantRole.OWNER, actor=SYSTEM)
    assert get_role(user, tenant) == TenantRole.OWNER
    assert Membership.objects.count() == 1
    assert AuditEvent.objects.filter(action="membership.set").count() == 2


def test_outsiders_cannot_tell_a_hidden_tenant_from_none() -> None:
    tenant = create_tenant(slug="acme", name="Acme", actor=SYSTEM)
    user = create_user(email="lin@example.test", password="x" * 12, actor=SYSTEM)
    for slug in ("acme", "nothing"):
        with pytest.raises(type(tenant).DoesNotExist):
            get_tenant_for(user, slug)
    assert list(list_tenants_for(user)) == []
    add_member(tenant, user, role=TenantRole.VIEWER, actor=SYSTEM)
    assert get_tenant_for(user, "acme") == tenant


def test_granting_again_replaces_and_removing_publishes() -> None:
    tenant = create_tenant(slug="acme", name="Acme", actor=SYSTEM)
    grant_model(tenant, model_pattern="qwen*", actor=SYSTEM)
    grant = grant_model(tenant, model_pattern="qwen*", actor=SYSTEM, actions=["embed", "infer"])
    assert Grant.objects.get().actions == ["embed", "infer"]
    before = current_epoch(Section.GRANTS)
    remove_grant(grant.pk, actor=SYSTEM)
    assert current_epoch(Section.GRANTS) == before + 1
    assert not Grant.objects.exists()


def test_a_grant_to_one_key_names_the_key() -> None:
    tenant = create_tenant(slug="acme", name="Acme", actor=SYSTEM)
    key = create_api_key(tenant, name="k", actor=SYSTEM).key
    grant = grant_model(tenant, model_pattern="*", actor=SYSTEM, key=key)
    assert (grant.principal_kind, grant.principal_id) == ("key", key.pk)


@pytest.mark.parametrize(
    ("pattern", "actions", "field"), [("", ["infer"], "model_pattern"), ("*", ["fly"], "actions"), ("*", [], "actions")]
)
def test_a_wrong_grant_is_refused(pattern: str, actions: list[str], field: str) -> None:
    tenant = create_tenant(slug="acme", name="Acme", actor=SYSTEM)
    with pytest.raises(InvalidInput) as refused:
        grant_model(tenant, model_pattern=pattern, actions=actions, actor=SYSTEM)
    assert refused.value.field == field


def test_retention_is_audited_and_published_once() -> None:
    tenant = create_tenant(slug="acme", name="Acme", actor=SYSTEM)
    before = current_epoch(Section.GRANTS)
    assert change_tenant(tenant.pk, response_retention_days=7, actor=SYSTEM).response_retention_days == 7
    change_tenant(tenant.pk, response_retention_days=7, actor=SYSTEM)
    assert current_epoch(Section.GRANTS) == before + 1
    audit = AuditEvent.objects.get(action="tenant.changed")
    field = "response_retention_days"
    assert (audit.tenant_id, audit.before, audit.after) == (tenant.pk, {field: 30}, {field: 7})


@pytest.mark.parametrize("days", [-1, 3651])
def test_a_retention_out_of_bounds_is_refused(days: int) -> None:
    with pytest.raises(InvalidInput) as refused:
        change_tenant(
            create_tenant(slug="acme", name="Acme", actor=SYSTEM).pk, response_retention_days=days, actor=SYSTEM
        )
    assert refused.value.field == "response_retention_days"
