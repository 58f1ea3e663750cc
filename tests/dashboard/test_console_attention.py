"""The console's overview: what needs attention first, each line with where it leads."""

import os
from collections.abc import Callable
from datetime import timedelta

import pytest
import redis
from django.core.cache import cache
from django.db import ProgrammingError
from django.test import Client
from django.utils import timezone

from core.tasks import BATCH_MARK, mark_batch
from dashboard.attention import Item
from dashboard.reads import attention, health
from dashboard.reads.health import LeaseStore, Schema, Valkey
from gateway.models import Objective, ObjectiveAlert, Silence
from gpupool.models import Device, EngineSwitch, Instance, Model, ModelVersion, Node
from tenants.actor import SYSTEM
from tenants.models import (
    ModelLatencyMinute,
    TenantRole,
    User,
    Webhook,
    Window,
)
from tenants.services import create_tenant, grant_model
from tenants.services.limits import change_limit
from tenants.services.webhooks import change_webhook, disable_failing_webhook
from tests.dashboard.people import pool, tenant
from tests.dashboard.tenancy_rows import asked_by, limit, text_of

pytestmark = pytest.mark.django_db


@pytest.fixture
def listed(operator: Client) -> Callable[[], dict[str, Item]]:
    """What the overview says now, by its kind."""
    return lambda: {item.kind: item for item in operator.get("/console/overview/attention/").context["attention"]}


def test_the_overview_puts_the_worst_first_and_each_line_leads_somewhere(operator: Client) -> None:
    acme = tenant("acme", ada=TenantRole.OWNER)
    made = pool(state="failed")
    Node.objects.create(name="node-2", state="unreachable", token_digest="e" * 64, token_last_four="eeee")
    Device.objects.update(health="failed")
    limit(acme)
    asked_by(acme, User.objects.get(email="ada@example.com"))
    items = operator.get("/console/overview/").context["attention"]
    kinds = [item.kind for item in items]
    assert kinds == sorted(kinds, key=kinds.index)
    assert kinds[-1] == "approval_waits"
    assert {"node_unreachable", "instance_failed", "device_failed", "approval_waits"} <= set(kinds)
    assert kinds.index("node_unreachable") < kinds.index("approval_waits")
    for item in items:
        assert operator.get(item.href).status_code == 200, item
    assert any(made.version.model.name in item.text for item in items)
    assert "node-2" in text_of(operator.get("/console/overview/attention/"))


def test_budgets_that_tenants_were_told_of_stand_on_the_overview(operator: Client) -> None:
    from tenants.services.alerts import tell_budget

    acme = tenant("acme")
    budget = limit(acme, window=Window.MONTH, alert_shares=[80, 100])
    tell_budget(budget, used=850, now=timezone.now())
    (item,) = [one for one in operator.get("/console/overview/").context["attention"] if "budget" in one.kind]
    assert (item.kind, "Acme" in item.text) == ("budget_near", True)
    tell_budget(budget, used=1_000, now=timezone.now())
    (item,) = [one for one in operator.get("/console/overview/").context["attention"] if "budget" in one.kind]
    assert item.kind == "budget_spent"
    change_limit(budget.pk, amount=5_000, actor=SYSTEM)
    shown = operator.get("/console/overview/").context["attention"]
    assert not [one for one in shown if "budget" in one.kind]  # what was told is of an amount that holds no more


def test_many_nodes_in_maintenance_do_not_hide_those_that_are_away(operator: Client) -> None:
    Node.objects.bulk_create(
        Node(name=f"a{n:03}", maintenance=True, token_digest=f"{n:064}", token_last_four="eeee") for n in range(205)
    )
    Node.objects.create(name="z", state="unreachable", token_digest="e" * 64, token_last_four="eeee")
    items = {item.kind: item.text for item in operator.get("/console/overview/attention/").context["attention"]}
    assert items["node_unreachable"].startswith("1 node is unreachable: z.")
    assert items["node_in_maintenance"].startswith("205 nodes")


