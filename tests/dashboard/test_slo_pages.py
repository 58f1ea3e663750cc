"""Pages of objectives in console and portal: what they say, and who may do what."""

from collections.abc import Callable
from datetime import datetime, timedelta
from urllib.parse import parse_qs, urlsplit
from uuid import uuid4

import pytest
from django.test import Client
from django.utils import timezone
from pytest_django import DjangoAssertNumQueries

from dashboard.live.feeds.slo import SloFeed
from dashboard.policies.attention import Kind
from dashboard.reads.attention import find_all
from dashboard.templatetags.slo import exact_percent
from gateway.models import Objective, ObjectiveAlert, Silence
from gateway.services.objective_alerts import create_silence, evaluate_objectives
from tenants.actor import SYSTEM
from tenants.models import Tenant, TenantRole
from tests.dashboard.people import person, tenant
from tests.gateway.slo_rows import traffic, ttft_objective

pytestmark = pytest.mark.django_db


def now() -> datetime:
    return timezone.now().replace(second=0, microsecond=0)


def burn(owner: Tenant) -> datetime:
    """In each minute of the two hours until then."""
    until = now()
    traffic(owner, since=until - timedelta(hours=2), until=until, slow=5)
    return until


@pytest.fixture
def acme() -> Tenant:
    return tenant("acme", ada=TenantRole.OWNER, vera=TenantRole.VIEWER)


@pytest.fixture
def as_person(client: Client) -> Callable[[str], Client]:
    from tenants.models import User

    def log_in(name: str) -> Client:
        client.force_login(User.objects.get(email=f"{name}@example.com"))
        return client

    return log_in


def test_without_objectives_the_page_offers_those_of_the_tiers(operator: Client) -> None:
    text = operator.get("/console/slo/").content.decode()
    assert "No objective yet" in text
    assert operator.post("/console/slo/tiers/").status_code == 302
    assert Objective.objects.count() == 6
    operator.post("/console/slo/tiers/")
    assert Objective.objects.count() == 6


@pytest.mark.shows("U8")
def test_missing_data_is_said_and_is_no_white_screen(operator: Client) -> None:
    objective = ttft_objective()
    text = operator.get("/console/slo/").content.decode()
    assert "being counted" in text
    evaluate_objectives(now=timezone.now())
    response = operator.get(f"/console/slo/{objective.pk}/")
    text = response.content.decode()
    assert "nothing was attained, and nothing was missed" in text
    assert "100.0" not in text
    assert response.context["detail"].figures["heat"] is None


def test_a_new_one_says_how_long_its_figures_take_and_a_counted_one_when_counting_stands_still(
    operator: Client,
) -> None:
    made = [ttft_objective(name=f"objective {number}") for number in range(9)]

    def text(objective: Objective) -> str:
        return operator.get(f"/console/slo/{objective.pk}/").content.decode()

    assert "figures appear here within seconds" in text(made[3])
    assert "8 new objectives come before it. Figures appear here in about 1 min." in text(made[8])
    assert operator.get(f"/api/objectives/{made[8].pk}/status/").json()["new_before"] == 8
    Objective.objects.filter(pk=made[8].pk).update(count_failed_at=timezone.now())
    assert "Counting its window took too long at" in text(made[8])
    evaluate_objectives(now=timezone.now())
    assert operator.get(f"/api/objectives/{made[0].pk}/status/").json()["new_before"] is None
    said = "requests since then are missing from these figures"
    assert said not in text(made[0])
    Objective.objects.update(tallied_at=timezone.now() - timedelta(minutes=10))
    assert said in text(made[0])
    Objective.objects.update(enabled=False)
    assert said not in text(made[0])


@pytest.mark.shows("U8")
def test_the_box_and_the_graph_agree_and_the_target_is_shown(operator: Client, acme: Tenant) -> None:
    burn(acme)
    objective = ttft_objective()
    evaluate_objectives(now=timezone.now())
    response = operator.get(f"/console/slo/{objective.pk}/")
    detail = response.context["detail"]
    assert detail.figures["budget"]["y"][-1] == pytest.approx(100 * detail.standing.budget.remaining, abs=0.001)
    assert detail.figures["heat"]["ticks"][detail.figures["heat"]["threshold"] - 1]["text"] == "800 ms"
    text = response.content.decode()
    assert "99 % of streamed answers get their first token within 800 ms, over a rolling 30 days." in text
    assert "Fast burn, paging" in text
    assert detail.burn_rows[0].burns[1] == pytest.approx(detail.standing.burns[3600])


