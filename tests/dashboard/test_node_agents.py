"""Nodes on the console: added, their agents let in and shut out by tokens told once, given up when they are gone."""

import re
from collections.abc import Callable
from dataclasses import replace
from http import HTTPStatus
from uuid import UUID, uuid4

import pytest
from django.test import Client
from pytest_django import Settings

from dashboard.views.console import node_agents
from dashboard.views.console.nodes import find_node
from gpupool import services
from gpupool.models import Instance, Lease, Node
from gpupool.services import authenticate_node
from tenants.actor import SYSTEM
from tenants.models import AuditEvent
from tests.dashboard.people import person, pool
from tests.dashboard.tenancy_rows import text_of
from tests.gpupool.pool import a_hello, an_online_node

pytestmark = pytest.mark.django_db

HTMX = {"HX-Request": "true"}


def token_in(text: str) -> str:
    (token,) = {found.group() for found in re.finditer(r"gn-[\w-]{40,}", text)}
    return token


def seen_in(asked: str) -> dict[str, str]:
    """What a dialog about a token posts: which one it showed."""
    (mark,) = re.findall(r'name="seen" value="([^"]+)"', asked)
    return {"seen": mark}


def nowhere(browser: Client, token: str, node: Node) -> bool:
    """Whether neither a page nor a row holds the token."""
    pages = ("/console/nodes/", f"/console/nodes/{node.pk}/", f"/console/nodes/{node.pk}/token/", "/console/audit/")
    rows = [str(list(model.objects.values())) for model in (AuditEvent, Node)]
    return not any(token in text for text in (*(text_of(browser.get(page)) for page in pages), *rows))


def offers_to_give_up(browser: Client, page: str) -> bool:
    """Whether the page shows it now: the button is always there, and follows the node's state as it changes."""
    (button,) = re.findall(r'<a [^>]*data-show="state=unreachable"[^>]*>', browser.get(page).content.decode())
    assert f'href="{page}lost/"' in button
    return "hidden" not in button


def silent_node() -> Node:
    node = pool().device.node
    services.mark_node_unreachable(node.pk, reason="silent", actor=SYSTEM)
    Instance.objects.update(state="unknown")
    return Node.objects.get()


def test_a_node_is_added_and_the_token_of_its_agent_is_shown_once(operator: Client, settings: Settings) -> None:
    settings.GATEHOUSE = replace(settings.GATEHOUSE, web_url="https://gate.example.com/")
    answer = operator.post("/console/nodes/new/", {"name": "gpu-01"}, headers=HTMX)
    text, node = text_of(answer), Node.objects.get()
    token = token_in(text)
    assert (answer.status_code, authenticate_node(token)) == (HTTPStatus.OK, node)
    assert "no-store" in answer["Cache-Control"]
    assert f'value="{token}"' in text
    assert (
        f"GATEHOUSE_NODE_TOKEN={token} \\\nGATEHOUSE_WEB_URL=https://gate.example.com \\\n"
        "  manage.py agent --node gpu-01</code>"
    ) in answer.content.decode()
    assert "GATEHOUSE_WEB_URL is not set here" not in text
    assert nowhere(operator, token, node)
    audited = AuditEvent.objects.get(action="node.created")
    assert (audited.actor_kind, audited.after) == ("user", {"name": "gpu-01"})


def test_who_has_no_address_set_is_told_that_the_one_in_the_command_may_be_another(
    operator: Client, settings: Settings
) -> None:
    settings.GATEHOUSE = replace(settings.GATEHOUSE, web_url=None, web_host="127.0.0.1", web_port=8123)
    text = text_of(operator.post("/console/nodes/new/", {"name": "gpu-01"}))
    assert "GATEHOUSE_WEB_URL=http://127.0.0.1:8123" in text
    assert "GATEHOUSE_WEB_URL is not set here" in text


@pytest.mark.parametrize(
    ("name", "refusal"),
    [
        ("node-1", "There is a node node-1 already."),
        ("gpu 01", "A node&#x27;s name has letters, digits, dots, dashes and underscores, at most 120."),
        ("", "This field is required."),
        ("x" * 121, "at most 120 characters"),
    ],
)
def test_a_name_that_cannot_be_is_refused_at_its_field_and_kept(operator: Client, name: str, refusal: str) -> None:
    pool()
    answer = operator.post("/console/nodes/new/", {"name": name}, headers=HTMX)
    text = answer.content.decode()
    assert answer.status_code == HTTPStatus.UNPROCESSABLE_ENTITY
    assert refusal in text.split('class="error"')[1]
    assert not name or f'value="{name}"' in text
    assert Node.objects.count() == 1


