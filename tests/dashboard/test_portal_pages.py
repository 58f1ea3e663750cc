"""Quick start and usage pages."""

import json
from datetime import timedelta

import pytest
from django.conf import settings
from django.test import Client
from django.utils import timezone

from dashboard.reads import usage as usage_reads
from gpupool.models import Model, ModelVersion
from gpupool.services.aliases import create_alias
from tenants import services
from tenants.actor import SYSTEM
from tenants.models import Tenant, TenantRole, User
from tests.dashboard.people import minutes_ago, pool, tenant, usage

pytestmark = pytest.mark.django_db


@pytest.fixture
def acme(client: Client) -> Tenant:
    made = tenant("acme", ada=TenantRole.OWNER)
    client.force_login(User.objects.get(email="ada@example.com"))
    return made


def test_quick_start_names_the_relay_and_a_model_that_is_ready(client: Client, acme: Tenant) -> None:
    pool()
    snippets = client.get("/t/acme/").context["snippets"]
    assert f"{settings.GATEHOUSE.public_relay_url}/v1/chat/completions" in snippets["curl"]
    assert '"model": "qwen3-8b"' in snippets["curl"]
    assert "model='qwen3-8b'" in snippets["python"]
    compile(snippets["python"], "snippet", "exec")


def test_the_examples_ask_the_model_that_is_chosen(client: Client, acme: Tenant) -> None:
    made = pool()
    other = Model.objects.create(name="bge m3'é")
    ModelVersion.objects.create(model=other, name="v1", engine="vllm", served_name="b", state="serving")
    page = client.get("/t/acme/")
    assert page.context["example"] == made.version.model.name  # it is ready
    assert 'href="?model=bge%20m3%27%C3%A9#steps-title"' in page.content.decode()
    page = client.get("/t/acme/?model=bge%20m3%27%C3%A9")
    assert page.context["example"] == other.name
    assert "bge m3'\\''" in page.context["snippets"]["curl"]
    assert client.get("/t/acme/?model=others").context["example"] == made.version.model.name


def test_quick_start_without_models_says_who_grants_them(client: Client, acme: Tenant) -> None:
    assert "No model is granted" in client.get("/t/acme/").content.decode()


def test_denied_and_foreign_models_are_not_offered(client: Client, acme: Tenant) -> None:
    made = pool()
    services.grant_model(acme, model_pattern="qwen3-*", effect="deny", actor=SYSTEM)
    assert client.get("/t/acme/").context["models"] == []
    acme.grants.filter(effect="deny").delete()
    made.version.model.tenant_id = tenant("bank").pk
    made.version.model.save()
    assert client.get("/t/acme/").context["models"] == []


def test_usage_sums_are_those_of_the_range(client: Client, acme: Tenant) -> None:
    usage(acme, at=minutes_ago(5), requests=10, tokens=1000)
    usage(acme, at=timezone.now() - timedelta(days=3), model="older", requests=7, tokens=50)
    usage(tenant("bank"), at=minutes_ago(5), requests=99)
    hour = client.get("/t/acme/usage/?range=1h").context["totals"]
    week = client.get("/t/acme/usage/?range=7d").context["totals"]
    assert (hour.requests, hour.input_tokens, hour.output_tokens, hour.cached_share) == (10, 1000, 1000, 0.25)
    assert hour.mean_ttft_ms == 300.0
    assert (week.requests, week.input_tokens) == (17, 1050)


@pytest.mark.shows("U6")
def test_chart_and_tables_hold_every_token_of_the_range(client: Client, acme: Tenant) -> None:
    usage(acme, at=minutes_ago(5), tokens=1000)
    usage(acme, at=minutes_ago(90), model="small", tokens=10)
    response = client.get("/t/acme/usage/?range=24h")
    figure = response.context["figure"]
    assert {trace["name"]: sum(trace["y"]) for trace in figure["data"]} == {"qwen3-8b": 2000, "small": 20}
    assert json.dumps(figure)
    by_key = {line.key.name: (line.tokens, sum(line.by_bucket)) for line, _ in response.context["keys"]}
    assert by_key == {"key-qwen3-8b": (2000, 2000), "key-small": (20, 20)}
    assert sum(sum(values) for _, values in response.context["table"]) == 2020