def test_the_page_takes_a_constant_number_of_queries(
    operator: Client, acme: Tenant, django_assert_max_num_queries: DjangoAssertNumQueries
) -> None:
    burn(acme)
    for number in range(15):
        ttft_objective(name=f"objective {number}", tenant=acme if number % 2 else None)
    evaluate_objectives(now=timezone.now())
    with django_assert_max_num_queries(24):
        operator.get("/console/slo/?range=24h")


def test_an_operator_makes_changes_and_deletes_one(operator: Client, acme: Tenant) -> None:
    form = {
        "name": "acme · TTFT", "kind": "ttft", "threshold_seconds": "0.7", "target_percent": "99.5",
        "window_days": "30", "tenant": "acme", "enabled": "on",
    }  # fmt: skip
    refused = operator.post("/console/slo/new/", form)
    assert refused.status_code == 422
    assert "0.6 s or 0.75 s" in refused.content.decode()
    assert operator.post("/console/slo/new/", {**form, "threshold_seconds": "0.75"}).status_code == 302
    made = Objective.objects.get()
    assert (made.target, made.threshold_seconds, made.tenant, made.tenants_own) == (0.995, 0.75, acme, False)
    changed = {**form, "threshold_seconds": "0.8", "name": "acme"}
    assert operator.post(f"/console/slo/{made.pk}/edit/", changed).status_code == 302
    made.refresh_from_db()
    assert (made.name, made.threshold_seconds, made.tenant) == ("acme", 0.8, acme)
    asked = operator.get(f"/console/slo/{made.pk}/delete/").content.decode()
    assert "nobody is told of it any more" in asked
    assert operator.post(f"/console/slo/{made.pk}/delete/").status_code == 302
    assert not Objective.objects.exists()


def test_the_form_offers_the_models_that_were_asked_for_and_a_tenant_its_own_alone(
    operator: Client, as_person: Callable[[str], Client], acme: Tenant
) -> None:
    for owner, model in ((acme, "chat-large"), (tenant("other"), "theirs")):
        traffic(owner, since=now() - timedelta(minutes=5), until=now(), model=model)
    assert operator.get("/console/slo/new/").context["form"].models == ["chat-large", "theirs"]
    own = ttft_objective(tenant=acme, tenants_own=True)
    assert '<option value="chat-large">' in operator.get(f"/console/slo/{own.pk}/edit/").content.decode()
    ada = as_person("ada")
    for address in ("new/", f"{own.pk}/edit/"):
        assert ada.get(f"/t/acme/slo/{address}").context["form"].models == ["chat-large"]


def test_a_name_that_is_taken_is_said_at_the_field(as_person: Callable[[str], Client], acme: Tenant) -> None:
    ttft_objective(name="ours", tenant=acme, tenants_own=True)
    form = {"name": "ours", "kind": "availability", "target_percent": "99", "window_days": "30", "enabled": "on"}
    ada = as_person("ada")
    refused = ada.post("/t/acme/slo/new/", form)
    assert refused.status_code == 422
    assert refused.context["form"].errors["name"] == ["There is an objective ours already."]
    assert ada.post("/t/acme/slo/new/", {**form, "name": "another"}).status_code == 302


@pytest.mark.parametrize(
    ("share", "text"),
    [
        (None, "–"), (1.0, "100 %"), (0.0, "0.00 %"), (0.9931, "99.31 %"), (0.99319, "99.31 %"), (0.57, "57.00 %"),
        (0.999496, "99.94 %"), (0.9995, "99.950 %"), (0.9999849, "99.998 %"), (0.9999999, "99.999 %"),
    ],
)  # fmt: skip
def test_what_was_attained_is_never_rounded_up(share: float | None, text: str) -> None:
    assert exact_percent(share) == text