def test_a_new_token_is_shown_once_and_the_one_before_is_refused(operator: Client) -> None:
    old = services.create_node("gpu-01", actor=SYSTEM)
    Node.objects.update(session_id=uuid4())
    address = f"/console/nodes/{old.node.pk}/token/"
    asked = text_of(operator.get(address))
    assert f"The token that ends with {old.node.token_last_four} is refused from then on" in asked
    assert authenticate_node(old.token) is not None  # nothing happens by being asked
    new = token_in(text_of(operator.post(address, seen_in(asked), headers=HTMX)))
    assert (authenticate_node(old.token), authenticate_node(new)) == (None, old.node)
    assert Node.objects.get().session_id is None  # the stream that the old one opened ends
    assert nowhere(operator, new, old.node)
    assert AuditEvent.objects.get(action="node.token_rotated").actor_kind == "user"


@pytest.mark.parametrize("deed", ["token", "token/revoke"])
def test_who_takes_an_agent_away_is_told_which_of_its_engines_go_on_getting_requests(
    operator: Client, settings: Settings, deed: str
) -> None:
    settings.GATEHOUSE = replace(settings.GATEHOUSE, node_unreachable_seconds=45.0)
    node = services.create_node("gpu-01", actor=SYSTEM).node
    asked = text_of(operator.get(f"/console/nodes/{node.pk}/{deed}/"))
    assert "ngines run on" in asked
    assert "for 45 s, only instances that are ready and that the controller reaches at their addresses" in asked
    assert "replicas start elsewhere when that has lasted 45 s" in asked


def test_a_revoked_token_is_refused_until_there_is_a_new_one(operator: Client) -> None:
    made = services.create_node("gpu-01", actor=SYSTEM)
    node = f"/console/nodes/{made.node.pk}/"
    assert f'"{node}token/revoke/"' in operator.get(node).content.decode()
    asked = text_of(operator.get(f"{node}token/revoke/"))
    assert f"The token that ends with {made.node.token_last_four} is refused from then on" in asked
    done = operator.post(f"{node}token/revoke/", seen_in(asked), headers=HTMX)
    assert (done.status_code, done.headers.get("HX-Redirect")) == (HTTPStatus.OK, node)
    assert authenticate_node(made.token) is None
    page = operator.get(node).content.decode()
    assert "its agent is refused" in page
    assert f'"{node}token/revoke/"' not in page
    asked = text_of(operator.get(f"{node}token/"))
    assert "The revoked one stays refused." in asked
    token = token_in(text_of(operator.post(f"{node}token/", seen_in(asked))))
    assert authenticate_node(token) == made.node
    actions = AuditEvent.objects.filter(action__startswith="node.token").order_by("pk").values_list("action", flat=True)
    assert [*actions] == ["node.token_revoked", "node.token_rotated"]


@pytest.mark.parametrize("deed", ["token", "token/revoke"])
@pytest.mark.parametrize("meanwhile", [services.rotate_node_token, services.revoke_node_token])
@pytest.mark.parametrize("when", ["before it is posted", "while it is posted"])
def test_nothing_is_done_to_a_token_that_is_not_the_one_that_was_shown(
    operator: Client, monkeypatch: pytest.MonkeyPatch, deed: str, meanwhile: Callable[..., object], when: str
) -> None:
    node = services.create_node("gpu-01", actor=SYSTEM).node
    address = f"/console/nodes/{node.pk}/{deed}/"
    asked = seen_in(text_of(operator.get(address)))
    if when == "while it is posted":

        def find(node_id: UUID) -> Node:
            read = find_node(node_id)
            if not AuditEvent.objects.filter(action__startswith="node.token").exists():
                meanwhile(node_id, actor=SYSTEM)
            return read

        monkeypatch.setattr(node_agents, "find_node", find)
    else:
        meanwhile(node.pk, actor=SYSTEM)
    refused = operator.post(address, asked, headers=HTMX)
    (other,) = Node.objects.all()
    assert refused.status_code == HTTPStatus.UNPROCESSABLE_ENTITY
    assert "The token was changed or revoked meanwhile." in text_of(refused)
    assert seen_in(text_of(refused)) == {"seen": other.token_mark} != asked  # asked about anew
    assert AuditEvent.objects.filter(action__startswith="node.token").count() == 1
    assert operator.post(address, headers=HTMX).status_code == HTTPStatus.UNPROCESSABLE_ENTITY  # which one, is not said
    assert Node.objects.get().token_mark == other.token_mark


