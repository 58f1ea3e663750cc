"""The bar above a list: what is sought changes, how the list is shown stays; a view is of the list, not of a page."""

import re
from html import escape, unescape
from uuid import UUID

import pytest
from django.test import Client

from dashboard.models import SavedView
from tenants.models import TenantRole, User
from tests.dashboard.people import tenant

pytestmark = pytest.mark.django_db


def hidden(text: str) -> dict[str, str]:
    """What the filters' form sends along without being asked."""
    form = text[text.index('class="filters"') :]
    return dict(re.findall(r'<input type="hidden" name="(\w+)" value="([^"]*)">', form[: form.index("</form>")]))


def clear(text: str) -> str:
    found = re.search(r'class="btn bare" href="([^"]*)"', text)
    assert found is not None
    return found[1].replace("&amp;", "&")


@pytest.mark.shows("U3")
def test_a_filter_leaves_the_list_sorted_as_it_is(operator: Client) -> None:
    tenant("acme")
    assert hidden(operator.get("/console/tenants/?sort=-slug").content.decode()) == {"sort": "-slug"}
    assert hidden(operator.get("/console/tenants/?sort=nonsense").content.decode()) == {}
    assert hidden(operator.get("/console/audit/?sort=at&range=7d").content.decode()) == {"sort": "at", "range": "7d"}


def test_clearing_the_filters_leaves_time_zone_and_order(operator: Client) -> None:
    tenant("acme")
    for page, kept in (("audit", "?range=7d&zone=UTC&sort=at"), ("tenants", "?sort=-slug"), ("tenants", "?")):
        more = "" if kept == "?" else "&"
        text = operator.get(f"/console/{page}/{kept}{more}q=acme&count=exact").content.decode()
        assert dict(re.findall(r"(\w+)=([^&]*)", clear(text))) == dict(re.findall(r"(\w+)=([^&]*)", kept))


def test_a_view_of_the_request_log_begins_with_its_newest(operator: Client) -> None:
    text = operator.get(f"/console/requests/?outcome=failed&before={UUID(int=7)}").content.decode()
    assert 'name="query" value="outcome=failed"' in text


def test_what_is_looked_at_of_ones_usage_can_be_kept(client: Client) -> None:
    tenant("acme", ada=TenantRole.VIEWER)
    client.force_login(User.objects.get(email="ada@example.com"))
    page, asked = "/t/acme/usage/", "range=30d&group=key&q=batch"
    form = client.get(f"{page}?{asked}").content.decode()
    form = form[form.index('class="save-view"') :]
    sent = {name: unescape(value) for name, value in re.findall(r'name="(\w+)" value="([^"]*)"', form[:2000])}
    assert (sent["table"], sent["path"], sent["query"], sent["tenant"]) == ("portal-usage", page, asked, "acme")
    assert client.post("/views/save/", {**sent, "name": "Batch"})["Location"] == f"{page}?{asked}"
    assert f'href="?{escape(SavedView.objects.get().query)}"' in client.get(page).content.decode()