def test_alerts_are_acknowledged_and_silenced_on_the_page(operator: Client, acme: Tenant) -> None:
    burn(acme)
    objective = ttft_objective()
    evaluate_objectives(now=timezone.now())
    alert = ObjectiveAlert.objects.filter(severity="page").first()
    assert alert is not None
    assert operator.post(f"/console/slo/alerts/{alert.pk}/acknowledge/").status_code == 302
    response = operator.get(f"/console/slo/{objective.pk}/")
    assert "Acknowledged" in response.content.decode()
    assert not response.context["detail"].row.acknowledged  # the ticket still fires
    for other in objective.alerts.filter(state="firing"):
        operator.post(f"/console/slo/alerts/{other.pk}/acknowledge/")
    assert operator.get(f"/console/slo/{objective.pk}/").context["detail"].row.acknowledged
    silenced = operator.post(f"/console/slo/{objective.pk}/silence/", {"hours": "4", "reason": "load test"})
    assert silenced.status_code == 302
    assert "load test" in operator.get(f"/console/slo/{objective.pk}/").content.decode()
    silence = Silence.objects.get()
    assert operator.post(f"/console/slo/silences/{silence.pk}/end/").status_code == 302
    silence.refresh_from_db()
    assert silence.ends_at <= timezone.now()


def test_silences_are_shown_on_what_they_are_over_and_say_whose_they_are(
    as_person: Callable[[str], Client], acme: Tenant
) -> None:
    person("olga", platform_role="operator")
    promised = ttft_objective(tenant=acme, name="promised")
    own = ttft_objective(tenant=acme, tenants_own=True, name="own")
    until = timezone.now() + timedelta(hours=2)
    create_silence(tenant=acme, ends_at=until, reason="acme moves", actor=SYSTEM, now=timezone.now())
    create_silence(ends_at=until, reason="our load test", actor=SYSTEM, now=timezone.now())
    create_silence(
        objective=own, tenant=acme, starts_at=timezone.now() + timedelta(hours=1), ends_at=until, reason="later",
        actor=SYSTEM, now=timezone.now(),
    )  # fmt: skip

    def text(name: str, address: str) -> str:
        return as_person(name).get(address).content.decode()

    console = text("olga", f"/console/slo/{promised.pk}/")
    assert "Every objective of the platform is silenced until" in console
    assert "our load test" in console
    assert "acme moves" not in console
    console = text("olga", f"/console/slo/{own.pk}/")
    assert f"Every objective that {acme.name} set up itself is silenced until" in console
    assert "This objective is silenced from" in console
    assert "our load test" not in console
    portal = text("ada", f"/t/acme/slo/{own.pk}/")
    assert "Every objective of your own is silenced until" in portal
    assert portal.count("End the silence") == 2
    portal = text("ada", f"/t/acme/slo/{promised.pk}/")
    assert "Every objective of the platform is silenced until" in portal
    for hidden in ("our load test", "acme moves", "End the silence"):
        assert hidden not in portal


def test_the_console_lists_the_platforms_and_tenants_own_apart(
    operator: Client, acme: Tenant, monkeypatch: pytest.MonkeyPatch
) -> None:
    def listed(address: str) -> list[str]:
        response = operator.get(address)
        assert response.status_code == 200
        return [row.objective.name for row, _ in response.context["rows"]]

    ours = ttft_objective(name="ours", tenant=acme)
    assert "of=tenants" not in operator.get("/console/slo/").content.decode()
    theirs = [ttft_objective(name=f"theirs {number}", tenant=acme, tenants_own=True) for number in range(3)]
    assert listed("/console/slo/") == ["ours"]
    assert "/console/slo/?range=1h&amp;of=tenants" in operator.get("/console/slo/?range=1h").content.decode()
    assert listed("/console/slo/?of=tenants") == ["theirs 2", "theirs 1", "theirs 0"]
    assert listed("/console/slo/?of=tenants&q=theirs+1") == ["theirs 1"]
    assert listed("/console/slo/?of=tenants&q=nothing") == []
    # An address of one, as notices have it, needs no word of whose it is.
    assert listed(f"/console/slo/{theirs[0].pk}/") == ["theirs 2", "theirs 1", "theirs 0"]
    assert listed(f"/console/slo/{ours.pk}/?of=tenants") == ["ours"]
    ObjectiveAlert.objects.create(objective=theirs[0], pair="3d-6h", severity="ticket", long_burn=2, short_burn=2)
    monkeypatch.setattr("dashboard.reads.slo_list.MOST_LISTED", 2)
    cut = operator.get("/console/slo/?of=tenants")
    assert [row.objective.name for row, _ in cut.context["rows"]] == ["theirs 0", "theirs 2"]
    assert cut.context["total"] == 3
    assert "Only 2 of them are listed" in cut.content.decode()
    assert operator.get(f"/console/slo/{theirs[1].pk}/").context["detail"].objective == theirs[1]
    assert operator.get(f"/console/slo/{uuid4()}/").status_code == 404


