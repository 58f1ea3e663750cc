"""The command palette: pages and things by name, within what the asker may see."""

from typing import Any
from urllib.parse import quote

import pytest
from django.test import Client
from pytest_django import DjangoAssertNumQueries

from tenants import services
from tenants.actor import SYSTEM
from tenants.models import ApiKey, Tenant, TenantRole, User
from tests.dashboard.people import person, pool, tenant

pytestmark = pytest.mark.django_db


def found(client: Client, path: str) -> list[dict[str, Any]]:
    answer = client.get(path)
    assert answer.status_code == 200, answer.content
    lines: list[dict[str, Any]] = answer.json()
    return lines


def key(of: str, name: str) -> ApiKey:
    return services.create_api_key(Tenant.objects.get(slug=of), name=name, actor=SYSTEM).key


def test_the_console_finds_pages_tenants_models_nodes_and_keys(operator: Client) -> None:
    tenant("acme")
    pool()
    key("acme", "acme-batch")
    kinds = {line["kind"]: line for line in found(operator, "/console/palette/?q=acme")}
    assert kinds["tenant"]["label"] == "Acme"
    assert kinds["key"]["where"].endswith("· acme")
    assert "/t/acme/keys/?q=" in kinds["key"]["href"]
    assert [line["label"] for line in found(operator, "/console/palette/?q=node-1")] == ["node-1"]
    assert "Instances" in [line["label"] for line in found(operator, "/console/palette/?q=inst")]


def test_a_member_finds_what_is_their_tenants_and_nothing_else(client: Client) -> None:
    tenant("acme", ada=TenantRole.OWNER)
    tenant("bolt")
    pool()
    key("acme", "mine")
    key("bolt", "minerva")
    client.force_login(User.objects.get(email="ada@example.com"))
    assert [line["label"] for line in found(client, "/t/acme/palette/?q=mine")] == ["mine"]
    assert found(client, "/t/acme/palette/?q=bolt") == []
    assert found(client, "/t/acme/palette/?q=node-1") == []
    assert client.get("/t/bolt/palette/?q=mine").status_code == 404
    assert client.get("/console/palette/?q=mine").status_code == 403


def test_a_key_is_found_by_its_end_and_not_by_a_word_that_ends_so(operator: Client) -> None:
    tenant("acme")
    made = key("acme", "batch")
    for words in (made.last_four, made.masked, f"...{made.last_four}"):
        assert [line["label"] for line in found(operator, f"/console/palette/?q={quote(words)}")] == ["batch"]
    assert found(operator, f"/console/palette/?q=produc{made.last_four}") == []


def test_what_makes_no_sense_finds_nothing(operator: Client) -> None:
    assert found(operator, "/console/palette/?q=%00%00") != []  # no words: all pages
    assert found(operator, "/console/palette/?q=" + "z" * 5000) == []


def test_a_search_costs_as_many_queries_with_many_things(
    operator: Client, django_assert_num_queries: DjangoAssertNumQueries
) -> None:
    for number in range(12):
        tenant(f"acme-{number}")
        key(f"acme-{number}", f"acme-key-{number}")
    with django_assert_num_queries(7):  # session, person, and one for each kind
        lines = found(operator, "/console/palette/?q=acme")
    assert [line["kind"] for line in lines].count("tenant") == 6


def test_strangers_are_sent_to_log_in(client: Client) -> None:
    person("nobody")
    assert client.get("/console/palette/?q=a").status_code == 302


def test_the_field_names_what_can_be_found_there(operator: Client) -> None:
    tenant("acme")
    assert "Search pages, tenants, models, nodes, keys…" in operator.get("/console/tenants/").content.decode()
    portal = operator.get("/t/acme/keys/").content.decode()
    assert "Search pages, models, keys…" in portal
    assert "Search tenants" not in portal
