"""The pool's pages: who sees what, how many queries they take, and that read-only people change nothing."""

from uuid import uuid4

import pytest
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from bench.rows import attach
from gpupool.models import DeviceEvent, HealingAction, Instance, Node, XidRule
from gpupool.services.aliases import create_alias
from gpupool.services.reservations import create_reservation
from gpupool.services.traces import note_state
from tenants.actor import SYSTEM
from tenants.models import Grant
from tests.dashboard.people import Pool, person, pool, tenant
from tests.dashboard.tenancy_rows import text_of

pytestmark = pytest.mark.django_db


def _everything() -> dict[str, str]:
    """A pool with something of each kind; addresses of all pages that show it."""
    made: Pool = pool()
    acme = tenant("acme")
    note_state(made.instance, actor=SYSTEM)
    alias = create_alias(made.version.model_id, "qwen", actor=SYSTEM)
    reservation = create_reservation(acme.pk, devices=1, actor=SYSTEM)
    XidRule.objects.create(code=43, action="rebuild", note="here")
    node = made.device.node
    event = DeviceEvent.objects.create(
        node=node, device=made.device, boot_id="b", sequence=1, source="nvml", kind="xid", code=43, at=timezone.now()
    )
    HealingAction.objects.create(node=node, device=made.device, event=event, action="rebuild", reason="XID 43.")
    grant = Grant.objects.get()
    return {
        "instance": f"/console/instances/{made.instance.pk}/",
        "model": f"/console/models/{made.version.model_id}/",
        "version": f"/console/versions/{made.version.pk}/",
        "node": f"/console/nodes/{node.pk}/",
        "alias": f"/console/names/{alias.pk}/remove/",
        "reservation": f"/console/reservations/{reservation.pk}/",
        "grant": f"/console/models/{made.version.model_id}/grants/{grant.pk}/",
    }


LISTS = [
    "/console/instances/",
    "/console/models/",
    "/console/routing/",
    "/console/engines/",
    "/console/nodes/",
    "/console/reservations/",
    "/console/healing/",
    "/console/healing/actions/",
    "/console/healing/events/",
    "/console/training/",
]


def _changes(at: dict[str, str]) -> list[str]:
    """Every address that changes something."""
    return [
        "/console/instances/new/",
        "/console/nodes/new/",
        *(f"{at['node']}{verb}/" for verb in ("token", "token/revoke", "lost")),
        *(f"{at['instance']}{verb}/" for verb in ("stop", "sleep", "stage", "wake", "release")),
        "/console/models/new/",
        f"{at['model']}names/new/",
        f"{at['model']}grant/",
        f"{at['model']}versions/new/",
        at["grant"],
        at["alias"],
        *(f"{at['version']}{step}/" for step in ("card", "manifest", "admit", "switch", "replicas")),
        *(f"{at['version']}{step}/" for step in ("serve", "retire", "reopen")),
        "/console/reservations/new/",
        at["reservation"],
        f"{at['reservation']}end/",
        "/console/healing/rules/new/",
        "/console/healing/rules/43/",
        "/console/healing/rules/43/drop/",
        "/console/engines/vllm/off/",
    ]


@pytest.mark.parametrize("role", ["operator", "superuser"])
def test_every_platform_role_sees_every_page(client: Client, role: str) -> None:
    at = _everything()
    details = [at[name] for name in ("instance", "model", "version", "node")]
    client.force_login(person("olga", platform_role=role))
    for page in details if role == "superuser" else [*LISTS, *details]:  # a list shows nothing more to a superuser
        assert client.get(page).status_code == 200, page