def test_frames_of_the_platform_have_nothing_of_tenants_own(acme: Tenant) -> None:
    ttft_objective(name="ours", tenant=acme)
    ttft_objective(name="theirs", tenant=acme, tenants_own=True)

    def names(scope: str) -> set[str]:
        frame = SloFeed().read(scope, now=timezone.now())
        assert isinstance(frame, dict)
        return {one["name"] for one in frame["objectives"]}

    assert names("") == {"ours"}
    assert names("tenant:acme") == {"ours", "theirs"}


def test_pairs_that_no_outage_can_reach_are_said(operator: Client) -> None:
    lax, strict = ttft_objective(target=0.9), ttft_objective()
    said = "never at this target: a total outage burns at 10.0×"
    assert operator.get(f"/console/slo/{lax.pk}/").content.decode().count(said) == 1
    assert "never at this target" not in operator.get(f"/console/slo/{strict.pk}/").content.decode()


def test_a_threshold_a_hair_off_its_bound_is_that_bound_and_drawn(operator: Client, acme: Tenant) -> None:
    burn(acme)
    objective = ttft_objective(threshold_seconds=0.1 + 0.2)
    assert objective.threshold_seconds == 0.3
    Objective.objects.update(threshold_seconds=20.00000001)  # as rows from before may be
    evaluate_objectives(now=timezone.now())
    heat = operator.get(f"/console/slo/{objective.pk}/").context["detail"].figures["heat"]
    assert heat["ticks"][heat["threshold"] - 1]["text"] == "20 s"


WRITES = ["new/", "silence/", "tiers/", "{o}/edit/", "{o}/delete/", "{o}/silence/", "alerts/{a}/acknowledge/"]


@pytest.mark.parametrize("address", WRITES)
def test_read_only_people_change_nothing(client: Client, acme: Tenant, address: str) -> None:
    burn(acme)
    objective = ttft_objective()
    evaluate_objectives(now=timezone.now())
    alert = ObjectiveAlert.objects.first()
    assert alert is not None
    client.force_login(person("rita", platform_role="read_only"))
    page = client.get("/console/slo/").content.decode()
    assert "New objective" not in page
    assert "Acknowledge</button>" not in page
    assert client.post("/console/slo/" + address.format(o=objective.pk, a=alert.pk)).status_code == 403


def test_a_tenant_sees_what_is_promised_to_it_and_nothing_else(
    as_person: Callable[[str], Client], acme: Tenant
) -> None:
    other = tenant("other", olaf=TenantRole.OWNER)
    burn(acme)
    promised, theirs = ttft_objective(tenant=acme, name="promised"), ttft_objective(tenant=other, name="of another")
    everyones = ttft_objective(name="of everyone")
    evaluate_objectives(now=timezone.now())
    ada = as_person("ada")
    page = ada.get("/t/acme/slo/").content.decode()
    assert "promised" in page
    assert "of another" not in page
    assert "of everyone" not in page
    for hidden in (theirs, everyones):
        assert ada.get(f"/t/acme/slo/{hidden.pk}/").status_code == 404
    assert ada.get("/t/other/slo/").status_code == 404
    for action in ("edit", "delete", "silence"):
        assert ada.post(f"/t/acme/slo/{promised.pk}/{action}/").status_code == 404
    alert = promised.alerts.first()
    assert alert is not None
    assert ada.post(f"/t/acme/slo/alerts/{alert.pk}/acknowledge/").status_code == 404


