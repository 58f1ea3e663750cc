"""Configuration is brought back to how it was: in one call, told row by row; revocations are never undone."""

import time
from datetime import timedelta
from uuid import UUID

import pytest
from django.db import connection
from django.utils import timezone

from core.epochs import Section, current_epoch
from core.ids import uuid7
from tenants.actor import SYSTEM
from tenants.models import ApiKey, AuditEvent, ConfigurationChange, Grant, Limit, Price, Tenant, TenantState
from tenants.services import (
    InvalidInput,
    change_api_key,
    change_token_issuer,
    create_tenant,
    create_token_issuer,
    grant_model,
    remove_grant,
    revoke_api_key,
    set_tenant_state,
)
from tenants.services.configuration import Rollback, erase_history, prune_history, roll_back_configuration
from tenants.services.departments import change_tenant, set_parent
from tenants.services.limits import change_limit, create_limit, delete_limit
from tests.factories import make_key, make_tenant

pytestmark = pytest.mark.django_db(transaction=True)  # transactions are what a rollback goes by


@pytest.fixture
def acme() -> Tenant:
    return make_tenant("acme")


def _epoch() -> int:
    return ConfigurationChange.objects.latest("id").pk


def _back(to: int) -> Rollback:
    return roll_back_configuration(to=to, actor=SYSTEM)


def _limit(tenant: Tenant, amount: int = 10) -> Limit:
    return create_limit(metric="requests", window="minute", amount=amount, tenant=tenant, actor=SYSTEM)


@pytest.mark.shows("R108")
def test_limits_grants_and_settings_are_as_they_were(acme: Tenant) -> None:
    changed = _limit(acme)
    deleted = create_limit(metric="tokens", window="day", amount=100, tenant=acme, actor=SYSTEM)
    grant = grant_model(acme, model_pattern="old-*", actor=SYSTEM)
    key = make_key(acme, rpm_limit=5).key
    point = _epoch()
    change_limit(changed.pk, amount=99, actor=SYSTEM)
    delete_limit(deleted.pk, actor=SYSTEM)
    made = create_limit(metric="tokens", window="month", amount=7, tenant=acme, actor=SYSTEM)
    remove_grant(grant.pk, actor=SYSTEM)
    grant_model(acme, model_pattern="new-*", actor=SYSTEM)
    change_tenant(acme.pk, response_retention_days=1, time_zone="Asia/Tokyo", actor=SYSTEM)
    ApiKey.objects.filter(pk=key.pk).update(rpm_limit=6, name="other")  # past the services: the trigger sees it too
    epochs = {section: current_epoch(section) for section in (Section.LIMITS, Section.GRANTS, Section.KEYS)}

    done = _back(point)
    assert done.kept == []
    assert {limit.pk: limit.amount for limit in Limit.objects.all()} == {changed.pk: 10, deleted.pk: 100}
    assert made.pk not in Limit.objects.values_list("pk", flat=True)
    assert list(Grant.objects.values_list("pk", "model_pattern")) == [(grant.pk, "old-*")]
    acme.refresh_from_db()
    assert (acme.response_retention_days, acme.time_zone) == (30, "UTC")
    restored = ApiKey.objects.get()
    assert (restored.rpm_limit, restored.name, restored.digest) == (5, key.name, key.digest)
    assert all(current_epoch(section) > epoch for section, epoch in epochs.items())
    told = AuditEvent.objects.filter(action__endswith=".rolled_back")
    assert sorted(told.values_list("action", flat=True)) == [
        "api_key.rolled_back",
        "configuration.rolled_back",
        *["grant.rolled_back"] * 2,
        *["limit.rolled_back"] * 3,
        "tenant.rolled_back",
    ]
    assert told.get(action="tenant.rolled_back").before["time_zone"] == "Asia/Tokyo"
    assert AuditEvent.objects.get(action="configuration.rolled_back").after["steps"] == 7


def test_what_is_stored_no_more_is_not_stored_again(acme: Tenant) -> None:
    loud, quiet = make_key(acme).key, make_key(acme).key
    change_api_key(loud.pk, store_conversations=True, actor=SYSTEM)
    point = _epoch()
    change_api_key(loud.pk, store_conversations=False, name="other", actor=SYSTEM)
    change_api_key(quiet.pk, store_conversations=True, actor=SYSTEM)
    change_tenant(acme.pk, conversation_retention_days=0, response_retention_days=1, actor=SYSTEM)
    done = _back(point)
    assert {(part.object_id, part.reason.partition(":")[0]) for part in done.kept} == {
        (str(loud.pk), "The key has its conversations stored no more"),
        (str(acme.pk), "Nothing is stored any more"),
    }
    assert not ApiKey.objects.filter(store_conversations=True).exists()
    assert ApiKey.objects.get(pk=loud.pk).name == loud.name
    acme.refresh_from_db()
    assert (acme.conversation_retention_days, acme.response_retention_days) == (0, 30)


