"""What the pool's pages do: starting, admitting, granting, reading logs; and what they say where a service refuses."""

import re
from datetime import timedelta
from pathlib import Path

import pytest
from django.test import Client
from django.utils import timezone
from pytest_django import Settings

from core.telemetry import buckets
from dashboard.reads import models as reads
from dashboard.reads.instances import read_instance
from dashboard.reads.models import grants_of, read_routes
from dashboard.refusals import SENTENCES, said
from gpupool import services
from gpupool.admission_settings import AdmissionSettings
from gpupool.models import Device, EngineSwitch, Instance, InstanceLog, Model, ModelAlias, ModelVersion, Node, XidRule
from gpupool.policies.admission import Rule
from gpupool.services.traces import note_state
from tenants.actor import SYSTEM
from tenants.models import AuditEvent, Grant, ModelLatencyHour
from tenants.services import grant_model
from tests.dashboard.people import person, pool, tenant

pytestmark = pytest.mark.django_db
GIB = 1 << 30
ROOT = Path(__file__).resolve().parents[2]


def test_every_sentence_that_is_translated_is_one_that_a_service_says() -> None:
    """One that was worded anew would be shown in English from then on, and nobody would notice."""
    folders = ("gpupool", "tenants", "gateway", "core", "dashboard/services")
    files = [path for folder in folders for path in sorted((ROOT / folder).rglob("*.py"))]
    source = "".join(path.read_text() for path in [*files, ROOT / "dashboard" / "exporting.py"])
    joined = re.sub(r'"\s*\n\s*f?"', "", source)
    for sentence in SENTENCES:
        fixed = max(re.split(r"%\(\w+\)s", sentence), key=len).strip()
        assert fixed in joined, sentence


def test_a_refusal_is_recognised_with_its_values() -> None:
    assert said("There is a model 'qwen' already.") == "There is a model qwen already."
    assert said("Nobody has ever said this.") == "Nobody has ever said this."


def test_replicas_are_started_after_it_was_said_where_they_go(operator: Client) -> None:
    made = pool()
    ModelVersion.objects.update(memory_bytes=24 * GIB, replicas=1)
    asked = operator.get(f"/console/instances/new/answer/?version={made.version.pk}&replicas=5").content.decode()
    assert "2 of 4 more find a place now" in asked  # 56 GiB are left
    assert "The others wait" in asked
    fewer = operator.get(f"/console/instances/new/answer/?version={made.version.pk}&replicas=0").content.decode()
    assert "1 instance is drained and stopped" in fewer
    assert ModelVersion.objects.get().replicas == 1
    response = operator.post("/console/instances/new/", {"version": made.version.pk, "replicas": 3})
    assert response.headers["Location"] == f"/console/versions/{made.version.pk}/"
    assert ModelVersion.objects.get().replicas == 3
    assert AuditEvent.objects.filter(action="model_version.replicas_set", actor_kind="user").exists()


def test_an_instance_is_acquired_for_one_tenant_alone(operator: Client) -> None:
    made, acme = pool(), tenant("acme")
    response = operator.post("/console/instances/new/", {"version": made.version.pk, "tenant": acme.pk})
    own = Instance.objects.get(tenant_id=acme.pk)
    assert response.headers["Location"] == f"/console/instances/{own.pk}/"
    Model.objects.update(tenant_id=tenant("other").pk)
    refused = operator.post("/console/instances/new/", {"version": made.version.pk, "tenant": acme.pk})
    assert refused.status_code == 422
    assert "another tenant&#x27;s own" in refused.content.decode()


def test_a_draft_is_not_offered_to_be_started(operator: Client) -> None:
    pool()
    ModelVersion.objects.update(state="draft")
    assert "No version can be started" in operator.get("/console/instances/new/").content.decode()


def test_a_page_tells_how_long_each_state_lasted_and_what_memory_is_for() -> None:
    one = pool().instance
    begun = timezone.now()
    for state, after in (("requested", 0), ("loading", 4), ("ready", 34)):
        one.state = state
        note_state(one, actor=SYSTEM, at=begun + timedelta(seconds=after))
    Instance.objects.update(weights_bytes=8 * GIB, kv_capacity_bytes=10 * GIB, kv_used=0.5, device_bytes=20 * GIB)
    found = read_instance(one.pk)
    assert [(step.event.value, step.seconds) for step in found.steps] == [
        ("ready", None),
        ("loading", 30.0),
        ("requested", 4.0),
    ]
    assert found.memory == [
        ("weights", 8 * GIB),
        ("kv_used", 5 * GIB),
        ("kv_free", 5 * GIB),
        ("rest", 2 * GIB),
        ("unused", 4 * GIB),
    ]
    Instance.objects.update(weights_bytes=None, kv_capacity_bytes=None, device_bytes=None)
    assert read_instance(one.pk).memory == []  # unknown, and not all of it unused