def test_a_tenants_managers_set_up_their_own(as_person: Callable[[str], Client], acme: Tenant) -> None:
    burn(acme)
    ada = as_person("ada")
    form = {"name": "ours", "kind": "ttft", "threshold_seconds": "0.8", "target_percent": "99", "window_days": "7",
            "tenant": "other", "tier": "gold", "enabled": "on"}  # fmt: skip
    assert ada.post("/t/acme/slo/new/", form).status_code == 302
    made = Objective.objects.get()
    assert (made.tenant, made.tenants_own, made.tier) == (acme, True, "")
    evaluate_objectives(now=timezone.now())
    alert = made.alerts.first()
    assert alert is not None
    assert ada.post(f"/t/acme/slo/alerts/{alert.pk}/acknowledge/").status_code == 302
    assert ada.post(f"/t/acme/slo/{made.pk}/silence/", {"hours": "1", "reason": "x"}).status_code == 302
    silence = Silence.objects.get()
    assert silence.tenant == acme
    assert ada.post(f"/t/acme/slo/silences/{silence.pk}/end/").status_code == 302
    vera = as_person("vera")
    assert vera.get("/t/acme/slo/").status_code == 200
    assert vera.post("/t/acme/slo/new/", form).status_code == 403
    assert vera.post(f"/t/acme/slo/{made.pk}/delete/").status_code == 403


@pytest.mark.shows("R136")
def test_the_link_leads_to_the_requests_that_spent_the_budget(operator: Client, acme: Tenant) -> None:
    until = burn(acme)
    slow = ttft_objective(tenant=acme)
    failed = ttft_objective(kind="availability", threshold_seconds=None, name="failed")
    traffic(acme, since=now() - timedelta(minutes=5), until=now(), faults=1, model="code-fast")
    failed.model = ""
    failed.save()
    evaluate_objectives(now=timezone.now())
    address = operator.get(f"/console/slo/{slow.pk}/").context["slow_url"]
    assert "min_ttft_ms=800" in address
    assert "tenant=acme" in address
    assert operator.get(address).status_code == 200
    spans = {}
    for span in ("1h", "30d"):
        response = operator.get(f"/console/slo/{slow.pk}/?range={span}&zone=Europe/Berlin")
        asked = parse_qs(urlsplit(response.context["slow_url"]).query)
        detail = response.context["detail"]
        spans[span] = [datetime.fromisoformat(asked[name][0]) for name in ("from", "to")]
        assert spans[span] == [detail.slow_since, detail.slow_until]
        assert detail.slow == 5 * sum(
            spans[span][0] <= until - timedelta(minutes=back) < spans[span][1] for back in range(1, 121)
        )
    assert spans["30d"][1].minute == 0
    Objective.objects.filter(pk=slow.pk).update(window_days=1)
    detail = operator.get(f"/console/slo/{slow.pk}/?range=30d").context["detail"]
    assert detail.slow_since >= now() - timedelta(days=1, hours=1)
    assert "outcome=" in operator.get(f"/console/slo/{failed.pk}/").context["slow_url"]


@pytest.mark.parametrize("span", ["1h", "6h", "24h", "30d", "nonsense"])
def test_every_range_is_drawn(operator: Client, acme: Tenant, span: str) -> None:
    traffic(acme, since=now() - timedelta(days=3), until=now(), step=timedelta(minutes=20), slow=1)
    availability = ttft_objective(kind="availability", threshold_seconds=None)
    queue = ttft_objective(kind="queue_wait", threshold_seconds=0.5)
    evaluate_objectives(now=timezone.now())
    for one in (availability, queue):
        response = operator.get(f"/console/slo/{one.pk}/?range={span}&zone=Asia/Shanghai")
        assert response.status_code == 200
        assert "times in Asia/Shanghai" in response.content.decode()
        assert len(response.context["detail"].heat_rows) >= 60


def test_an_objective_that_burns_by_several_pairs_is_one_line_of_what_needs_a_person(acme: Tenant) -> None:
    objective, calm = ttft_objective(), ttft_objective(name="calm")
    for one, pair, severity in (
        (objective, "1h-5m", "page"),
        (objective, "3d-6h", "ticket"),
        (calm, "3d-6h", "ticket"),
    ):
        ObjectiveAlert.objects.create(objective=one, pair=pair, severity=severity, long_burn=20, short_burn=20)
    found = [finding for finding in find_all(timezone.now()) if finding.kind is Kind.ALERT]
    assert {(finding.target, finding.page) for finding in found} == {(str(objective.pk), True), (str(calm.pk), False)}
    assert len(found) == 2
