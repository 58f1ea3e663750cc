"""The audit log's pages: found by who, what, where and when; read field by field; followed as it happens."""

import csv
import io
import json
from datetime import timedelta
from uuid import UUID

import pytest
from django.db import connection
from django.test import Client
from django.utils import timezone
from pytest_django import DjangoAssertNumQueries

from core.ids import uuid7
from dashboard.live.base import Gone, Viewer
from dashboard.live.encoders import Tail
from dashboard.live.feeds.audit import AuditFeed
from dashboard.reads.audit import AuditRow, known_actions, known_subject_types
from tenants import services
from tenants.actor import SYSTEM, user_actor
from tenants.models import AuditEvent, Metric, Tenant, TenantRole, User, Window
from tenants.services.limits import change_limit, create_limit
from tests.dashboard.people import person, tenant

pytestmark = pytest.mark.django_db


@pytest.fixture
def acme() -> Tenant:
    return tenant("acme", ada=TenantRole.OWNER)


def actions(client: Client, query: str = "") -> list[str]:
    rows = client.get(f"/console/audit/?{query}").context["rows"]
    return [row.action for row, _ in rows]


def many(number: int) -> None:
    """So many rows of old, written past the model."""
    with connection.cursor() as cursor:
        cursor.execute(
            "INSERT INTO tenants_auditevent (id, at, actor_kind, action, subject_type, before, after, request_id)"
            " SELECT ('00000000-0000-7000-8000-' || lpad(to_hex(n), 12, '0'))::uuid, now() - interval '400 days',"
            " 'system', 'old.row', 'tenants.Old', '{}', '{}', '' FROM generate_series(1, %s) AS n",
            [number],
        )


def test_the_newest_stands_first_with_names_for_people_and_tenants(client: Client, acme: Tenant) -> None:
    olga = person("olga", platform_role="operator")
    client.force_login(olga)
    made = create_limit(metric=Metric.TOKENS, window=Window.DAY, amount=5, tenant=acme, actor=user_actor(olga.pk))
    page = client.get("/console/audit/")
    row, event = page.context["rows"][0]
    assert (row.action, row.actor, row.tenant, row.tenant_slug) == ("limit.created", "Olga", "Acme", "acme")
    assert event.subject_id == made.pk
    assert '<span class="sub">A person</span>' in page.content.decode()
    assert '<span class="dim">A person · ' in client.get(f"/console/audit/{event.pk}/").content.decode()
    assert '<span class="dim">A person</span>' in client.get("/console/tenants/acme/").content.decode()


@pytest.mark.shows("U3")
def test_rows_are_found_by_who_what_where_and_when(operator: Client, acme: Tenant) -> None:
    olga = person("otto", platform_role="operator")
    limit = create_limit(metric=Metric.TOKENS, window=Window.DAY, amount=5, tenant=acme, actor=user_actor(olga.pk))
    change_limit(limit.pk, amount=9, actor=user_actor(olga.pk))
    assert actions(operator, "action=limit") == ["limit.changed", "limit.created"]
    assert actions(operator, "q=limit.ch") == ["limit.changed"]
    assert actions(operator, f"q={limit.pk}") == ["limit.changed", "limit.created"]
    assert actions(operator, "q=otto&actor=user") == ["limit.changed", "limit.created"]
    assert actions(operator, "subject=tenants.Limit&actor=system") == []
    assert set(actions(operator, "tenant=acme")) >= {"tenant.created", "limit.created"}
    assert actions(operator, "q=nobody-and-nothing") == []
    past = (timezone.now() - timedelta(days=2)).strftime("%Y-%m-%dT%H:%M")
    before = (timezone.now() - timedelta(days=1)).strftime("%Y-%m-%dT%H:%M")
    assert actions(operator, f"from={past}&to={before}") == []
    assert operator.get("/console/audit/?tenant=nobody").status_code == 404


def test_a_change_is_read_field_by_field(operator: Client, acme: Tenant) -> None:
    limit = create_limit(metric=Metric.TOKENS, window=Window.DAY, amount=5, tenant=acme, actor=SYSTEM)
    change_limit(limit.pk, amount=9, actor=SYSTEM)
    event = AuditEvent.objects.get(action="limit.changed")
    page = operator.get(f"/console/audit/{event.pk}/")
    changed = {row.field: (row.before, row.after) for row in page.context["rows"] if row.changed}
    assert changed == {"amount": ("5", "9")}
    text = page.content.decode()
    assert "<del>− 5</del>" in text
    assert "<ins>+ 9</ins>" in text
    assert "Configuration: tenants_limit" in text  # what the same transaction changed


