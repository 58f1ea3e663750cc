"""The console's pages of people: links, roles, tokens and mappings of claims."""

import pytest
from django.test import Client

from tenants import services
from tenants.actor import user_actor
from tenants.models import (
    AccessToken,
    AuditEvent,
    RoleMapping,
    User,
)
from tests.dashboard.people import person
from tests.dashboard.tenancy_rows import text_of

pytestmark = pytest.mark.django_db


def test_a_person_is_made_and_the_link_is_shown_once(root: Client) -> None:
    made = root.post("/console/people/new/", {"email": "new@example.com", "platform_role": "operator"})
    assert "/login/link/" in text_of(made)
    new = User.objects.get(email="new@example.com")
    assert new.platform_role == "operator"
    assert "/login/link/" not in text_of(root.get(f"/console/people/{new.pk}/"))


def test_roles_change_people_are_deactivated_and_tokens_revoked(root: Client) -> None:
    olga = person("olga", platform_role="operator")
    token = services.create_access_token(olga, name="deploys", actor=user_actor(olga.pk)).token
    root.post(f"/console/people/{olga.pk}/role/", {"platform_role": "read_only"})
    assert User.objects.get(pk=olga.pk).platform_role == "read_only"
    root.post(f"/console/people/{olga.pk}/tokens/{token.pk}/")
    assert not AccessToken.objects.exists()
    root.post(f"/console/people/{olga.pk}/activity/off/")
    assert not User.objects.get(pk=olga.pk).is_active
    assert [row.email for row in root.get("/console/people/?state=inactive").context["rows"]] == ["olga@example.com"]
    root.post(f"/console/people/{olga.pk}/activity/on/")
    root.post(f"/console/people/{olga.pk}/second-factor/")
    assert AuditEvent.objects.filter(action="second_factor.reset").exists()


def test_the_last_superuser_stays_one(root: Client) -> None:
    own = User.objects.get(email="root@example.com")
    refused = root.post(f"/console/people/{own.pk}/role/", {"platform_role": ""})
    assert refused.status_code == 422
    assert "last superuser" in text_of(refused)
    root.post(f"/console/people/{own.pk}/activity/off/")
    assert User.objects.get(pk=own.pk).is_active


def test_roles_are_mapped_from_claims(root: Client) -> None:
    form = {"claim": "groups", "value": "gpu-admins", "platform_role": "operator"}
    assert root.post("/console/people/mappings/new/", form).status_code == 302
    mapping = RoleMapping.objects.get()
    assert root.post("/console/people/mappings/new/", form).status_code == 422
    root.post(f"/console/people/mappings/{mapping.pk}/")
    assert not RoleMapping.objects.exists()