def test_read_only_people_see_every_page_and_no_action_and_change_nothing(client: Client) -> None:
    at = _everything()
    client.force_login(person("rita", platform_role="read_only"))
    seen = {
        page: client.get(page) for page in [*LISTS, *(at[name] for name in ("instance", "model", "version", "node"))]
    }
    assert {page: answer.status_code for page, answer in seen.items() if answer.status_code != 200} == {}
    texts = {page: answer.content.decode() for page, answer in seen.items()}
    for address in _changes(at):
        assert client.get(address).status_code == 403, address
        assert client.post(address, {}).status_code == 403, address
        for page, text in texts.items():
            assert f'"{address}"' not in text, (page, address)


def test_operators_are_asked_first_everywhere(operator: Client) -> None:
    at = _everything()
    for address in _changes(at):
        response = operator.get(address)
        assert response.status_code == 200, address
        assert "csrfmiddlewaretoken" in response.content.decode(), address


def test_people_without_a_platform_role_are_refused(client: Client) -> None:
    at = _everything()
    client.force_login(person("eve"))
    for page in [*LISTS, at["instance"], f"{at['instance']}log/", at["model"], at["version"], *_changes(at)]:
        assert client.get(page).status_code == 403, page


def test_what_is_not_there_is_a_404(operator: Client) -> None:
    pages = ("instances/{}", "models/{}", "versions/{}", "nodes/{}", "reservations/{}/end", "names/{}/remove")
    for page in (*pages, "healing/rules/9999"):
        assert operator.get(f"/console/{page.format(uuid4())}/").status_code == 404, page


def _queries(client: Client, address: str) -> int:
    with CaptureQueriesContext(connection) as captured:
        assert client.get(address).status_code == 200
    return len(captured)


def test_a_page_takes_as_many_queries_whatever_its_length(operator: Client) -> None:
    at = _everything()
    pages = [*LISTS, at["instance"], at["model"], at["version"]]
    for page in pages:
        operator.get(page)
    before = {page: _queries(operator, page) for page in pages}
    made = Instance.objects.get()
    for number in range(12):
        Node.objects.create(name=f"more-{number}", state="online", token_digest=f"{number:064d}", token_last_four="d")
        Instance.objects.create(
            version=made.version, node=made.node, engine="vllm", state="ready", host="10.0.0.2", port=number + 1
        )
        note_state(made, actor=SYSTEM)
        create_alias(made.version.model_id, f"qwen-{number}", actor=SYSTEM)
        create_reservation(tenant(f"tenant-{number}").pk, devices=1, actor=SYSTEM)
    assert {page: _queries(operator, page) for page in pages} == before
    assert max(before.values()) <= 22, before


def test_no_address_breaks_a_list(operator: Client) -> None:
    queries = ("q=%00&sort=nope&count=exact", "after=abc&state=%00&kind=x", "node=x&q=%ED%A0%80")
    for page in LISTS:
        for query in queries:
            assert operator.get(f"{page}?{query}").status_code == 200, (page, query)


@pytest.mark.shows("U3")
def test_a_list_can_be_had_as_csv_and_sorted_by_what_its_head_offers(operator: Client) -> None:
    _everything()
    for page in ("instances", "models", "nodes", "reservations", "healing/actions", "healing/events", "training"):
        response = operator.get(f"/console/{page}/?format=csv")
        assert response["Content-Type"].startswith("text/csv")
        assert len(response.content.decode().splitlines()) >= (1 if page == "training" else 2), page
        for heading in operator.get(f"/console/{page}/").context["page"].headings:
            if heading.sort:
                assert operator.get(f"/console/{page}/?sort={heading.sort}").status_code == 200, heading
                other = f"-{heading.key}" if heading.sort == heading.key else heading.key
                sheet = operator.get(f"/console/{page}/?format=csv&sort={other}")
                assert sheet.getvalue(), heading  # read to its end: else nothing was asked for


def test_nothing_is_said_to_guard_an_instance_that_no_agent_watches(operator: Client) -> None:
    watched, attached = pool().instance, attach("qwen", 9)
    told = [text_of(operator.get(f"/console/instances/{one.pk}/")) for one in (watched, attached)]
    assert ["the memory guard is content" in text for text in told] == [True, False]
