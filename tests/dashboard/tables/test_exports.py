"""Long tables: a worker writes them as the person who asked, who alone can fetch them."""

import contextlib
import itertools
import os
import re
from collections.abc import Iterator
from datetime import timedelta
from uuid import UUID

import psycopg
import pytest
from django.db import OperationalError, connection
from django.test import Client
from django.utils import timezone
from psycopg.errors import QueryCanceled

from core.refusals import Conflict
from dashboard import services
from dashboard.exporting import write_next_export
from dashboard.models import Export, ExportPart, ExportState
from dashboard.services import exports as service
from dashboard.tables import sheet
from tenants.actor import SYSTEM
from tenants.models import AuditEvent, Membership, TenantRole, User, Webhook
from tests.dashboard.people import person, tenant

pytestmark = pytest.mark.django_db
LIST = "/console/tenants/"


@pytest.fixture
def asked(operator: Client, monkeypatch: pytest.MonkeyPatch) -> Export:
    """An export of five tenants, where a page tells two rows at most."""
    monkeypatch.setattr(sheet, "CSV_LIMIT", 2)
    for name in ("ace", "acme", "acre", "bolt", "care"):
        tenant(name)
    answer = operator.get(f"{LIST}?format=csv&q=ac&sort=slug")
    export = Export.objects.get()
    assert (answer.status_code, answer["Location"]) == (302, f"/exports/{export.pk}/")
    return export


def test_a_long_list_is_written_by_a_worker_and_fetched_by_who_asked(operator: Client, asked: Export) -> None:
    waiting = operator.get(f"/exports/{asked.pk}/").content.decode()
    assert "Waiting" in waiting
    assert '<tbody aria-live="polite">' in waiting  # what changes in it is read out, and that alone
    assert 'hx-swap="outerMorph"' in waiting
    assert operator.get(f"/exports/{asked.pk}/file/").status_code == 404
    assert write_next_export() == 1
    assert write_next_export() == 0
    asked.refresh_from_db()
    assert (asked.state, asked.rows) == (ExportState.READY, 3)
    answer = operator.get(f"/exports/{asked.pk}/file/")
    lines = answer.getvalue().decode().splitlines()
    assert [line.split(",")[0] for line in lines[1:]] == ["Ace", "Acme", "Acre"]
    assert AuditEvent.objects.filter(action="export.requested").exists()


def test_a_list_leads_to_what_becomes_of_its_csv(operator: Client) -> None:
    """With `download` the browser would save the page of an export as a file, and nobody would see it."""
    tenant("acme")
    text = operator.get(LIST).content.decode()
    links = re.findall(r"<a[^>]*format=csv[^>]*>", text)
    assert len(links) == 1
    assert "download" not in links[0]
    assert 'href="/exports/"' in text


def test_lists_are_called_what_their_pages_are(asked: Export, operator: Client) -> None:
    acme = tenant("dock")
    for table, path in (("keys", "/t/dock/keys/"), ("deliveries", "/t/dock/settings/webhooks/x/"), ("old", "/gone/")):
        services.ask_export(asked.person, tenant_id=acme.pk, table=table, path=path, query="", actor=SYSTEM)
        Export.objects.exclude(pk=asked.pk).update(state=ExportState.FAILED)
    names = re.findall(r'<a class="main"[^>]*>([^<]*)<', operator.get("/exports/").content.decode())
    assert names == ["old", "deliveries", "API keys · dock", "Tenants"]


def test_nobody_else_sees_it(client: Client, asked: Export) -> None:
    write_next_export()
    client.force_login(person("oscar", platform_role="superuser"))
    assert client.get(f"/exports/{asked.pk}/").status_code == 404
    assert client.get(f"/exports/{asked.pk}/file/").status_code == 404
    assert str(asked.pk) not in client.get("/exports/").content.decode()


@pytest.mark.parametrize("change", [{"platform_role": ""}, {"is_active": False}])
def test_who_may_no_longer_see_the_list_gets_no_file(asked: Export, change: dict[str, object]) -> None:
    User.objects.filter(pk=asked.person_id).update(**change)
    write_next_export()
    asked.refresh_from_db()
    assert asked.state == ExportState.FAILED
    assert "may not see" in asked.reason
    assert not ExportPart.objects.exists()


def test_asking_twice_makes_one_and_three_are_the_most(asked: Export, operator: Client) -> None:
    operator.get(f"{LIST}?format=csv&q=ac&sort=slug")
    assert Export.objects.count() == 1
    for sort in ("-slug", "name"):
        services.ask_export(asked.person, tenant_id=None, table="t", path=LIST, query=f"sort={sort}", actor=SYSTEM)
    refused = operator.get(f"{LIST}?format=csv&q=&sort=slug")
    assert refused["Location"].startswith(LIST)
    assert Export.objects.count() == 3


def test_exports_are_gone_after_a_day_though_nobody_deletes_them(asked: Export, operator: Client) -> None:
    write_next_export()
    assert operator.get(f"/exports/{asked.pk}/file/").status_code == 200
    Export.objects.filter(pk=asked.pk).update(created_at=timezone.now() - service.KEPT - timedelta(minutes=1))
    assert operator.get(f"/exports/{asked.pk}/file/").status_code == 404
    assert operator.get(f"/exports/{asked.pk}/").status_code == 404
    assert str(asked.pk) not in operator.get("/exports/").content.decode()
    services.prune_exports(now=timezone.now())
    assert not Export.objects.exists()


