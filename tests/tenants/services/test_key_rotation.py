"""Another key in a key's place: the same rights and the same budget, and an end for the old one."""

from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

import pytest
from django.utils import timezone

from core.epochs import Section, current_epoch
from gateway.relay.rows import KEYS, LIMITS, KeyRow, LimitRow
from gateway.services.snapshot_source import DatabaseSnapshotSource
from tenants.actor import SYSTEM
from tenants.models import ApiKey, AuditEvent, Grant, GrantEffect, Limit, Metric, Tenant, UsageMinute, Window
from tenants.reads.keys import keys_of_lineages, keys_under_limits_of
from tenants.services import (
    Conflict,
    InvalidInput,
    change_api_key,
    create_api_key,
    grant_model,
    replace_api_key,
    revoke_api_key,
    rotate_api_key,
)
from tenants.services.spent_keys import delete_spent_key
from tests.factories import make_tenant

pytestmark = pytest.mark.django_db

DAY = timedelta(days=1)


@pytest.fixture
def tenant() -> Tenant:
    return make_tenant()


def a_key(tenant: Tenant, *, expires_at: datetime | None = None) -> ApiKey:
    return create_api_key(
        tenant,
        name="prod",
        actor=SYSTEM,
        scopes=["infer", "train"],
        allowed_models=["qwen*"],
        rpm_limit=7,
        keep_alive=False,
        store_conversations=True,
        expires_at=expires_at,
    ).key


def a_limit(key: ApiKey, *, metric: str = Metric.TOKENS) -> Limit:
    return Limit.objects.create(tenant=key.tenant, key=key, metric=metric, window=Window.DAY, amount=1000)


def rotated(key: ApiKey, *, overlap: timedelta = DAY) -> ApiKey:
    return rotate_api_key(key.pk, overlap=overlap, actor=SYSTEM).key


def test_the_new_key_may_what_the_old_one_might(tenant: Tenant) -> None:
    old = a_key(tenant)
    grant_model(tenant, model_pattern="qwen*", actor=SYSTEM, key=old, actions=["train"])
    grant_model(tenant, model_pattern="qwen-secret", actor=SYSTEM, key=old, effect=GrantEffect.DENY)
    new = rotated(old)
    for field in ("name", "scopes", "allowed_models", "rpm_limit", "keep_alive", "store_conversations", "created_by"):
        assert getattr(new, field) == getattr(old, field), field
    told = [
        {(grant.model_pattern, tuple(grant.actions), grant.effect) for grant in Grant.objects.filter(principal_id=key)}
        for key in (old.pk, new.pk)
    ]
    assert told[0] == told[1] != set()


def test_both_work_for_the_overlap_and_the_old_one_ends_by_itself(tenant: Tenant) -> None:
    old = a_key(tenant)
    before = timezone.now()
    new = rotated(old)
    old.refresh_from_db()
    assert old.replaced_by == new
    assert old.revoked_at is None
    assert old.expires_at is not None
    assert before + DAY <= old.expires_at <= timezone.now() + DAY
    assert new.expires_at is None
    actions = AuditEvent.objects.filter(subject_id=old.pk).order_by("id").values_list("action", flat=True)
    assert list(actions) == ["api_key.created", "api_key.rotated"]


def test_an_overlap_never_gives_the_old_key_more_time(tenant: Tenant) -> None:
    soon = timezone.now() + timedelta(hours=1)
    old = a_key(tenant, expires_at=soon)
    new = rotated(old)
    old.refresh_from_db()
    assert old.expires_at == soon
    assert new.expires_at is not None  # as long a life as the old one's was meant to be
    assert abs(new.expires_at - soon) < timedelta(minutes=1)
    with pytest.raises(Conflict):
        change_api_key(old.pk, actor=SYSTEM, expires_at=soon + DAY)
    with pytest.raises(Conflict):
        change_api_key(old.pk, actor=SYSTEM, expires_at=None)
    change_api_key(old.pk, actor=SYSTEM, expires_at=soon - timedelta(minutes=30))


def test_without_an_overlap_the_old_one_is_revoked(tenant: Tenant) -> None:
    old = a_key(tenant)
    rotated(old, overlap=timedelta(0))
    old.refresh_from_db()
    assert old.revoked_at is not None


def lineage_rows(*keys: ApiKey) -> tuple[set[UUID], set[UUID | None]]:
    """Under which ids a relay looks for the keys' limits, and finds them."""
    source = DatabaseSnapshotSource()
    rows = source.load_objects(KEYS, [key.pk for key in keys]).rows
    limits = source.load_section(LIMITS).rows
    looked = {row.lineage or row.id for row in rows if isinstance(row, KeyRow)}
    return looked, {row.key_id for row in limits if isinstance(row, LimitRow)}