def test_a_line_about_one_thing_leads_to_that_thing(listed: Callable[[], dict[str, Item]]) -> None:
    acme = tenant("acme", ada=TenantRole.OWNER)
    made = pool(state="failed")
    Device.objects.update(health="failed")
    Node.objects.update(state="unreachable", maintenance=True)
    asked = asked_by(acme, User.objects.get(email="ada@example.com"))
    items = listed()
    node = f"/console/nodes/{made.device.node_id}/"
    for kind in ("node_unreachable", "node_in_maintenance", "device_failed"):
        assert items[kind].href == node
    assert items["instance_failed"].href == f"/console/instances/{made.instance.pk}/"
    assert items["model_unserved"].href == f"/console/models/{made.version.model_id}/"
    assert items["approval_waits"].href == f"/console/approvals/{asked.pk}/"
    Instance.objects.create(version=made.version, engine="vllm", state="failed")
    assert listed()["instance_failed"].href == "/console/instances/?state=failed"


def test_a_webhook_of_the_platforms_that_failed_is_named_by_its_host_and_leads_to_its_page(
    listed: Callable[[], dict[str, Item]],
) -> None:
    def failed(url: str) -> Webhook:
        made = Webhook.objects.create(url=url)
        disable_failing_webhook(made.pk, reason="It answered 410.", now=timezone.now())
        return made

    by_hand = Webhook.objects.create(url="https://quiet.example.com/")
    change_webhook(by_hand.pk, enabled=False, actor=SYSTEM)
    Webhook.objects.create(tenant=tenant("acme"), url="https://acme.example.com/", enabled=False, disabled_reason="x")
    assert "webhook_disabled" not in listed()  # who switched it off knows, and a tenant is told of its own
    first = failed("https://hooks.example.com/a-token")
    item = listed()["webhook_disabled"]
    assert item.text == (
        "1 of the platform's webhooks was disabled, since nothing could be delivered: hooks.example.com."
    )
    assert item.href == f"/console/settings/webhooks/{first.pk}/"
    failed("https://other.example.com/")
    item = listed()["webhook_disabled"]
    assert item.text.endswith(": hooks.example.com, other.example.com.")
    assert item.href == "/console/settings/#webhooks"


@pytest.mark.parametrize(
    ("state", "desire", "replicas", "minutes", "kinds"),
    [
        ("ready", "running", 1, 0, set()),
        ("loading", "running", 1, 1, set()),
        ("loading", "running", 1, 60, {"model_unserved"}),  # a load that takes so long has got stuck
        ("asleep", "running", 0, 0, {"model_unserved"}),  # it was to wake
        ("asleep", "asleep", 0, 0, set()),
        ("asleep", "asleep", 1, 0, set()),  # somebody put it to sleep
        ("requested", "running", 1, 0, {"model_unserved"}),
        ("requested", "running", 1, 5, {"model_unserved", "instance_waits"}),
        ("requested", "running", 0, 5, {"model_unserved", "instance_waits"}),
        ("stopped", "stopped", 0, 0, set()),  # a version that tenants acquire instances of, or nobody wants any of
        ("stopped", "stopped", 1, 0, {"model_unserved"}),
    ],
)
def test_a_model_that_tenants_may_call_and_that_should_be_served_and_is_not_is_pointed_out(
    listed: Callable[[], dict[str, Item]], state: str, desire: str, replicas: int, minutes: int, kinds: set[str]
) -> None:
    tenant("acme")
    made = pool(state=state)
    ModelVersion.objects.update(replicas=replicas)
    then = timezone.now() - timedelta(minutes=minutes)
    Instance.objects.update(desire=desire, state_changed_at=then, created_at=then - timedelta(hours=1))
    found = {kind: item for kind, item in listed().items() if kind in ("model_unserved", "instance_waits")}
    assert set(found) == kinds
    assert all(made.version.model.name in item.text for item in found.values())


