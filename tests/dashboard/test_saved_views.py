"""Saved views: one's own, of one list, leading nowhere else."""

import pytest
from django.test import Client

from dashboard import services
from dashboard.models import SavedView
from dashboard.services.saved_views import MOST_VIEWS
from tenants.actor import SYSTEM
from tenants.models import AuditEvent, TenantRole, User
from tests.dashboard.people import person, tenant

pytestmark = pytest.mark.django_db
SAVE = {"table": "console-tenants", "path": "/console/tenants/", "query": "q=ac&sort=slug", "name": "Ours"}


def test_a_view_is_kept_replaced_by_its_name_and_deleted(operator: Client) -> None:
    answer = operator.post("/views/save/", SAVE)
    assert answer["Location"] == "/console/tenants/?q=ac&sort=slug"
    operator.post("/views/save/", {**SAVE, "query": "q=bo"})
    view = SavedView.objects.get()
    assert (view.name, view.query) == ("Ours", "q=bo")
    operator.post(f"/views/{view.pk}/delete/", {"path": "/console/tenants/"})
    assert not SavedView.objects.exists()
    assert list(
        AuditEvent.objects.filter(action__startswith="saved_view").values_list("action", flat=True).order_by("pk")
    ) == [
        "saved_view.created",
        "saved_view.changed",
        "saved_view.deleted",
    ]


def test_nobody_deletes_anothers(operator: Client, client: Client) -> None:
    view = services.save_view(person("oscar"), tenant=None, table="t", name="mine", query="", actor=SYSTEM)
    assert operator.post(f"/views/{view.pk}/delete/").status_code == 404
    assert SavedView.objects.exists()


@pytest.mark.parametrize(
    "path", ["https://evil.example/", "//evil.example/", "/\\evil.example", "javascript:alert(1)", ""]
)
def test_saving_leads_nowhere_else(operator: Client, path: str) -> None:
    assert operator.post("/views/save/", {**SAVE, "path": path, "query": ""})["Location"] == "/"


def test_what_was_done_and_what_was_not_look_different(operator: Client) -> None:
    done = operator.post("/views/save/", SAVE, follow=True).content.decode()
    assert 'class="notice good" role="status"' in done
    refused = operator.post("/views/save/", {**SAVE, "name": ""}, follow=True).content.decode()
    assert 'class="notice bad" role="alert"' in refused


def test_what_cannot_be_kept_is_said(operator: Client) -> None:
    for wrong in ({"name": ""}, {"name": "x" * 81}, {"query": "q=" + "x" * 1000}):
        operator.post("/views/save/", {**SAVE, **wrong})
    assert not SavedView.objects.exists()
    for number in range(MOST_VIEWS + 2):
        operator.post("/views/save/", {**SAVE, "name": f"n{number}"})
    assert SavedView.objects.count() == MOST_VIEWS


def test_a_tenants_views_are_for_its_members(client: Client) -> None:
    tenant("acme", ada=TenantRole.OWNER)
    tenant("bolt")
    client.force_login(User.objects.get(email="ada@example.com"))
    assert client.post("/views/save/", {**SAVE, "tenant": "acme"}).status_code == 302
    assert client.post("/views/save/", {**SAVE, "tenant": "bolt"}).status_code == 404
    assert client.post("/views/save/", {**SAVE, "tenant": "\x00"}).status_code == 404
    assert SavedView.objects.get().tenant_id is not None