def says_why_there_is_no_file(client: Client, export: Export) -> None:
    """And tells nothing else of the list: no row of it, not how many there are, and no way there."""
    for address in (f"/exports/{export.pk}/file/", f"/exports/{export.pk}/"):
        answer = client.get(address)
        assert (answer.status_code, answer["Content-Type"]) == (403, "text/html; charset=utf-8")
        closed(answer.content.decode(), export)
    closed(client.get("/exports/").content.decode(), export)


def closed(text: str, export: Export) -> None:
    assert "You may not see this list any more." in text
    assert f'href="/exports/{export.pk}/' not in text  # there is nothing to fetch
    assert f'href="{export.path}' not in text
    assert re.findall(r'<td class="num">\s*(\S+)', text)[0] == "–"


def test_who_lost_their_platform_role_is_told_why_there_is_nothing_of_the_console(
    asked: Export, operator: Client
) -> None:
    write_next_export()
    User.objects.filter(pk=asked.person_id).update(platform_role="")
    says_why_there_is_no_file(operator, asked)
    assert operator.get(f"/exports/{UUID(int=7)}/").status_code == 404


@pytest.fixture
def of_acme(client: Client) -> Export:
    """Written of acme's webhook deliveries for ada, whose browser `client` is; her role may see them."""
    acme = tenant("acme", ada=TenantRole.OWNER)
    ada = User.objects.get(email="ada@example.com")
    client.force_login(ada)
    hook = Webhook.objects.create(tenant=acme, url="https://example.com/x")
    path = f"/t/acme/settings/webhooks/{hook.pk}/"
    made = services.ask_export(ada, tenant_id=acme.pk, table="deliveries", path=path, query="", actor=SYSTEM)
    write_next_export()
    assert client.get(f"/exports/{made.pk}/file/").status_code == 200
    return made


def test_who_left_the_tenant_is_told_why_there_is_nothing_of_it(of_acme: Export, client: Client) -> None:
    Membership.objects.all().delete()
    says_why_there_is_no_file(client, of_acme)


def test_whose_role_in_the_tenant_sees_no_such_list_any_more_gets_no_file(of_acme: Export, client: Client) -> None:
    Membership.objects.update(role=TenantRole.VIEWER)
    answer = client.get(f"/exports/{of_acme.pk}/file/")
    assert answer.status_code == 403
    closed(answer.content.decode(), of_acme)


@contextlib.contextmanager
def writing_elsewhere() -> Iterator[None]:
    """Another worker holds the lock."""
    server = os.environ["DATABASE_URL"].rpartition("/")[0]
    with psycopg.connect(f"{server}/{connection.settings_dict['NAME']}") as other:
        other.execute("SELECT pg_advisory_xact_lock(%s)", [service._LOCK])
        yield


def test_one_is_written_at_a_time(asked: Export) -> None:
    services.ask_export(asked.person, tenant_id=None, table="t", path=LIST, query="", actor=SYSTEM)
    with writing_elsewhere():
        assert write_next_export() == 0
    assert write_next_export() == 1
    assert [one.state for one in Export.objects.order_by("pk")] == [ExportState.READY, ExportState.WAITING]


def test_one_that_a_worker_left_behind_says_so_and_holds_nobody_up(asked: Export) -> None:
    services.ask_export(asked.person, tenant_id=None, table="t", path=LIST, query="", actor=SYSTEM)
    Export.objects.filter(pk=asked.pk).update(state=ExportState.WRITING)
    with writing_elsewhere():  # it may be this one that is being written
        assert write_next_export() == 0
        services.prune_exports(now=timezone.now())
        asked.refresh_from_db()
        assert asked.state == ExportState.WRITING
    assert write_next_export() == 1
    asked.refresh_from_db()
    assert asked.state == ExportState.FAILED
    assert "ended before it was done" in asked.reason
    assert Export.objects.latest("pk").state == ExportState.READY


def test_the_hourly_look_ends_what_was_left_behind_too(asked: Export) -> None:
    Export.objects.filter(pk=asked.pk).update(state=ExportState.WRITING)
    assert services.prune_exports(now=timezone.now()) == 0
    asked.refresh_from_db()
    assert asked.state == ExportState.FAILED


def test_one_whose_turn_another_took_waits_again(asked: Export, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dashboard.exporting.lock_exports", lambda: False)
    write_next_export()
    asked.refresh_from_db()
    assert asked.state == ExportState.WAITING
    monkeypatch.undo()
    assert write_next_export() == 1


def test_one_that_takes_too_long_says_so(asked: Export, monkeypatch: pytest.MonkeyPatch) -> None:
    ticks = itertools.count(step=100)
    with pytest.raises(Conflict, match="longer than 4 minutes"):
        service.write_export(asked.pk, ["head\n", "one\n", "two\n"], clock=lambda: next(ticks))
    monkeypatch.setattr(service, "LONGEST", timedelta(seconds=-1))
    write_next_export()
    asked.refresh_from_db()
    assert (asked.state, asked.reason) == (ExportState.FAILED, service.TOO_LONG)
    assert not ExportPart.objects.exists()


def test_one_that_the_database_gave_up_says_so(asked: Export, monkeypatch: pytest.MonkeyPatch) -> None:
    def canceled(*_args: object) -> None:
        raise OperationalError from QueryCanceled("canceling statement due to statement timeout")

    monkeypatch.setattr("dashboard.exporting.write_export", canceled)
    write_next_export()
    asked.refresh_from_db()
    assert (asked.state, asked.reason) == (ExportState.FAILED, service.TOO_LONG)