def test_a_rollback_can_be_rolled_back(acme: Tenant) -> None:
    limit = _limit(acme)
    first = _epoch()
    change_limit(limit.pk, amount=99, actor=SYSTEM)
    second = _epoch()
    _back(first)
    _back(second)
    assert Limit.objects.get().amount == 99
    _back(second)  # nothing is left to do
    assert Limit.objects.get().amount == 99


def test_a_dry_run_tells_and_does_nothing(acme: Tenant) -> None:
    limit = _limit(acme)
    point = _epoch()
    change_limit(limit.pk, amount=99, actor=SYSTEM)
    written = AuditEvent.objects.count()
    plan = roll_back_configuration(to=point, actor=SYSTEM, dry_run=True)
    assert [(step.verb, step.before, step.after) for step in plan.steps] == [("update", {"amount": 99}, {"amount": 10})]
    assert Limit.objects.get().amount == 99
    assert AuditEvent.objects.count() == written
    assert [step.after for step in _back(point).steps] == [{"amount": 10}]


def test_revocations_are_never_undone(acme: Tenant) -> None:
    revoked, expiring = make_key(acme, rpm_limit=1).key, make_key(acme).key
    point = _epoch()
    ApiKey.objects.filter(pk=revoked.pk).update(rpm_limit=2)
    revoke_api_key(revoked.pk, actor=SYSTEM)
    soon = timezone.now() + timedelta(minutes=5)
    ApiKey.objects.filter(pk=expiring.pk).update(expires_at=soon)
    set_tenant_state(acme.pk, TenantState.SUSPENDED, actor=SYSTEM)
    younger, tenant = make_key(acme).key, make_tenant("younger")

    done = _back(point)
    assert done.steps == []
    assert {UUID(kept.object_id): kept.reason.split(":")[0] for kept in done.kept} == {
        revoked.pk: "The key is revoked.",
        expiring.pk: "The key expires earlier than it did",
        acme.pk: "It is suspended",
        younger.pk: "The key was made since",
        tenant.pk: "The tenant was made since",
    }
    assert ApiKey.objects.get(pk=revoked.pk).revoked_at is not None
    assert ApiKey.objects.get(pk=expiring.pk).expires_at == soon
    assert Tenant.objects.get(pk=acme.pk).state == TenantState.SUSPENDED


def test_what_was_denied_or_ended_since_stays_so(acme: Tenant) -> None:
    wide = grant_model(acme, model_pattern="wide-*", effect="deny", actions=["infer"], actor=SYSTEM)
    ending = grant_model(acme, model_pattern="ending", actor=SYSTEM)
    point = _epoch()
    denial = grant_model(acme, model_pattern="secret", effect="deny", actor=SYSTEM)
    grant_model(acme, model_pattern="wide-*", effect="deny", actions=["infer", "embed"], actor=SYSTEM)
    Grant.objects.filter(pk=ending.pk).update(expires_at=timezone.now() - timedelta(minutes=1))

    done = _back(point)
    assert done.steps == []
    assert {UUID(kept.object_id): kept.reason.split(":")[0] for kept in done.kept} == {
        denial.pk: "It denies",
        wide.pk: "It denies",
        ending.pk: "The grant ends earlier than it did",
    }
    assert Grant.objects.get(pk=wide.pk).actions == ["embed", "infer"]
    assert Grant.objects.filter(pk=denial.pk).exists()


def test_keys_of_an_issuer_are_fetched_from_where_they_are_now() -> None:
    old, new = "http://127.0.0.1:9/keys", "https://keys.example/now"
    said = {"name": "acme", "issuer": "https://id.example", "audiences": ["gatehouse"], "leeway_seconds": 1.0}
    issuer = create_token_issuer(actor=SYSTEM, jwks_url=old, allow_private=True, **said)
    point = _epoch()
    change_token_issuer(issuer.pk, actor=SYSTEM, jwks_url=new, allow_private=False, leeway_seconds=2.0)
    done = _back(point)
    issuer.refresh_from_db()
    assert (issuer.jwks_url, issuer.allow_private, issuer.leeway_seconds) == (new, False, 1.0)
    assert {kept.reason.split(":")[0] for kept in done.kept} == {"The address of its keys is as it is now"}