def test_what_is_one_tenants_own_neither_serves_everybody_nor_is_missed_by_them(
    listed: Callable[[], dict[str, Item]],
) -> None:
    acme = tenant("acme")
    made = pool(state="failed")
    Instance.objects.update(tenant_id=acme.pk, pooled=True)  # acquired, and failed
    assert "model_unserved" not in listed()
    Instance.objects.update(state="ready")
    ModelVersion.objects.update(replicas=1)
    assert listed()["model_unserved"].href == f"/console/models/{made.version.model_id}/"
    Instance.objects.update(state="failed", tenant_id=None, pooled=False)
    ModelVersion.objects.update(tenant_id=acme.pk)
    assert "model_unserved" not in listed()


@pytest.mark.parametrize("pattern", ["qwen3-8b", "qwen*"])
def test_many_models_that_nobody_may_call_do_not_hide_one_that_is_called(
    listed: Callable[[], dict[str, Item]], pattern: str
) -> None:
    acme = create_tenant(slug="acme", name="Acme", actor=SYSTEM)
    grant_model(acme, model_pattern=pattern, actor=SYSTEM)
    pool(state="failed")
    models = Model.objects.bulk_create(Model(name=f"a{number:03}") for number in range(205))
    ModelVersion.objects.bulk_create(
        ModelVersion(model=model, name="v1", engine="vllm", served_name="a", state="serving", replicas=1)
        for model in models
    )
    assert listed()["model_unserved"].text.endswith(": qwen3-8b.")


def test_a_model_that_is_only_there_by_an_engine_that_is_switched_off_is_unserved(
    listed: Callable[[], dict[str, Item]],
) -> None:
    pool()
    EngineSwitch.objects.create(name="vllm", enabled=False)
    assert "model_unserved" not in listed()  # nobody may call it
    tenant("acme")
    assert {"model_unserved", "engine_off"} <= set(listed())


def test_what_is_silenced_or_taken_in_hand_is_no_alert_of_the_overview(
    listed: Callable[[], dict[str, Item]],
) -> None:
    objective = Objective.objects.create(name="fast", kind="availability", target=0.99)
    alert = ObjectiveAlert.objects.create(
        objective=objective, pair="1h-5m", severity="page", long_burn=20, short_burn=20
    )
    assert listed()["alert"].href == f"/console/slo/{objective.pk}/"
    now = timezone.now()
    silence = Silence.objects.create(objective=objective, reason="A drill.", ends_at=now + timedelta(hours=1))
    assert "alert" not in listed()
    Silence.objects.filter(pk=silence.pk).update(starts_at=now - timedelta(hours=2), ends_at=now - timedelta(hours=1))
    assert "alert" in listed()
    ObjectiveAlert.objects.filter(pk=alert.pk).update(acknowledged_at=now)
    assert "alert" not in listed()


@pytest.mark.parametrize(("holder", "kind"), [(None, "leases_away"), ("", "controller_away"), ("c:1", "")])
def test_a_lease_store_that_does_not_answer_is_no_controller_that_leads(
    listed: Callable[[], dict[str, Item]], monkeypatch: pytest.MonkeyPatch, holder: str | None, kind: str
) -> None:
    monkeypatch.setattr(
        health,
        "read_lease_store",
        lambda names: LeaseStore("etcd", None, [health.Leader(name, holder) for name in names]),
    )
    assert {one for one in listed() if one in ("leases_away", "controller_away")} == ({kind} - {""})


def test_batch_work_that_stopped_long_ago_is_still_told(valkey_url: str) -> None:
    mark_batch()
    later = timezone.now() + timedelta(days=3)
    kinds = {finding.kind for finding in attention.find_all(later) if finding.count}
    assert "batch_silent" in kinds
    with redis.Redis.from_url(os.environ["VALKEY_SCRATCH_URL"]) as client:
        assert client.ttl(cache.make_key(BATCH_MARK)) == -1  # it stays: the silence must not fall silent after a while


