"""Keys: the secret leaves once, every write is audited and published."""

from datetime import timedelta
from typing import Any

import pytest
from django.db import DatabaseError, connection, transaction
from django.utils import timezone

from core.epochs import Section, current_epoch, read_changes
from tenants.actor import SYSTEM
from tenants.models import ApiKey, AuditEvent, Tenant
from tenants.services import (
    InvalidInput,
    create_api_key,
    create_tenant,
    digest_secret,
    replace_api_key,
    revoke_api_key,
)

pytestmark = pytest.mark.django_db


@pytest.fixture
def tenant() -> Tenant:
    return create_tenant(slug="acme", name="Acme", actor=SYSTEM)


def test_the_secret_is_returned_and_kept_nowhere(tenant: Tenant) -> None:
    made = create_api_key(tenant, name="prod", actor=SYSTEM)
    assert made.secret.startswith("sk-gh-")
    assert made.key.digest == digest_secret(made.secret)
    assert made.key.masked == f"sk-gh-…{made.secret[-4:]}"
    with connection.cursor() as cursor:
        for table in ("tenants_apikey", "tenants_auditevent", "core_change"):
            cursor.execute(f"SELECT count(*) FROM {table} AS t WHERE t::text LIKE %s", [f"%{made.secret}%"])
            assert cursor.fetchone() == (0,)


def test_two_keys_never_share_a_secret(tenant: Tenant) -> None:
    secrets = {create_api_key(tenant, name="n", actor=SYSTEM).secret for _ in range(20)}
    assert len(secrets) == 20


def test_making_and_revoking_is_published_and_audited(tenant: Tenant) -> None:
    before = current_epoch(Section.KEYS)
    key = create_api_key(tenant, name="prod", actor=SYSTEM).key
    revoke_api_key(key.pk, actor=SYSTEM)
    changes = read_changes(Section.KEYS, after=before, limit=10)
    assert changes is not None
    assert [change.object_id for change in changes] == [key.pk, key.pk]
    actions = AuditEvent.objects.filter(subject_id=key.pk).order_by("id").values_list("action", flat=True)
    assert list(actions) == ["api_key.created", "api_key.revoked"]


def test_revoking_twice_changes_nothing(tenant: Tenant) -> None:
    key = create_api_key(tenant, name="prod", actor=SYSTEM).key
    first = revoke_api_key(key.pk, actor=SYSTEM).revoked_at
    epoch = current_epoch(Section.KEYS)
    assert revoke_api_key(key.pk, actor=SYSTEM).revoked_at == first
    assert current_epoch(Section.KEYS) == epoch


def test_replacing_keeps_what_the_key_may_do(tenant: Tenant) -> None:
    old = create_api_key(tenant, name="prod", actor=SYSTEM, allowed_models=["qwen*"], rpm_limit=60, keep_alive=False)
    new = replace_api_key(old.key.pk, actor=SYSTEM)
    assert (new.key.name, new.key.allowed_models, new.key.rpm_limit) == ("prod", ["qwen*"], 60)
    assert not new.key.keep_alive
    assert new.secret != old.secret
    assert ApiKey.objects.get(pk=old.key.pk).revoked_at is not None


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"name": "  "}, "name"),
        ({"name": "x" * 81}, "name"),
        ({"scopes": ["fly"]}, "scopes"),
        ({"scopes": []}, "scopes"),
        ({"rpm_limit": 0}, "rpm_limit"),
        ({"rpm_limit": -5}, "rpm_limit"),
        ({"rpm_limit": 10**9}, "rpm_limit"),
        ({"expires_at": timezone.now() - timedelta(seconds=1)}, "expires_at"),
        ({"allowed_models": [""]}, "allowed_models"),
    ],
)
def test_a_wrong_value_names_its_field_and_writes_nothing(tenant: Tenant, change: dict[str, Any], field: str) -> None:
    values: dict[str, Any] = {"name": "n", "actor": SYSTEM} | change
    with pytest.raises(InvalidInput) as refused:
        create_api_key(tenant, **values)
    assert refused.value.field == field
    assert not ApiKey.objects.exists()


@pytest.mark.parametrize("statement", ["UPDATE tenants_auditevent SET action = ''", "DELETE FROM tenants_auditevent"])
def test_the_audit_log_refuses_changes_to_what_it_holds(tenant: Tenant, statement: str) -> None:
    with pytest.raises(DatabaseError, match="append-only"), transaction.atomic(), connection.cursor() as cursor:
        cursor.execute(statement)
    assert AuditEvent.objects.exists()
