"""The backoffice: superusers only, and what they write by hand is audited, published and kept readable."""

import json
from uuid import UUID, uuid4

import pytest
from django.contrib.auth.models import Permission
from django.test import Client
from django.utils import timezone
from pytest_django import Settings

from core.epochs import Section, current_epoch, read_changes
from gpupool.models import Model, VersionState
from gpupool.services.aliases import create_alias
from tenants.actor import SYSTEM
from tenants.breakglass import NewestRows
from tenants.models import AuditEvent, Grant, PlatformRole, PrincipalKind, Tenant, TenantRole, UsageRecord, User
from tenants.services.ledger import record_usage
from tenants.services.limits import create_limit
from tests.factories import (
    PASSWORD,
    make_instance,
    make_key,
    make_member,
    make_model,
    make_tenant,
    make_user,
    make_version,
)
from tests.tenants.usage_rows import usage_row

pytestmark = pytest.mark.django_db


@pytest.fixture(autouse=True)
def _cheap_passwords(settings: Settings) -> None:
    settings.PASSWORD_HASHERS = ["django.contrib.auth.hashers.MD5PasswordHasher"]


@pytest.fixture
def root(client: Client) -> Client:
    client.force_login(make_user(platform_role=PlatformRole.SUPERUSER))
    return client


def _changed(section: Section, *, after: int) -> set[UUID]:
    return {change.object_id for change in read_changes(section, after=after, limit=100) or ()}


def test_staff_without_the_superusers_role_see_and_change_nothing(client: Client) -> None:
    user = make_user(platform_role=PlatformRole.OPERATOR)
    User.objects.filter(pk=user.pk).update(is_staff=True)
    user.user_permissions.set(Permission.objects.filter(content_type__app_label="tenants"))
    client.force_login(user)
    key = make_key(make_tenant()).key
    for path in ("tenants/apikey/", f"tenants/apikey/{key.pk}/change/", "tenants/user/add/", "tenants/auditevent/"):
        assert client.get(f"/backoffice/{path}").status_code == 403, path


def test_a_person_made_by_hand_can_log_in_and_has_the_rights_of_their_role(root: Client) -> None:
    form = {
        "email": "Lin@Example.test",
        "password1": PASSWORD,
        "password2": PASSWORD,
        "usable_password": "true",
        "platform_role": "superuser",
    }
    assert root.post("/backoffice/tenants/user/add/", form).status_code == 302
    made = User.objects.get(email="lin@example.test")
    assert (made.is_staff, made.is_superuser) == (True, True)
    assert Client().login(username="LIN@example.test", password=PASSWORD)
    (theirs := Client()).force_login(made)
    assert theirs.get("/console/overview/").status_code == 200
    change = {"email": made.email, "platform_role": "operator", "is_active": "on"}
    assert root.post(f"/backoffice/tenants/user/{made.pk}/change/", change).status_code == 302
    made.refresh_from_db()
    assert (made.platform_role, made.is_staff, made.is_superuser) == ("operator", False, False)
    assert theirs.get("/console/overview/").status_code == 302


def test_a_password_set_by_hand_is_audited_without_it(root: Client) -> None:
    user = make_user()
    form = {"password1": "another-long-secret", "password2": "another-long-secret", "usable_password": "true"}
    form["set-password"] = "1"
    assert root.post(f"/backoffice/tenants/user/{user.pk}/password/", form).status_code == 302
    event = AuditEvent.objects.get(action="backoffice.user.password_changed")
    assert event.subject_id == user.pk
    assert "another-long-secret" not in str(event.after)
    assert Client().login(username=user.email, password="another-long-secret")


@pytest.mark.parametrize(
    ("field", "value"),
    [("scopes", "5"), ("scopes", '"infer"'), ("scopes", '["fly"]'), ("allowed_models", "[1]"), ("rpm_limit", "0")],
)
def test_a_key_that_relays_could_not_read_is_refused(root: Client, field: str, value: str) -> None:
    key = make_key(make_tenant()).key
    before = current_epoch(Section.KEYS)
    form = {"name": key.name, "scopes": '["infer"]', "allowed_models": "[]", "rpm_limit": ""}
    refused = root.post(f"/backoffice/tenants/apikey/{key.pk}/change/", form | {field: value})
    assert refused.status_code == 200
    assert list(refused.context["adminform"].form.errors) == [field]
    assert current_epoch(Section.KEYS) == before
    assert root.post(f"/backoffice/tenants/apikey/{key.pk}/change/", form | {"rpm_limit": "5"}).status_code == 302
    assert _changed(Section.KEYS, after=before) == {key.pk}
    assert AuditEvent.objects.get(action="backoffice.apikey.changed").tenant_id == key.tenant_id


def test_a_grant_stays_with_its_tenant(root: Client) -> None:
    acme, other = make_tenant(), make_tenant()
    before = current_epoch(Section.GRANTS)
    form = {
        "tenant": str(acme.pk),
        "principal_kind": PrincipalKind.TENANT.value,
        "principal_id": str(acme.pk),
        "model_pattern": "*",
        "actions": json.dumps(["infer"]),
        "effect": "allow",
    }
    assert root.post("/backoffice/tenants/grant/add/", form).status_code == 302
    grant = Grant.objects.get()
    assert _changed(Section.GRANTS, after=before) == {acme.pk}
    moved = form | {"tenant": str(other.pk), "model_pattern": "m-*"}
    assert root.post(f"/backoffice/tenants/grant/{grant.pk}/change/", moved).status_code == 302
    grant.refresh_from_db()
    assert (grant.tenant_id, grant.model_pattern) == (acme.pk, "m-*")