def test_batch_work_that_nobody_has_ever_heard_of_is_told_once_the_process_runs_for_a_while(
    listed: Callable[[], dict[str, Item]], valkey_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(health, "read_run_seconds", lambda now: 119.0)
    assert "batch_unheard" not in listed()
    monkeypatch.setattr(health, "read_run_seconds", lambda now: 120.0)
    assert listed()["batch_unheard"].href == "/console/health/"


def test_a_word_that_cannot_be_read_is_not_said_to_be_missing(
    operator: Client, listed: Callable[[], dict[str, Item]], valkey_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Away:
        def get(self, _key: str) -> None:
            raise redis.ConnectionError

    monkeypatch.setattr(health, "read_run_seconds", lambda now: 120.0)
    monkeypatch.setattr(health, "cache", Away())
    assert "batch_unheard" not in listed()
    parts = {part.icon: part for part in operator.get("/console/health/").context["parts"]}
    assert "cannot be read while Valkey is away" in parts["calendar-time"].said


@pytest.mark.parametrize(
    ("used", "policy", "names"), [(79, "noeviction", ""), (80, "noeviction", "state"), (99, "volatile-lru", "")]
)
def test_a_valkey_that_will_take_nothing_more_is_told_before_it_does_not(
    listed: Callable[[], dict[str, Item]], monkeypatch: pytest.MonkeyPatch, used: int, policy: str, names: str
) -> None:
    def read(role: str, url: str) -> Valkey:
        return Valkey(role, True, used_bytes=used if role == "state" else 0, most_bytes=100, policy=policy)

    monkeypatch.setattr(health, "read_valkey", read)
    found = listed()
    assert ("valkey_full" in found) is bool(names)
    if names:
        assert (found["valkey_full"].tone, f"({names})" in found["valkey_full"].text) == ("warn", True)


@pytest.mark.parametrize(
    ("away", "told"),
    [("state", "limited requests spend what is held"), ("scratch", "requests go on"), ("", None)],
)
def test_what_comes_of_a_valkey_that_is_away_is_said_of_the_one_that_is(
    listed: Callable[[], dict[str, Item]], monkeypatch: pytest.MonkeyPatch, away: str, told: str | None
) -> None:
    monkeypatch.setattr(
        health, "read_valkey", lambda role, url: Valkey(role, True, error="gone" if role == away else "")
    )
    found = listed().get("valkey_away")
    assert (found is None) is (told is None)
    assert found is None or (told is not None and told in found.text and f"({away})" in found.text)


@pytest.mark.parametrize("unapplied", [["gpupool.9999_later"], []])
def test_a_schema_that_is_behind_is_told_though_nothing_else_can_be_read(
    operator: Client, monkeypatch: pytest.MonkeyPatch, unapplied: list[str]
) -> None:
    def lacking(**_given: object) -> None:
        raise ProgrammingError("column does not exist")

    monkeypatch.setattr(health, "read_schema", lambda now: Schema(1, default_rows=False, unapplied=unapplied))
    monkeypatch.setattr(attention, "_nodes", lacking)
    monkeypatch.setattr("dashboard.views.console.overview.build_console_frame", lacking)
    for address in ("/console/overview/", "/console/overview/attention/"):
        if not unapplied:
            with pytest.raises(ProgrammingError):
                operator.get(address)
            continue
        answer = operator.get(address)
        assert [item.kind for item in answer.context["attention"]] == ["schema_behind"]
        assert "gpupool.9999_later" in text_of(answer)
        assert "js/overview.js" not in answer.content.decode()  # there are no figures that it would renew


def test_models_whose_requests_have_just_failed_are_named_whether_anything_is_promised_of_them_or_not(
    operator: Client, listed: Callable[[], dict[str, Item]]
) -> None:
    minute = timezone.now().replace(second=0, microsecond=0)
    counts = (("broken", 0, 40, 40), ("fine", 0, 5_000, 5), ("odd", 0, 4, 4), ("was", 60, 40, 40))
    for model, minutes, requests, faults in counts:
        ModelLatencyMinute.objects.create(
            model=model,
            minute=minute - timedelta(minutes=minutes),
            requests=requests,
            failures=faults,
            faults=faults,
            cancelled=0,
        )
    item = listed()["requests_fail"]
    assert (item.tone, item.href) == ("bad", "/console/requests/?range=15m&outcome=faults&model=broken")
    assert item.text.startswith("40 requests")
    assert item.text.endswith(": broken.")
    assert operator.get(item.href).status_code == 200
