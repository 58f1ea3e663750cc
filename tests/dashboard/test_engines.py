"""The page of engines: what each can do, the switches, broken plugins, and attaching one by its address."""

from functools import partial

import pytest
from django.test import Client

from dashboard import reasons
from dashboard.views.console import engines as page
from gpupool import services
from gpupool.controller.prober import probe
from gpupool.engines.plugins import BrokenPlugin
from gpupool.models import EngineSwitch, Instance, InstanceState
from gpupool.selectors import EngineOverview, list_engines
from tenants.actor import SYSTEM
from tenants.models import AuditEvent
from tests.dashboard.people import person, pool
from tests.gpupool.engine_stub import EngineStub
from tests.waiting import DEADLINE_SECONDS

pytestmark = pytest.mark.django_db

ATTACH = "/console/instances/attach/"


def _form(**changes: str) -> dict[str, str]:
    return {"url": "http://127.0.0.1:9", "engine": "vllm", "model": "llama", **changes}


def test_every_engine_has_a_row_and_each_capability_a_column(operator: Client) -> None:
    context = operator.get("/console/engines/").context
    assert [row.engine.name for row in context["rows"]] == [engine.name for engine in list_engines()]
    (found,) = [row for row in context["rows"] if row.engine.name == "openai"]
    marks = dict(zip(context["columns"], found.marks, strict=True))
    assert (marks["Chat"], marks["Embeddings"], marks["Sleep"], marks["Start"]) == (True, True, False, False)
    text = operator.get("/console/engines/").content.decode()
    assert '<span class="sr">yes</span>' in text
    assert '<span class="sr">no</span>' in text