@pytest.mark.shows("U9")
@pytest.mark.parametrize(
    ("asked", "shown", "hours"),
    [
        ("", "Asia/Shanghai", 8),
        ("&zone=UTC", "UTC", 0),
        ("&zone=Asia/Tokyo", "Asia/Tokyo", 9),
        ("&zone=Mars/Base", "Asia/Shanghai", 8),
        ("&zone=../../etc/passwd", "Asia/Shanghai", 8),
    ],
)
def test_one_zone_is_shown_on_the_page_and_stands_in_the_address(
    client: Client, acme: Tenant, asked: str, shown: str, hours: int
) -> None:
    usage(acme, at=minutes_ago(1))
    response = client.get(f"/t/acme/usage/?range=1h{asked}")
    text = response.content.decode()
    assert f"times in {shown}" in text
    first = response.context["table"][0][0]
    assert first.utcoffset() == timedelta(hours=hours)
    assert f">{first:%H:%M}<" in text or f"{first:%H:%M}</td>" in text
    # Choosing a range keeps the zone, choosing a zone keeps the range.
    assert 'href="?range=7d' + asked.replace("&", "&amp;").replace("/", "%2F") in text
    assert 'href="?range=1h&amp;zone=UTC"' in text


@pytest.mark.parametrize("asked", ["", "?range=", "?range=1y", "?range=%00"])
def test_unknown_range_falls_back_to_a_day(client: Client, acme: Tenant, asked: str) -> None:
    response = client.get(f"/t/acme/usage/{asked}")
    assert response.status_code == 200
    assert response.context["chosen"] == "24h"


def test_many_keys_are_cut_and_said_to_be(client: Client, acme: Tenant, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(3):
        usage(acme, at=minutes_ago(5), model=f"m{number}", tokens=100 * (number + 1))
    assert "most first" in client.get("/t/acme/usage/").content.decode()
    monkeypatch.setattr(usage_reads, "KEY_LIMIT", 2)
    response = client.get("/t/acme/usage/")
    assert [line.key.name for line, _ in response.context["keys"]] == ["key-m2", "key-m1"]
    assert "the 2 keys that used most" in response.content.decode()


def test_no_usage_is_said_and_no_chart_is_drawn(client: Client, acme: Tenant) -> None:
    text = client.get("/t/acme/usage/").content.decode()
    assert "No usage in this range" in text
    assert 'id="usage-chart"' not in text


@pytest.mark.parametrize("role", list(TenantRole))
def test_every_member_sees_usage(client: Client, role: TenantRole) -> None:
    tenant("acme", someone=role)
    client.force_login(User.objects.get(email="someone@example.com"))
    assert client.get("/t/acme/usage/").status_code == 200


def test_switcher_lists_own_tenants_only(client: Client, acme: Tenant) -> None:
    tenant("bank", ada=TenantRole.VIEWER)
    tenant("zebra", eve=TenantRole.OWNER)
    text = client.get("/t/acme/").content.decode()
    assert 'href="/t/bank/"' in text
    assert "zebra" not in text.lower()


def test_a_models_other_names_are_told_and_those_of_others_versions_are_not(client: Client, acme: Tenant) -> None:
    made = pool()
    create_alias(made.version.model_id, "qwen-latest", actor=SYSTEM)
    page = client.get("/t/acme/")
    assert page.context["models"][0].aliases == ("qwen-latest",)
    assert "Also called qwen-latest" in page.content.decode()
    made.version.tenant_id = tenant("bank").pk
    made.version.save()
    assert client.get("/t/acme/").context["models"] == []
    made.version.tenant_id = acme.pk
    made.version.save()
    assert client.get("/t/acme/").context["models"][0].ready == 1