def test_a_log_is_asked_for_by_reading_it_and_cannot_carry_markup(client: Client) -> None:
    one = pool().instance
    client.force_login(person("rita", platform_role="read_only"))
    address = f"/console/instances/{one.pk}/log/"
    assert "Its node is asked for it" in client.get(f"{address}?part=lines").content.decode()
    InstanceLog.objects.update(text="<script>alert(1)</script>", told_at=timezone.now())
    text = client.get(address).content.decode()
    assert "<script>alert" not in text
    assert "&lt;script&gt;alert(1)" in text
    Instance.objects.update(attached=True)
    assert "its log lies where it was started" in client.get(address).content.decode()


def test_what_an_instance_can_do_depends_on_what_it_does(operator: Client) -> None:
    one = pool().instance
    page = f"/console/instances/{one.pk}/"

    def verbs() -> list[str]:
        return [verb.name for verb in operator.get(page).context["verbs"]]

    assert verbs() == ["stage", "stop"]  # vLLM sleeps only where it was started for it
    operator.post(f"{page}stage/")
    assert Instance.objects.get().desire == "asleep"
    assert verbs() == ["wake", "stop"]
    operator.post(f"{page}wake/")
    Instance.objects.update(pooled=True, tenant_id=tenant("acme").pk)
    assert verbs() == ["release", "stop"]
    Instance.objects.update(node=None, state="requested")
    assert verbs() == ["stop"]
    operator.post(f"{page}stop/")
    assert verbs() == []
    told = operator.post(f"{page}sleep/", follow=True).content.decode()
    assert "It is stopped: only one that serves or is on its way can sleep." in told
    for late in (operator.get(f"{page}wake/", follow=True), operator.post(f"{page}stop/", follow=True)):
        assert "It was stopped. Start another in its place." in late.content.decode()  # and not that it is stopping


def test_of_a_node_that_is_away_no_question_promises_what_happens_now(operator: Client) -> None:
    one = pool(state="unknown").instance
    told = "node-1 is not connected: what its engine is to do, it does once the node is back."
    for verb in ("stop", "wake"):
        assert told not in operator.get(f"/console/instances/{one.pk}/{verb}/").content.decode()
    Node.objects.update(state="unreachable")
    for verb in ("stop", "sleep", "stage", "wake", "release"):
        assert told in operator.get(f"/console/instances/{one.pk}/{verb}/").content.decode(), verb


def test_all_that_an_admission_lacks_is_told_at_once(operator: Client, settings: Settings) -> None:
    settings.MODEL_ADMISSION = AdmissionSettings(Rule.REQUIRED)
    version = pool().version
    ModelVersion.objects.update(state="draft", card={"model": "other", "licence": ""})
    waits = operator.post(f"/console/versions/{version.pk}/admit/", {}).content.decode()
    assert "still run: wait until they ended" in waits
    Instance.objects.update(state="stopped")
    response = operator.post(f"/console/versions/{version.pk}/admit/", {})
    assert response.status_code == 422
    faults = response.context["faults"]
    assert faults[0].startswith("There is no manifest")
    assert {"The card is of the model other; this is qwen3-8b."} <= set(faults)
    assert len(faults) >= 4
    assert ModelVersion.objects.get().state == "draft"
    broken = operator.post(f"/console/versions/{version.pk}/admit/", {"sbom": "{"}).content.decode()
    assert "This is not JSON" in broken


def test_a_version_is_served_instead_of_another(operator: Client) -> None:
    made = pool()
    new = ModelVersion.objects.create(
        model=made.version.model, name="v2", engine="vllm", served_name="q", artefact_uri="file:///m", state="admitted"
    )
    address = f"/console/versions/{new.pk}/"
    assert "switch" in [step.name for step in operator.get(address).context["steps"]]
    refused = operator.post(f"{address}switch/", {"instead_of": made.version.pk})
    assert refused.status_code == 422
    assert "No instance of v2 is ready" in refused.content.decode()
    Instance.objects.create(version=new, engine="vllm", state="ready", host="10.0.0.3", port=1, node=made.instance.node)
    assert operator.post(f"{address}switch/", {"instead_of": made.version.pk}).status_code == 302
    assert dict(ModelVersion.objects.values_list("name", "state")) == {"v1": "retired", "v2": "serving"}


