"""Console pages: who sees them, and what they say."""

import re
from datetime import timedelta
from uuid import uuid4

import pytest
from django.test import Client
from django.utils import timezone
from pytest_django import DjangoAssertNumQueries

from dashboard import frames
from gpupool.models import Device, Instance, Node
from tenants.models import AuditEvent, TenantRole
from tests.dashboard.people import person, pool, tenant, usage

pytestmark = pytest.mark.django_db

PAGES = ["/console/overview/", "/console/instances/", "/console/engines/", "/console/tenants/"]


@pytest.mark.parametrize("page", PAGES)
def test_people_without_a_platform_role_are_refused(client: Client, page: str) -> None:
    tenant("acme", ada=TenantRole.OWNER)
    assert client.get(page).status_code == 302
    client.force_login(person("eve"))
    response = client.get(page)
    assert response.status_code == 403
    assert "You may not see this" in response.content.decode()


@pytest.mark.parametrize("page", PAGES)
@pytest.mark.parametrize("role", ["read_only", "operator", "superuser"])
def test_every_platform_role_sees_the_console(client: Client, page: str, role: str) -> None:
    client.force_login(person("olga", platform_role=role))
    assert client.get(page).status_code == 200


def test_only_superusers_find_the_backoffice_in_the_navigation(client: Client) -> None:
    client.force_login(person("olga", platform_role="operator"))
    assert 'href="/backoffice/"' not in client.get("/console/overview/").content.decode()
    client.force_login(person("root", platform_role="superuser"))
    assert 'href="/backoffice/"' in client.get("/console/overview/").content.decode()


def test_every_link_of_the_frame_leads_somewhere(client: Client) -> None:
    client.force_login(person("root", platform_role="superuser"))
    groups = client.get("/console/overview/").context["shell"].groups
    for item in (item for group in groups for item in group.items):
        assert client.get(item.href).status_code in (200, 301, 302), item.href


def test_empty_pool_says_what_to_do(operator: Client) -> None:
    text = operator.get("/console/overview/").content.decode()
    assert "No device has reported yet" in text
    assert "Nothing runs yet" in text


@pytest.mark.shows("U5")
def test_reserved_used_and_schedulable_are_three_numbers(operator: Client) -> None:
    pool()
    row = operator.get("/console/overview/").context["frame"].devices[0]
    gib = 2**30
    assert (row.reserved, row.used, row.schedulable) == (24 * gib, 20 * gib, 56 * gib)
    text = operator.get("/console/overview/").content.decode()
    for shown in ("24.0 GiB", "20.0 GiB", "56.0 GiB"):
        assert shown in text


@pytest.mark.shows("U5")
@pytest.mark.parametrize("why", ["old", "never", "unreachable"])
def test_silent_device_is_unknown_and_not_zero(operator: Client, why: str) -> None:
    pool()
    if why == "unreachable":
        Node.objects.update(state="unreachable")
    else:
        Device.objects.update(observed_at=timezone.now() - timedelta(minutes=5) if why == "old" else None)
    row = operator.get("/console/overview/").context["frame"].devices[0]
    assert (row.used, row.schedulable, row.utilization, row.health) == (None, None, None, "unknown")
    of_its_node = operator.get(f"/console/nodes/{Node.objects.get().pk}/").context["devices"][0]
    assert of_its_node.shown == row
    assert of_its_node.temperature_celsius is None


def test_device_of_unknown_size_is_not_counted_as_empty(operator: Client) -> None:
    pool()
    Device.objects.update(memory_bytes=None, memory_used_bytes=None)
    response = operator.get("/console/overview/")
    row = response.context["frame"].devices[0]
    assert (row.memory, row.used, row.schedulable) == (None, None, None)
    assert response.context["frame"].figures.memory is None


def test_overview_reads_a_constant_number_of_queries(
    operator: Client, django_assert_max_num_queries: DjangoAssertNumQueries
) -> None:
    made = pool()
    for port in range(30):
        Instance.objects.create(
            version=made.version, node=made.device.node, engine="vllm", state="ready", host="10.0.0.1", port=port
        )
    with django_assert_max_num_queries(24):
        operator.get("/console/overview/")