def test_retiring_a_version_by_hand_reaches_the_door(root: Client) -> None:
    version = make_version(make_model())
    instance = make_instance(version, port=9000)
    epochs = {section: current_epoch(section) for section in (Section.MODELS, Section.ENDPOINTS, Section.POOL)}
    form = {
        "name": version.name,
        "engine": version.engine,
        "served_name": version.served_name,
        "engine_args": "{}",
        "memory_bytes": "0",
        "device_kind": "gpu",
        "replicas": "0",
        "state": VersionState.RETIRED.value,
    }
    assert root.post(f"/backoffice/gpupool/modelversion/{version.pk}/change/", form).status_code == 302
    assert _changed(Section.MODELS, after=epochs[Section.MODELS]) == {version.model_id}
    assert _changed(Section.ENDPOINTS, after=epochs[Section.ENDPOINTS]) == {instance.pk}
    assert _changed(Section.POOL, after=epochs[Section.POOL]) == {version.pk}


def test_a_model_is_not_called_by_hand_as_another_one_is_too(root: Client) -> None:
    create_alias(make_model("first").pk, "latest", actor=SYSTEM)
    refused = root.post("/backoffice/gpupool/model/add/", {"name": "latest", "description": "", "tenant_id": ""})
    assert "is another name of a model already" in refused.content.decode()
    assert not Model.objects.filter(name="latest").exists()


def test_tenants_are_suspended_and_not_deleted(root: Client) -> None:
    acme = make_tenant()
    make_member(acme, role=TenantRole.OWNER)
    assert root.post(f"/backoffice/tenants/tenant/{acme.pk}/delete/", {"post": "yes"}).status_code == 403


@pytest.mark.parametrize("field", ["response_retention_days", "conversation_retention_days"])
@pytest.mark.parametrize(("days", "status"), [("3650", 302), ("3651", 200), ("-1", 200)])
def test_nothing_is_kept_longer_than_the_service_allows(root: Client, field: str, days: str, status: int) -> None:
    acme = make_tenant()
    form = {
        "slug": acme.slug,
        "name": acme.name,
        "sla_tier": acme.sla_tier,
        "time_zone": "UTC",
        "state": acme.state,
        "response_retention_days": "30",
        "conversation_retention_days": "30",
        field: days,
    }
    assert root.post(f"/backoffice/tenants/tenant/{acme.pk}/change/", form).status_code == status
    acme.refresh_from_db()
    assert getattr(acme, field) == (int(days) if status == 302 else 30)


def test_a_tenant_that_is_being_erased_is_not_resumed_by_hand(root: Client) -> None:
    acme = make_tenant()
    Tenant.objects.filter(pk=acme.pk).update(state="suspended", erasing_at=timezone.now())
    form = {"slug": acme.slug, "name": acme.name, "sla_tier": acme.sla_tier, "time_zone": "UTC", "state": "active"}
    form |= {"response_retention_days": "30", "conversation_retention_days": "30"}
    answer = root.post(f"/backoffice/tenants/tenant/{acme.pk}/change/", form)
    assert "being erased" in answer.content.decode()


@pytest.mark.parametrize("path", ["auth/group/", "authtoken/tokenproxy/"])
def test_nothing_else_is_in_the_backoffice(root: Client, path: str) -> None:
    assert root.get(f"/backoffice/{path}").status_code == 404


def test_pages_of_the_ledger_do_not_count_it(root: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    process = uuid4()
    record_usage([usage_row(process, number) for number in range(1, 6)])
    monkeypatch.setattr(NewestRows, "MOST", 3)
    page = root.get("/backoffice/tenants/usagerecord/").context["cl"]
    assert page.result_count == 3
    newest = UsageRecord.objects.order_by("-id").values_list("pk", flat=True)
    assert page.queryset.first().pk == newest[0]


def test_every_page_of_the_backoffice_opens(root: Client) -> None:
    instance = make_instance(make_version(make_model()), port=9000)
    make_key(make_tenant())
    index = root.get("/backoffice/")
    pages = [model["admin_url"] for app in index.context["app_list"] for model in app["models"]]
    assert len(pages) > 10
    for page in [*pages, f"/backoffice/gpupool/instance/{instance.pk}/change/"]:
        assert root.get(page).status_code == 200, page
        assert root.get(f"{page}?q=%00&p=abc").status_code in (200, 302), page


def test_a_zone_changed_by_hand_reaches_the_tenants_limits_and_its_parent_stays(root: Client) -> None:
    tenant, other = make_tenant(), make_tenant()
    limit = create_limit(metric="money", window="month", amount=5, tenant=tenant, actor=SYSTEM)
    before = current_epoch(Section.LIMITS)
    form = {
        "slug": tenant.slug, "name": "New", "parent": str(other.pk), "sla_tier": "gold", "time_zone": "Asia/Tokyo",
        "state": "active", "response_retention_days": "30", "conversation_retention_days": "30",
    }  # fmt: skip
    assert root.post(f"/backoffice/tenants/tenant/{tenant.pk}/change/", form).status_code == 302
    tenant.refresh_from_db()
    assert (tenant.time_zone, tenant.parent_id) == ("Asia/Tokyo", None)
    assert _changed(Section.LIMITS, after=before) == {limit.pk}


@pytest.mark.parametrize("kind", ["limit", "price", "adjustment"])
def test_limits_and_books_are_only_looked_at(root: Client, kind: str) -> None:
    assert root.get(f"/backoffice/tenants/{kind}/").status_code == 200
    assert root.get(f"/backoffice/tenants/{kind}/add/").status_code == 403