def test_a_plugins_own_capability_becomes_a_column(operator: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    warp = EngineOverview("warp", "Warp", "warp-drive", "warp", ">=9", ("chat", "telepathy"), False, True, 0, 0)
    monkeypatch.setattr(page, "list_engines", lambda: [*list_engines(), warp])
    response = operator.get("/console/engines/")
    assert response.context["columns"][-1] == "telepathy"
    assert "warp-drive" in response.content.decode()


def test_broken_plugins_are_named_with_their_reason(operator: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "could not be loaded" not in operator.get("/console/engines/").content.decode()
    broken = BrokenPlugin("warp", "warp-drive", "warp_room:ROOM cannot be imported: <no such thing>.")
    monkeypatch.setattr(page, "broken_plugins", lambda: (broken,))
    text = operator.get("/console/engines/").content.decode()
    for shown in ("could not be loaded", "warp-drive", "cannot be imported: &lt;no such thing&gt;."):
        assert shown in text
    monkeypatch.setattr(reasons, "gettext", lambda text: f"≈{text}")
    assert "≈warp_room:ROOM cannot be imported" in operator.get("/console/engines/").content.decode()


def test_an_engine_is_switched_off_after_being_told_what_happens(operator: Client) -> None:
    pool()
    address = "/console/engines/vllm/off/"
    asked = operator.get(address).content.decode()
    assert "1 instance leaves the routing within a second" in asked
    assert "No other engine serves qwen3-8b" in asked
    assert not EngineSwitch.objects.exists()
    done = operator.post(address, follow=True)
    assert done.redirect_chain == [("/console/engines/", 302)]
    assert "vLLM is switched off." in done.content.decode()
    assert AuditEvent.objects.get(action="engine.disabled").actor_kind == "user"
    (row,) = operator.get("/console/instances/").context["rows"]
    assert (row.state, row.reason) == ("ready", "The engine vLLM is switched off.")
    asked = operator.get("/console/engines/vllm/on/").content.decode()
    assert "1 instance comes back into the routing" in asked
    operator.post("/console/engines/vllm/on/")
    assert not EngineSwitch.objects.filter(enabled=False).exists()


def test_a_model_that_another_engine_serves_too_is_not_said_to_be_lost(operator: Client) -> None:
    made = pool()
    version = services.create_version(made.version.model, name="v2", engine="openai", actor=SYSTEM)
    Instance.objects.create(
        version=version, engine="openai", attached=True, state="ready", host="10.0.0.2", port=80, desire="running"
    )
    assert "No other engine serves" not in operator.get("/console/engines/vllm/off/").content.decode()


def test_read_only_people_look_and_switch_nothing(client: Client) -> None:
    client.force_login(person("rita", platform_role="read_only"))
    text = client.get("/console/engines/").content.decode()
    assert "Switch off" not in text
    assert ATTACH not in text + client.get("/console/instances/").content.decode()
    for address in ("/console/engines/vllm/off/", ATTACH):
        assert client.get(address).status_code == 403
        assert client.post(address, _form()).status_code == 403
    assert not EngineSwitch.objects.exists()
    assert not Instance.objects.exists()


@pytest.mark.parametrize("address", ["/console/engines/warp/off/", "/console/engines/vllm/maybe/"])
def test_what_is_not_there_cannot_be_switched(operator: Client, address: str) -> None:
    assert operator.get(address).status_code == 404
    assert operator.post(address).status_code == 404


@pytest.fixture
def _patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """An answer is late after three seconds, and none after four: what a machine may stall."""
    monkeypatch.setattr("gpupool.controller.prober.SLOW_SECONDS", DEADLINE_SECONDS)
    monkeypatch.setattr("dashboard.views.console.attach.probe", partial(probe, deadline_seconds=DEADLINE_SECONDS))


@pytest.mark.usefixtures("_patient")
def test_an_engine_that_answers_is_attached_and_takes_requests(operator: Client) -> None:
    assert f'href="{ATTACH}"' in operator.get("/console/instances/").content.decode()
    with EngineStub("meta/llama") as engine:
        answer = operator.post(ATTACH, _form(url=engine.url, served_name="meta/llama", slots="8"))
    assert answer.status_code == 200
    assert "It answers and serves meta/llama" in answer.content.decode()
    instance = Instance.objects.get()
    assert (instance.state, instance.slots, instance.reason) == (InstanceState.READY, 8, "")
    assert AuditEvent.objects.get(action="instance.attached").actor_kind == "user"


@pytest.mark.usefixtures("_patient")
@pytest.mark.parametrize(
    ("changes", "told"), [({}, "It does not answer"), ({"model": "other"}, "It serves llama, not other.")]
)
def test_an_engine_that_cannot_serve_yet_is_attached_and_the_reason_shown(
    operator: Client, changes: dict[str, str], told: str
) -> None:
    with EngineStub("llama") as engine:
        answer = operator.post(ATTACH, _form(**({"url": engine.url} if changes else {}), **changes))
    text = answer.content.decode()
    assert "It takes no requests yet." in text
    assert told in text
    assert Instance.objects.get().state == InstanceState.WARMING


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"url": "ftp://host"}, "url"),
        ({"url": ""}, "url"),
        ({"url": "x" * 501}, "url"),
        ({"engine": "warp"}, "engine"),
        ({"model": "a*"}, "model"),
        ({"model": ""}, "model"),
        ({"served_name": "n" * 201}, "served_name"),
        ({"credential_variable": "DATABASE_URL"}, "credential_variable"),
        ({"slots": "0"}, "slots"),
        ({"slots": "many"}, "slots"),
        ({"url": "http://host/\x00"}, "url"),
    ],
)
def test_what_cannot_be_is_said_at_its_field_and_nothing_typed_is_lost(
    operator: Client, changes: dict[str, str], field: str
) -> None:
    typed = _form(served_name="kept-name", slots="7", credential_variable="GATEHOUSE_ENGINE_KEY_KEPT") | changes
    answer = operator.post(ATTACH, typed)
    assert answer.status_code == 422
    form = answer.context["form"]
    assert list(form.errors) == [field]
    text = answer.content.decode()
    assert f'id="id_{field}_error"' in text
    for name in typed:
        assert form[name].value() == typed[name]
    assert not Instance.objects.exists()


def test_an_engine_that_is_off_cannot_be_chosen(operator: Client) -> None:
    services.set_engine_enabled("vllm", False, actor=SYSTEM)
    assert 'value="vllm"' not in operator.get(ATTACH).content.decode()
    answer = operator.post(ATTACH, _form())
    assert (answer.status_code, list(answer.context["form"].errors)) == (422, ["engine"])
