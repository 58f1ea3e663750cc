"""The control API of objectives: who may, what is refused, and what status says."""

from datetime import timedelta
from typing import Any
from uuid import uuid4

import pytest
from django.utils import timezone
from rest_framework.test import APIClient

from gateway.models import Objective, ObjectiveAlert
from gateway.services.objective_alerts import evaluate_objectives
from tenants.actor import SYSTEM
from tenants.models import AuditEvent, Tenant, TenantRole, User
from tenants.services import add_member, create_tenant, create_user
from tests.gateway.slo_rows import traffic, ttft_objective

pytestmark = pytest.mark.django_db

NEW = {"name": "chat · TTFT", "kind": "ttft", "target": 0.99, "threshold_seconds": 0.8, "model": "chat-large"}


@pytest.fixture
def acme() -> Tenant:
    return create_tenant(slug="acme", name="Acme", actor=SYSTEM)


def caller(name: str, *, platform_role: str = "", member_of: Tenant | None = None, role: str = "owner") -> APIClient:
    user = User.objects.filter(email=f"{name}@example.org").first() or create_user(
        email=f"{name}@example.org", password=None, platform_role=platform_role, actor=SYSTEM
    )
    if member_of is not None:
        add_member(member_of, user, role=TenantRole(role), actor=SYSTEM)
    client = APIClient()
    client.force_authenticate(user)
    return client


def post(client: APIClient, address: str, body: dict[str, Any] | None = None) -> Any:
    return client.post(address, body or {}, format="json")


def test_an_operator_makes_changes_and_deletes(acme: Tenant) -> None:
    olga = caller("olga", platform_role="operator")
    made = post(olga, "/api/objectives/", {**NEW, "tenant": "acme"})
    assert made.status_code == 201
    address = f"/api/objectives/{made.data['id']}/"
    assert olga.patch(address, {"target": 0.95}, format="json").status_code == 428
    changed = olga.patch(address, {"target": 0.95}, format="json", headers={"if-match": made["ETag"]})
    assert (changed.status_code, changed.data["target"]) == (200, 0.95)
    assert olga.delete(address, headers={"if-match": made["ETag"]}).status_code == 412
    assert olga.delete(address, headers={"if-match": changed["ETag"]}).status_code == 204
    actions = set(AuditEvent.objects.filter(action__startswith="objective").values_list("action", flat=True))
    assert actions == {"objective.created", "objective.changed", "objective.deleted"}


def test_a_threshold_between_bounds_is_refused_by_its_name() -> None:
    olga = caller("olga", platform_role="operator")
    refused = post(olga, "/api/objectives/", {**NEW, "threshold_seconds": 0.7})
    assert refused.status_code == 400
    assert "0.6 s or 0.75 s" in str(refused.data)
    assert "threshold_seconds" in str(refused.data)


def test_a_name_that_is_taken_is_refused_by_its_name(acme: Tenant) -> None:
    olga, ada = caller("olga", platform_role="operator"), caller("ada", member_of=acme)
    assert post(olga, "/api/objectives/", NEW).status_code == 201
    refused = post(olga, "/api/objectives/", {**NEW, "tenant": "acme"})
    assert refused.status_code == 400
    assert "There is an objective 'chat · TTFT' already." in str(refused.data)
    assert "'name'" in str(refused.data)
    assert post(ada, "/api/tenants/acme/objectives/", NEW).status_code == 201
    second = post(ada, "/api/tenants/acme/objectives/", {**NEW, "name": "second"})
    address = f"/api/tenants/acme/objectives/{second.data['id']}/"
    renamed = ada.patch(address, {"name": NEW["name"]}, format="json", headers={"if-match": second["ETag"]})
    assert renamed.status_code == 400


def test_a_release_that_is_not_there_is_refused() -> None:
    refused = post(caller("olga", platform_role="operator"), "/api/objectives/", {**NEW, "version": str(uuid4())})
    assert refused.status_code == 400
    assert "There is no such release." in str(refused.data)


@pytest.mark.shows("R146")
def test_the_tiers_objectives_are_made_once() -> None:
    olga = caller("olga", platform_role="operator")
    assert len(post(olga, "/api/objectives/tiers/").data) == 6
    assert post(olga, "/api/objectives/tiers/").data == []
    found = olga.get("/api/objectives/?tier=gold").data["results"]
    assert {one["kind"]: one["threshold_seconds"] for one in found} == {"ttft": 1.0, "availability": None}