def test_a_silent_node_is_declared_lost_after_it_was_said_what_is_freed(operator: Client) -> None:
    node = silent_node()
    page, address = f"/console/nodes/{node.pk}/", f"/console/nodes/{node.pk}/lost/"
    assert offers_to_give_up(operator, page)
    asked = text_of(operator.get(address))
    assert "1 instance on it ends" in asked
    assert "its claims on 24.0 GiB of memory are free" in asked
    assert "is likely not off" not in asked
    assert "its token is still good" in asked
    done = operator.post(address, headers=HTMX)
    assert (done.status_code, done.headers.get("HX-Redirect")) == (HTTPStatus.OK, page)
    assert (Instance.objects.get().state, Lease.objects.filter(released_at=None).count()) == ("stopped", 0)
    assert Node.objects.get().state == "expected"
    assert AuditEvent.objects.get(action="node.declared_lost").actor_kind == "user"
    assert not offers_to_give_up(operator, page)


def test_who_would_give_up_a_node_is_told_that_what_runs_there_answers(operator: Client) -> None:
    node = silent_node()
    Instance.objects.update(state="ready")  # its engine answered when it was asked
    address = f"/console/nodes/{node.pk}/lost/"
    asked = text_of(operator.get(address))
    assert "1 instance on it is ready: it was reached and serves, so the machine is likely not off." in asked
    services.revoke_node_token(node.pk, actor=SYSTEM)
    assert "Its token is revoked: they are told to stop once" in text_of(operator.get(address))


def test_a_connected_node_is_not_given_up(operator: Client) -> None:
    node = pool().device.node
    address = f"/console/nodes/{node.pk}/lost/"
    assert not offers_to_give_up(operator, f"/console/nodes/{node.pk}/")
    refused = operator.post(address, headers=HTMX)
    assert refused.status_code == HTTPStatus.UNPROCESSABLE_ENTITY
    assert "Node node-1 is connected; stop its agent first." in text_of(refused)
    assert (Instance.objects.get().state, Lease.objects.filter(released_at=None).count()) == ("ready", 1)


def test_a_node_that_connects_while_it_is_asked_about_is_not_given_up(operator: Client) -> None:
    node = an_online_node(name="gpu-02")
    services.mark_node_unreachable(node.pk, reason="silent", actor=SYSTEM)
    address = f"/console/nodes/{node.pk}/lost/"
    assert "You vouch that the machine is off" in text_of(operator.get(address))
    back = services.apply_hello(node.pk, a_hello("gpu-02"))
    refused = operator.post(address, headers=HTMX)
    assert refused.status_code == HTTPStatus.UNPROCESSABLE_ENTITY
    assert "Node gpu-02 is connected; stop its agent first." in text_of(refused)
    assert (Node.objects.get().state, Node.objects.get().session_id) == ("online", back.session_id)
    assert not AuditEvent.objects.filter(action="node.declared_lost").exists()


def test_a_made_up_node_has_no_token_to_be_changed_by_hand(operator: Client) -> None:
    node = silent_node()
    Node.objects.update(simulated=True)
    page = operator.get(f"/console/nodes/{node.pk}/").content.decode()
    assert [f'"/console/nodes/{node.pk}/{verb}/"' in page for verb in ("token", "token/revoke", "lost")] == [
        False,
        False,
        True,
    ]
    for verb in ("token", "token/revoke"):
        assert operator.post(f"/console/nodes/{node.pk}/{verb}/").status_code == HTTPStatus.NOT_FOUND
    assert Node.objects.get().token_revoked_at is None


def test_a_pool_without_nodes_offers_to_add_one_or_says_whom_to_ask(operator: Client) -> None:
    assert operator.get("/console/nodes/").content.decode().count('href="/console/nodes/new/"') == 2
    reader = Client()
    reader.force_login(person("rita", platform_role="read_only"))
    page = reader.get("/console/nodes/").content.decode()
    assert "Operators and superusers add nodes: ask one of them." in page
    assert "/console/nodes/new/" not in page


def test_a_node_that_never_connected_offers_a_token_in_place_of_one_that_was_not_kept(operator: Client) -> None:
    node = services.create_node("gpu-01", actor=SYSTEM).node
    assert operator.get(f"/console/nodes/{node.pk}/").content.decode().count(f'"/console/nodes/{node.pk}/token/"') == 3
