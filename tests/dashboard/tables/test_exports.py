"""Long tables: a worker writes them as the person who asked, who alone can fetch them."""

import re
from datetime import timedelta

import pytest
from django.test import Client
from django.utils import timezone

from dashboard import services
from dashboard.exporting import write_waiting_exports
from dashboard.models import Export, ExportPart, ExportState
from dashboard.services import exports as service
from dashboard.tables import sheet
from tenants.actor import SYSTEM
from tenants.models import AuditEvent, User
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
    waiting = operator.get(f"/exports/{asked.pk}/")
    assert "Waiting" in waiting.content.decode()
    assert operator.get(f"/exports/{asked.pk}/file/").status_code == 404
    assert write_waiting_exports() == 1
    assert write_waiting_exports() == 0
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


def test_nobody_else_sees_it(client: Client, asked: Export) -> None:
    write_waiting_exports()
    client.force_login(person("oscar", platform_role="superuser"))
    assert client.get(f"/exports/{asked.pk}/").status_code == 404
    assert client.get(f"/exports/{asked.pk}/file/").status_code == 404
    assert str(asked.pk) not in client.get("/exports/").content.decode()


@pytest.mark.parametrize("change", [{"platform_role": ""}, {"is_active": False}])
def test_who_may_no_longer_see_the_list_gets_no_file(asked: Export, change: dict[str, object]) -> None:
    User.objects.filter(pk=asked.person_id).update(**change)
    write_waiting_exports()
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


def test_exports_are_gone_after_a_day_and_a_stuck_one_says_so(asked: Export) -> None:
    now = timezone.now()
    Export.objects.filter(pk=asked.pk).update(state=ExportState.WRITING)
    assert services.prune_exports(now=now + timedelta(hours=1)) == 0
    asked.refresh_from_db()
    assert asked.state == ExportState.FAILED
    services.prune_exports(now=now + service.KEPT + timedelta(minutes=1))
    assert not Export.objects.exists()