@pytest.mark.shows("R136")
def test_status_says_what_was_attained(acme: Tenant) -> None:
    now = timezone.now().replace(second=0, microsecond=0)
    traffic(acme, since=now - timedelta(hours=1), until=now, slow=5)
    objective, empty = ttft_objective(), ttft_objective(model="nobody-asks")
    olga = caller("olga", platform_role="operator")
    assert olga.get(f"/api/objectives/{objective.pk}/status/").data["counted"] is False
    evaluate_objectives(now=timezone.now())
    told = olga.get(f"/api/objectives/{objective.pk}/status/").data
    assert told["attained"] == pytest.approx(0.5, abs=0.01)
    assert told["burn_rates"]["3600"] == pytest.approx(50, abs=1)
    assert [one["burning"] for one in told["pairs"]] == [True, True, True]
    nothing = olga.get(f"/api/objectives/{empty.pk}/status/").data
    assert (nothing["attained"], nothing["budget"]["remaining"]) == (None, None)


def test_a_tenant_manages_its_own_and_only_looks_at_what_is_promised(acme: Tenant) -> None:
    promised, hidden = ttft_objective(tenant=acme), ttft_objective()
    ada = caller("ada", member_of=acme)
    mine = post(ada, "/api/tenants/acme/objectives/", NEW)
    assert (mine.status_code, mine.data["tenant"], mine.data["tenants_own"]) == (201, "acme", True)
    listed = {one["id"] for one in ada.get("/api/tenants/acme/objectives/").data["results"]}
    assert listed == {mine.data["id"], str(promised.pk)}
    assert ada.get(f"/api/tenants/acme/objectives/{hidden.pk}/").status_code == 404
    told = ada.get(f"/api/tenants/acme/objectives/{promised.pk}/")
    refused = ada.delete(f"/api/tenants/acme/objectives/{promised.pk}/", headers={"if-match": told["ETag"]})
    assert refused.status_code == 403
    scoped = ada.patch(
        f"/api/tenants/acme/objectives/{mine.data['id']}/", {"tier": "gold"}, format="json",
        headers={"if-match": mine["ETag"]},
    )  # fmt: skip
    assert scoped.data["tier"] == ""  # not theirs to say
    assert post(caller("vera", member_of=acme, role="viewer"), "/api/tenants/acme/objectives/", NEW).status_code == 403
    assert ada.get("/api/objectives/").status_code == 403


def test_alerts_are_acknowledged_and_silenced(acme: Tenant) -> None:
    now = timezone.now().replace(second=0, microsecond=0)
    traffic(acme, since=now - timedelta(hours=1), until=now, slow=5)
    ours, theirs = ttft_objective(tenant=acme), ttft_objective(tenant=acme, tenants_own=True)
    evaluate_objectives(now=timezone.now())
    olga, ada = caller("olga", platform_role="operator"), caller("ada", member_of=acme)
    assert len(olga.get("/api/alerts/?state=firing").data["results"]) == 6
    page = ObjectiveAlert.objects.get(objective=ours, pair="1h-5m")
    own = ObjectiveAlert.objects.get(objective=theirs, pair="1h-5m")
    assert post(ada, f"/api/tenants/acme/alerts/{page.pk}/acknowledge/").status_code == 403
    assert post(ada, f"/api/tenants/acme/alerts/{own.pk}/acknowledge/").data["state"] == "acknowledged"
    assert post(olga, f"/api/alerts/{page.pk}/acknowledge/").data["state"] == "acknowledged"
    assert post(olga, f"/api/alerts/{page.pk}/acknowledge/").status_code == 409
    until = (timezone.now() + timedelta(hours=1)).isoformat()
    silence = post(ada, "/api/tenants/acme/silences/", {"reason": "load test", "ends_at": until})
    assert (silence.status_code, silence.data["tenant"]) == (201, "acme")
    assert (
        post(
            ada, "/api/tenants/acme/silences/", {"reason": "x", "ends_at": until, "objective": str(ours.pk)}
        ).status_code
        == 400
    )
    assert ada.delete(f"/api/tenants/acme/silences/{silence.data['id']}/").status_code == 200
    assert ada.delete(f"/api/tenants/acme/silences/{silence.data['id']}/").status_code == 409
    assert Objective.objects.count() == 2