@pytest.mark.django_db(transaction=True)
def test_all_keys_of_a_lineage_share_one_budget() -> None:
    """The same limit rows, under the same id: an overlap does not double it, and a rotation opens no new one."""
    first = a_key(make_tenant())
    limit = a_limit(first)
    second = rotated(first)
    third = rotated(second)
    first.refresh_from_db()
    assert lineage_rows(first, second, third) == ({first.pk}, {first.pk})
    limit.refresh_from_db()
    assert limit.key == third
    assert Limit.objects.count() == 1
    assert {key.limits_id for key in (first, second, third)} == {first.pk}
    assert keys_of_lineages([first.pk]) == {second.pk: first.pk, third.pk: first.pk}

    for key in (first, third):
        UsageMinute.objects.create(tenant_id=key.tenant_id, key_id=key.pk, model="m", minute=timezone.now(), requests=1)
    assert UsageMinute.objects.filter(keys_under_limits_of(third)).count() == 2


def test_limits_live_as_long_as_a_key_of_the_lineage(tenant: Tenant) -> None:
    first = a_key(tenant)
    limit = a_limit(first)
    second = rotated(first)
    revoke_api_key(second.pk, actor=SYSTEM)
    # Long enough ago that no budget rests on its use any more.
    ApiKey.objects.filter(pk=second.pk).update(revoked_at=timezone.now() - timedelta(days=40))
    epoch = current_epoch(Section.LIMITS)
    delete_spent_key(second.pk, actor=SYSTEM)  # while the old one works still
    limit.refresh_from_db()
    assert limit.key == first
    assert current_epoch(Section.LIMITS) > epoch
    revoke_api_key(first.pk, actor=SYSTEM)
    delete_spent_key(first.pk, actor=SYSTEM)
    assert not Limit.objects.exists()


def test_what_cannot_be_rotated(tenant: Tenant) -> None:
    for overlap in (timedelta(seconds=-1), timedelta(days=91)):
        with pytest.raises(InvalidInput, match="overlap_seconds"):
            rotated(a_key(tenant), overlap=overlap)
    old = a_key(tenant)
    rotated(old)
    with pytest.raises(Conflict, match="rotated before"):
        rotated(old)
    gone = a_key(tenant)
    revoke_api_key(gone.pk, actor=SYSTEM)
    with pytest.raises(Conflict, match="works no longer"):
        rotated(gone)


def test_replacing_keeps_the_lineage_too(tenant: Tenant) -> None:
    old = a_key(tenant)
    limit = a_limit(old)
    new = replace_api_key(old.pk, actor=SYSTEM).key
    old.refresh_from_db()
    limit.refresh_from_db()
    assert (old.replaced_by, new.lineage, limit.key) == (new, old.pk, new)
    assert old.revoked_at is not None


def test_a_change_is_audited_and_published_once(tenant: Tenant) -> None:
    key = a_key(tenant)
    epoch = current_epoch(Section.KEYS)
    changed = change_api_key(key.pk, actor=SYSTEM, name=" new ", scopes=["infer"], rpm_limit=None)
    assert (changed.name, changed.scopes, changed.rpm_limit) == ("new", ["infer"], None)
    change_api_key(key.pk, actor=SYSTEM, name="new")
    assert current_epoch(Section.KEYS) == epoch + 1
    event = AuditEvent.objects.get(action="api_key.changed")
    assert event.before == {"name": "***", "scopes": ["infer", "train"], "rpm_limit": 7}
    mistakes: list[dict[str, Any]] = [
        {"name": ""}, {"scopes": []}, {"scopes": ["fly"]}, {"rpm_limit": 0}, {"digest": "x"},
    ]  # fmt: skip
    for wrong in mistakes:
        with pytest.raises(InvalidInput):
            change_api_key(key.pk, actor=SYSTEM, **wrong)
    revoke_api_key(key.pk, actor=SYSTEM)
    with pytest.raises(Conflict):
        change_api_key(key.pk, actor=SYSTEM, name="again")


def test_a_key_that_expired_can_be_renamed_without_a_new_expiry(tenant: Tenant) -> None:
    key = a_key(tenant)
    ended = timezone.now() - DAY
    ApiKey.objects.filter(pk=key.pk).update(expires_at=ended)
    assert change_api_key(key.pk, actor=SYSTEM, name="old", expires_at=ended).name == "old"


def test_a_compromised_key_is_revoked_marked_and_audited(tenant: Tenant) -> None:
    key = a_key(tenant)
    made = revoke_api_key(key.pk, actor=SYSTEM, compromised=True, known_good_at=timezone.now())
    assert made.revoked_at == made.compromised_at
    assert AuditEvent.objects.filter(subject_id=key.pk).latest("id").action == "api_key.compromised"
    epoch = current_epoch(Section.KEYS)
    revoke_api_key(key.pk, actor=SYSTEM, compromised=True)
    assert current_epoch(Section.KEYS) == epoch
    other = a_key(tenant)
    revoked = revoke_api_key(other.pk, actor=SYSTEM).revoked_at
    late = revoke_api_key(other.pk, actor=SYSTEM, compromised=True)
    assert (late.revoked_at, late.compromised_at is not None) == (revoked, True)
    for wrong in (timezone.now() + DAY, timezone.now() - 365 * DAY):
        with pytest.raises(InvalidInput, match="known_good_at"):
            revoke_api_key(a_key(tenant).pk, actor=SYSTEM, compromised=True, known_good_at=wrong)