def test_filter_without_a_match_offers_to_clear_it(operator: Client) -> None:
    pool()
    text = operator.get("/console/instances/?q=nothing-like-this").content.decode()
    assert "No instance matches" in text
    assert 'href="/console/instances/"' in text


def test_instances_are_filtered_by_state_and_words(operator: Client) -> None:
    pool(state="failed")
    assert len(operator.get("/console/instances/?state=failed").context["rows"]) == 1
    assert len(operator.get("/console/instances/?state=ready").context["rows"]) == 0
    assert len(operator.get("/console/instances/?q=QWEN3").context["rows"]) == 1
    assert len(operator.get("/console/instances/?state=nonsense").context["rows"]) == 1


def test_operator_stops_an_instance_after_being_asked(operator: Client) -> None:
    made = pool()
    address = f"/console/instances/{made.instance.pk}/stop/"
    asked = operator.get(address).content.decode()
    assert "Running ones finish" in asked
    assert Instance.objects.get().desire == "running"
    assert operator.post(address).status_code == 302
    stopped = Instance.objects.get()
    assert stopped.desire == "stopped"
    event = AuditEvent.objects.get(action="instance.stop_requested")
    assert event.actor_kind == "user"


def test_read_only_role_stops_nothing(client: Client) -> None:
    made = pool()
    client.force_login(person("rita", platform_role="read_only"))
    address = f"/console/instances/{made.instance.pk}/stop/"
    assert address not in client.get("/console/instances/").content.decode()
    assert client.post(address).status_code == 403
    assert Instance.objects.get().desire == "running"


def test_stopping_what_is_not_there_is_a_404(operator: Client) -> None:
    assert operator.post(f"/console/instances/{uuid4()}/stop/").status_code == 404


def test_tenants_show_members_keys_and_the_last_day(operator: Client) -> None:
    acme = tenant("acme", ada=TenantRole.OWNER, ben=TenantRole.VIEWER)
    usage(acme, at=timezone.now() - timedelta(hours=1))
    usage(acme, at=timezone.now() - timedelta(days=3), model="other")
    (row,) = operator.get("/console/tenants/").context["rows"]
    found, used = row
    assert (found.members, found.keys, used.requests, used.tokens) == (2, 2, 10, 2000)


def test_names_cannot_carry_markup_into_pages(operator: Client) -> None:
    made = pool()
    made.version.model.name = "<script>alert(1)</script>"
    made.version.model.save()
    for page in ("/console/overview/", "/console/instances/"):
        text = operator.get(page).content.decode()
        assert "<script>alert" not in text
        assert "&lt;script&gt;alert(1)" in text


def test_pages_without_an_icon_of_their_own_get_ours(client: Client) -> None:
    assert client.get("/favicon.ico").headers["Location"].endswith("/img/mark.svg")


@pytest.mark.parametrize("page", ["/console/instances/", "/console/tenants/"])
@pytest.mark.parametrize("query", ["q=%00", "page=abc", "page=-1", "page=" + "9" * 5000, "state=%00", "q=%ED%A0%80"])
def test_no_address_breaks_a_list(operator: Client, page: str, query: str) -> None:
    assert operator.get(f"{page}?{query}").status_code == 200


def test_devices_beyond_the_limit_are_said_to_be_missing(operator: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    made = pool()
    assert re.search(r"data-cut\s+hidden>", operator.get("/console/overview/").content.decode())
    Device.objects.create(node=made.device.node, stable_id="GPU-2", kind="gpu", vendor="nvidia", name="H100", index=1)
    monkeypatch.setattr(frames, "DEVICE_LIMIT", 1)
    text = operator.get("/console/overview/").content.decode()
    assert "data-cut" in text
    assert not re.search(r"data-cut\s+hidden>", text)


def test_an_instance_without_a_place_is_stopped_in_other_words(operator: Client) -> None:
    made = pool(state="requested")
    Instance.objects.update(node=None)
    asked = operator.get(f"/console/instances/{made.instance.pk}/stop/").content.decode()
    assert "It has no place yet" in asked
    assert "the engine on" not in asked
