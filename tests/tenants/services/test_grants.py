"""Grants of keys and subjects, denials, and grants that end by themselves."""

from datetime import timedelta
from uuid import uuid4

import pytest
from django.utils import timezone

from core.epochs import Section, read_changes
from tenants.actor import SYSTEM
from tenants.models import AuditEvent, Grant, GrantEffect
from tenants.principal import subject_uuid
from tenants.services import InvalidInput, grant_model, remove_expired_grants
from tests.factories import make_key, make_tenant

pytestmark = pytest.mark.django_db


def test_a_subject_may_have_grants_in_several_tenants() -> None:
    subject = subject_uuid("https://issuer.example", "robot")
    for tenant in (make_tenant(), make_tenant()):
        grant = grant_model(tenant, model_pattern="*", actor=SYSTEM, subject_id=subject)
        assert (grant.principal_kind, grant.principal_id) == ("subject", subject)
    assert Grant.objects.filter(principal_id=subject).count() == 2


def test_a_denial_stands_beside_the_permission() -> None:
    tenant = make_tenant()
    grant_model(tenant, model_pattern="*", actor=SYSTEM)
    grant_model(tenant, model_pattern="*", actor=SYSTEM, effect=GrantEffect.DENY, actions=["train"])
    assert Grant.objects.filter(tenant=tenant).count() == 2


def test_who_a_grant_cannot_be_for() -> None:
    tenant, stranger = make_tenant(), make_key(make_tenant()).key
    with pytest.raises(InvalidInput, match="key"):
        grant_model(tenant, model_pattern="*", actor=SYSTEM, key=stranger)
    own = make_key(tenant).key
    with pytest.raises(InvalidInput, match="subject_id"):
        grant_model(tenant, model_pattern="*", actor=SYSTEM, key=own, subject_id=uuid4())
    with pytest.raises(InvalidInput, match="effect"):
        grant_model(tenant, model_pattern="*", actor=SYSTEM, effect="maybe")
    assert not Grant.objects.exists()


def test_a_grant_that_is_over_is_removed_audited_and_published() -> None:
    tenant = make_tenant()
    now = timezone.now()
    over = grant_model(tenant, model_pattern="trial", actor=SYSTEM, expires_at=now + timedelta(hours=1))
    stays = grant_model(tenant, model_pattern="own", actor=SYSTEM)
    assert remove_expired_grants(now) == 0
    later = now + timedelta(hours=1)
    assert remove_expired_grants(later) == 1
    assert remove_expired_grants(later) == 0
    assert list(Grant.objects.filter(tenant=tenant)) == [stays]
    event = AuditEvent.objects.get(action="grant.expired")
    assert (event.subject_id, event.actor_kind, event.before["model"]) == (over.pk, "system", "trial")
    changes = read_changes(Section.GRANTS, after=0, limit=1000)
    assert changes is not None
    assert changes[-1].object_id == tenant.pk