def test_old_rows_are_found_by_range_alone_and_cost_nothing_else(
    operator: Client, acme: Tenant, django_assert_max_num_queries: DjangoAssertNumQueries
) -> None:
    many(2_000)
    assert "old.row" not in actions(operator, "range=90d")
    assert {"old.row", "tenant.created"} <= set(known_actions())
    assert "tenants.Old" in known_subject_types()
    with django_assert_max_num_queries(18):
        operator.get("/console/audit/")


def test_pages_follow_each_other_without_a_gap(operator: Client, acme: Tenant) -> None:
    for number in range(60):
        services.create_api_key(acme, name=f"key {number}", actor=SYSTEM)
    first = operator.get("/console/audit/?action=api_key").context
    second = operator.get(f"/console/audit/?action=api_key&after={first['page'].older}").context
    ids = [event.pk for _, event in (*first["rows"], *second["rows"])]
    assert ids == sorted(ids, reverse=True)
    assert len(set(ids)) == 60


def test_csv_holds_the_whole_filtered_set_with_values(operator: Client, acme: Tenant) -> None:
    limit = create_limit(metric=Metric.TOKENS, window=Window.DAY, amount=5, tenant=acme, note="=1+1", actor=SYSTEM)
    body = operator.get("/console/audit/?action=limit&format=csv").content
    (row,) = csv.DictReader(io.StringIO(body.decode()))
    assert (row["action"], row["subject_id"]) == ("limit.created", str(limit.pk))
    assert json.loads(row["after"])["amount"] == 5
    assert "=1+1" not in body.decode()  # what people typed is masked


def test_the_channel_tells_what_came_since(acme: Tenant) -> None:
    feed, now = AuditFeed(), timezone.now()
    first = feed.read("", now=now)
    assert isinstance(first, Tail)
    assert first.rows[-1][1].action == "membership.set"  # oldest first
    encoder = feed.encoder()
    encoder.keyframe(first, epoch=1, seq=1, at=now)
    services.create_api_key(acme, name="ci", actor=SYSTEM)
    delta = encoder.delta(feed.read("", now=now), epoch=1, seq=2, at=now)
    assert isinstance(delta, str)
    assert delta.count('"action":') == 1
    assert '"api_key.created"' in delta


def test_a_tenants_channel_tells_that_tenants_rows_alone(acme: Tenant) -> None:
    services.create_api_key(tenant("bank"), name="theirs", actor=SYSTEM)
    told = AuditFeed().read("tenant:acme", now=timezone.now())
    assert isinstance(told, Tail)
    rows: list[AuditRow] = [row for _, row in told.rows]
    assert {row.tenant_slug for row in rows} == {"acme"}
    assert "theirs" not in {row.subject for row in rows}


def test_a_tenants_own_people_are_told_no_names_of_those_of_others(acme: Tenant) -> None:
    ada, olga = User.objects.get(email="ada@example.com"), person("olga", platform_role="operator")
    for who in (ada, olga):
        services.create_api_key(acme, name=f"of {who}", actor=user_actor(who.pk))

    def actors(scope: str) -> list[str]:
        told = AuditFeed().read(scope, now=timezone.now())
        assert isinstance(told, Tail)
        return [row.actor for _, row in told.rows[-2:]]

    assert actors("tenant:acme") == ["Ada", f"{str(olga.pk)[:8]}…"]
    assert actors("of:acme") == ["Ada", "Olga"]
    owner, operator = Viewer(ada.pk, roles={"acme": "owner"}), Viewer(olga.pk, platform_role="operator")
    assert [AuditFeed().may_watch(owner, scope) for scope in ("tenant:acme", "of:acme", "")] == [True, False, False]
    assert AuditFeed().may_watch(operator, "of:acme")
    with pytest.raises(Gone):
        AuditFeed().read("of:nobody", now=timezone.now())


def test_reading_the_channel_takes_a_constant_number_of_queries(
    acme: Tenant, django_assert_max_num_queries: DjangoAssertNumQueries
) -> None:
    for number in range(40):
        services.create_api_key(acme, name=f"key {number}", actor=SYSTEM)
    with django_assert_max_num_queries(5):
        AuditFeed().read("tenant:acme", now=timezone.now())


def test_who_was_erased_is_named_by_the_start_of_an_id(operator: Client) -> None:
    gone: UUID = uuid7()
    AuditEvent.objects.create(
        action="limit.changed", actor_kind="user", actor_id=gone, subject_type="tenants.Limit", subject_id=uuid7()
    )
    row, _ = operator.get("/console/audit/?q=limit.changed").context["rows"][0]
    assert row.actor == f"{str(gone)[:8]}…"