def test_prices_come_back_as_new_rows() -> None:
    start = timezone.now() - timedelta(days=30)
    old = Price.objects.create(model="m", effective_from=start, input_micros=100)
    version = uuid7()
    point = _epoch()
    Price.objects.create(model="m", effective_from=start + timedelta(days=1), input_micros=900)
    Price.objects.create(model="m", version_id=version, effective_from=start, input_micros=5)
    planned = Price.objects.create(model="m", effective_from=timezone.now() + timedelta(days=1), input_micros=7)
    _back(point)
    book = Price.objects.order_by("created_at")
    assert not book.filter(pk=planned.pk).exists()
    assert Price.objects.filter(pk=old.pk).exists()
    newest = {row.version_id: row for row in book.order_by("effective_from")}
    assert newest[None].input_micros == newest[version].input_micros == 100
    assert newest[None].effective_from > timezone.now() - timedelta(minutes=1)
    assert book.count() == 5  # what was billed by stays


def test_an_event_means_its_whole_transaction_and_a_moment_what_was_done_by_then(acme: Tenant) -> None:
    limit = _limit(acme)
    change_limit(limit.pk, amount=20, actor=SYSTEM)
    event = AuditEvent.objects.latest("id")
    moment = timezone.now()
    change_limit(limit.pk, amount=30, actor=SYSTEM)
    roll_back_configuration(to=event.pk, actor=SYSTEM)
    assert Limit.objects.get().amount == 20
    roll_back_configuration(to=event.pk, before=True, actor=SYSTEM)
    assert Limit.objects.get().amount == 10
    roll_back_configuration(to=moment, actor=SYSTEM)
    assert Limit.objects.get().amount == 20


def test_departments_go_back_to_their_places(acme: Tenant) -> None:
    part = create_tenant(slug="part", name="Part", actor=SYSTEM)
    _limit(part)
    set_parent(part.pk, acme.pk, actor=SYSTEM)
    point, limits = _epoch(), current_epoch(Section.LIMITS)
    set_parent(part.pk, None, actor=SYSTEM)
    _back(point)
    part.refresh_from_db()
    assert part.parent_id == acme.pk
    assert current_epoch(Section.LIMITS) > limits + 1  # its limits count elsewhere now


def test_what_is_gone_for_good_is_said(acme: Tenant) -> None:
    key = make_key(acme).key
    create_limit(metric="requests", window="minute", amount=3, tenant=acme, key=key, actor=SYSTEM)
    point = _epoch()
    key.delete()  # its limit goes with it
    done = _back(point)
    assert sorted(kept.reason for kept in done.kept) == [
        "The key that it belongs to is gone.",
        "The key was deleted, and its secret with it.",
    ]
    assert Limit.objects.count() == 0


@pytest.mark.parametrize(
    "to", [10**15, uuid7(), timezone.now() + timedelta(days=1), timezone.now() - timedelta(days=3650)]
)
def test_an_unknown_point_is_refused(acme: Tenant, to: int) -> None:
    with pytest.raises(InvalidInput, match="to: "):
        roll_back_configuration(to=to, actor=SYSTEM)


def test_history_holds_no_secret_and_is_forgotten_when_asked(acme: Tenant) -> None:
    key = make_key(acme).key
    other = make_tenant()
    ApiKey.objects.filter(pk=key.pk).update(last_used_at=timezone.now())  # use is no change
    kept = ConfigurationChange.objects.get(object_id=key.pk)
    assert kept.after is not None
    assert "digest" not in kept.after
    assert (kept.tenant_id, kept.before) == (acme.pk, None)
    assert erase_history(acme.pk) == 2
    assert list(ConfigurationChange.objects.exclude(table="").values_list("tenant_id", flat=True)) == [other.pk]
    ConfigurationChange.objects.update(at=timezone.now() - timedelta(days=500))
    assert prune_history() >= 1
    assert prune_history() == 0


@pytest.mark.shows("R108")
def test_a_thousand_changes_are_rolled_back_within_the_bar(acme: Tenant) -> None:
    grants = [Grant(tenant=acme, principal_id=acme.pk, model_pattern=f"m-{n}", actions=["infer"]) for n in range(1000)]
    Grant.objects.bulk_create(grants)
    point = _epoch()
    with connection.cursor() as cursor:
        cursor.execute("""UPDATE tenants_grant SET actions = '["train"]'""")
    began = time.monotonic()
    done = _back(point)
    took = time.monotonic() - began
    assert len(done.steps) == 1000
    assert all(grant.actions == ["infer"] for grant in Grant.objects.all())
    print(f"1,000 changes rolled back in {took:.1f} s")
    assert took < 42