def test_a_version_is_made_with_its_faults_at_their_fields(operator: Client) -> None:
    made = pool()
    address = f"/console/models/{made.version.model_id}/versions/new/"
    given = {
        "name": "v1", "engine": "llamacpp", "artefact_uri": "file:///m.gguf", "device_kind": "cpu", "devices": 1,
        "memory_gib": "1.5", "topology": "any", "strategy": "spread", "priority": 0, "replicas": 0, "draft": "on",
    }  # fmt: skip
    twice = operator.post(address, given)
    assert twice.context["form"].errors["name"] == ["qwen3-8b has a version v1 already."]
    wrong = operator.post(address, given | {"name": "v2", "engine_args": '{"colour": 1}', "tenant_id": "nobody"})
    assert wrong.context["form"].errors["tenant_id"] == ["There is no such tenant."]
    wrong = operator.post(address, given | {"name": "v2", "engine_args": '{"colour": 1}'})
    assert "colour" in wrong.context["form"].errors["engine_args"][0]
    assert operator.post(address, given | {"name": "v2"}).status_code == 302
    new = ModelVersion.objects.get(name="v2")
    assert (new.state, new.memory_bytes, new.topology) == ("draft", 3 * GIB // 2, "any")


def test_a_card_is_edited_as_yaml_and_kept_though_it_is_not_complete(operator: Client) -> None:
    version = pool().version
    ModelVersion.objects.update(state="draft", memory_bytes=GIB)
    address = f"/console/versions/{version.pk}/card/"
    given = {"model": "qwen3-8b", "version": "1.10", "data_sets": [{"name": "a: b", "sha256": "x"}], "limitations": "y"}
    text = "model: qwen3-8b\nversion: 1.10\nlimitations: y\ndata_sets:\n  - name: 'a: b'\n    sha256: x\n"
    response = operator.post(address, {"card": text}, follow=True)
    assert "things in it are missing or wrong" in response.content.decode()
    assert ModelVersion.objects.get().card == given
    form = operator.get(address).context["form"]
    assert operator.post(address, {"card": form["card"].value()}).status_code == 302  # what it shows can be sent back
    assert ModelVersion.objects.get().card == given
    assert operator.post(address, {"card": "- a\n- b\n"}).status_code == 422
    for unfit in ('licence: "a\\0b"', 'licence: "\\ud800"'):  # YAML can say what no database holds
        refused = operator.post(address, {"card": unfit})
        assert refused.status_code == 422, unfit
        assert "a character that is no text" in refused.content.decode()


@pytest.mark.parametrize(
    "card",
    [
        {"base_models": 7, "data_sets": "abc", "licence": ["x"]},
        {"data_sets": [5, {"name": "<script>", "sampling_share": "1e999"}, {"name": {}, "sampling_share": "nan"}]},
    ],
)
def test_a_card_that_is_not_complete_does_not_break_the_page_it_is_mended_on(
    card: dict[str, object], operator: Client
) -> None:
    version = pool().version
    ModelVersion.objects.update(state="draft", card=card)
    text = operator.get(f"/console/versions/{version.pk}/").content.decode()
    assert f"/console/versions/{version.pk}/card/" in text
    assert '<span class="main"><script>' not in text
    assert operator.get(f"/console/versions/{version.pk}/card/").status_code == 200


def test_grants_are_found_by_their_patterns_as_relays_find_them() -> None:
    acme = tenant("acme")
    Grant.objects.all().delete()
    for pattern in ("qwen3-8b", "qwen*", "qwen3-?b", "[pq]wen3*", "*", "qwen3_8b", "llama*", "[xy]*", "QWEN*", "q%"):
        grant_model(acme, model_pattern=pattern, actor=SYSTEM)
    found = grants_of("qwen3-8b")
    assert found.rows[0].model_pattern == "qwen3-8b"
    assert {one.model_pattern for one in found.rows} == {"qwen3-8b", "qwen*", "qwen3-?b", "[pq]wen3*", "*"}


def test_a_private_model_is_granted_to_nobody_else(operator: Client) -> None:
    made, acme = pool(), tenant("acme")
    Model.objects.update(tenant_id=tenant("other").pk)
    Grant.objects.all().delete()
    response = operator.post(f"/console/models/{made.version.model_id}/grant/", {"tenant": acme.slug})
    assert response.status_code == 422
    assert not Grant.objects.exists()


def test_routing_says_why_an_endpoint_takes_nothing() -> None:
    made = pool()
    model = made.version.model
    (routes,) = read_routes([model])
    assert (routes.taking, routes.routes[0].why_not) == (1, "")
    for change, why in (
        ({"state": "loading"}, "state"),
        ({"state": "ready", "desire": "asleep"}, "wish"),
        ({"desire": "running", "host": ""}, "address"),
    ):
        Instance.objects.update(**change)
        assert read_routes([model])[0].routes[0].why_not == why
    Instance.objects.update(host="10.0.0.1", guard_cap=2, concurrency_cap=8)
    EngineSwitch.objects.create(name="vllm", enabled=False)
    (route,) = read_routes([model])[0].routes
    assert (route.why_not, route.cap) == ("engine", 2)
    ModelVersion.objects.update(state="admitted")
    assert read_routes([model])[0].routes[0].why_not == "version"


def test_of_many_endpoints_those_come_first_that_take_requests(monkeypatch: pytest.MonkeyPatch) -> None:
    made = pool(state="loading")
    monkeypatch.setattr(reads, "MOST_ROUTES", 2)
    for port in range(3):
        Instance.objects.create(version=made.version, engine="vllm", state="ready", host="10.0.0.2", port=port + 1)
    (routes,) = read_routes([made.version.model])
    assert (routes.taking, routes.total, [route.takes for route in routes.routes]) == (3, 4, [True, True])


@pytest.mark.shows("R123")
def test_engines_are_told_apart_by_batching_grain_and_measured_delay(operator: Client) -> None:
    version = pool().version
    places = [0] * (len(buckets.TPOT) + 1)
    places[buckets.TPOT.index(0.02)] = 100
    ModelLatencyHour.objects.create(
        model="qwen3-8b", version_id=version.pk, hour=timezone.now().replace(minute=0, second=0, microsecond=0),
        tpot=places, requests=100,
    )  # fmt: skip
    rows = {row.engine.name: row for row in operator.get("/console/engines/").context["rows"]}
    assert (rows["vllm"].engine.batching, rows["vllm"].engine.grain) == ("continuous", "process")
    assert (rows["llamacpp"].engine.batching, rows["ollama"].engine.grain) == ("slots", "shared")
    assert (rows["openai"].engine.batching, rows["openai"].engine.logprobs) == ("", None)  # unknown is not no
    delay = rows["vllm"].delay
    assert delay is not None
    assert 15 <= delay.median_ms <= 20
    assert rows["sglang"].delay is None
    text = operator.get("/console/engines/").content.decode()
    for shown in ("Continuous", "A process for each", "not measured", "Probabilities of tokens"):
        assert shown in text


def test_an_own_answer_takes_the_catalogues_place(operator: Client) -> None:
    operator.post("/console/healing/rules/79/", {"action": "isolate", "note": "Ours."})
    rows = {row["rule"].code: row for row in operator.get("/console/healing/").context["rows"]}
    assert (rows[79]["own"], rows[79]["instead_of"], rows[79]["does"]) == (
        True,
        "Drain and reboot the node",
        "Isolate and move",
    )
    event = AuditEvent.objects.get(action="xid_rule.set")
    assert event.actor_kind == "user"
    assert operator.post("/console/healing/rules/79/", {"action": "merge_48"}).status_code == 422
    operator.post("/console/healing/rules/79/drop/")
    assert not XidRule.objects.exists()


def test_an_alias_is_removed_after_it_was_said_what_follows(operator: Client) -> None:
    alias = services.create_alias(pool().version.model_id, "qwen", actor=SYSTEM)
    address = f"/console/names/{alias.pk}/remove/"
    assert "is told that there is no such model" in operator.get(address).content.decode()
    operator.post(address)
    assert not ModelAlias.objects.exists()


def test_nodes_are_counted_by_the_database_as_pages_showed_them(operator: Client) -> None:
    pool()
    Device.objects.create(
        node=Device.objects.get().node, stable_id="GPU-2", kind="gpu", vendor="nvidia", name="H100", index=1,
        memory_bytes=80 * GIB, health="ok",
    )  # fmt: skip
    (row,) = operator.get("/console/nodes/?sort=-reserved").context["rows"]
    node, gpus, memory, reserved, schedulable = row
    assert (node.gpus, node.memory, node.reserved, node.running) == (2, 160 * GIB, 24 * GIB, 1)
    assert (gpus, memory, reserved, schedulable) == (2, 160 * GIB, 24 * GIB, 136 * GIB)
    for query, shown in (("state=unreachable", 0), ("service=in", 1), ("simulated=yes", 0), ("q=NODE", 1)):
        assert len(operator.get(f"/console/nodes/?{query}").context["rows"]) == shown, query
