"""What those who decide see of a request: what a model has, what is used, what is promised before and after."""

from datetime import timedelta

import pytest
from django.utils import timezone
from rest_framework.test import APIClient

from gateway.policies.capacity import Impact, Load, Promise, Verdict, impact
from gateway.services.capacity_impact import impact_of
from gpupool.models import Instance, ModelVersion
from tenants.actor import SYSTEM
from tenants.models import PlatformRole, Tenant, UsageHour, UsageMinute
from tenants.services.grants import grant_model
from tenants.services.limits import create_limit
from tenants.services.requests import request_limit, request_model
from tests.factories import make_instance, make_member, make_model, make_tenant, make_user, make_version

IDLE = Load("m", instances=1, slots=8, peak_concurrency=2.0, peak_tokens_per_second=100.0, mean_tokens_per_second=1.0)
BUSY = Load("m", instances=1, slots=8, peak_concurrency=7.5, peak_tokens_per_second=100.0, mean_tokens_per_second=90.0)


@pytest.mark.parametrize(
    ("load", "others", "now", "then", "verdict"),
    [
        (IDLE, [Promise(4, None)], None, Promise(4, None), Verdict.FITS),
        (IDLE, [Promise(8, None)], None, Promise(4, None), Verdict.FITS_AS_USED),
        (BUSY, [Promise(8, None)], Promise(1, None), Promise(4, None), Verdict.EXCEEDS),
        (IDLE, [Promise(None, None)], None, Promise(None, None), Verdict.FITS_AS_USED),
        (BUSY, [], None, Promise(None, None), Verdict.EXCEEDS),
        (IDLE, [], Promise(None, 10.0), Promise(None, 110.0), Verdict.FITS_AS_USED),
        (IDLE, [], Promise(None, 10.0), Promise(None, 1010.0), Verdict.EXCEEDS),
        (Load("m", 0, 0, 0, 0, 0), [], None, Promise(1, None), Verdict.NO_CAPACITY),
        (Load("m", 1, None, 0, 0, 0), [], None, Promise(1, None), Verdict.UNKNOWN),
    ],
)
def test_the_verdict_says_whether_there_is_room(
    load: Load, others: list[Promise], now: Promise | None, then: Promise, verdict: Verdict
) -> None:
    assert impact(load, others=others, now=now, then=then).verdict == verdict


def concurrency(tenant: Tenant, amount: int) -> None:
    create_limit(metric="concurrency", window="standing", amount=amount, tenant=tenant, actor=SYSTEM)


@pytest.fixture
def shared() -> tuple[Tenant, Tenant]:
    """One that has the model `large` (8 slots, 3 busy at the peak), and one that has not."""
    has, asks = make_tenant(), make_tenant()
    model = make_model("large", granted_to=[has])
    instance = make_instance(make_version(model), port=1)
    Instance.objects.filter(pk=instance.pk).update(slots=8)
    make_model("other", granted_to=[has, asks])
    concurrency(has, 6)
    now = timezone.now()
    UsageMinute.objects.create(
        tenant_id=has.pk,
        key_id=None,
        model="large",
        minute=now.replace(second=0, microsecond=0) - timedelta(hours=1),
        requests=1,
        input_tokens=6000,
        duration_ms=180_000,
    )
    UsageHour.objects.create(
        tenant_id=has.pk,
        key_id=None,
        model="large",
        hour=now.replace(minute=0, second=0, microsecond=0) - timedelta(hours=1),
        requests=1,
        input_tokens=6000,
        duration_ms=180_000,
    )
    return has, asks


def of(impacts: list[Impact], model: str) -> Impact:
    (found,) = [one for one in impacts if one.load.model == model]
    return found


@pytest.mark.django_db
def test_a_request_for_a_model_counts_the_tenant_in(shared: tuple[Tenant, Tenant]) -> None:
    _, asks = shared
    concurrency(asks, 4)
    request = request_model(asks, model="lar*", reason="x", actor=SYSTEM)
    found = of(impact_of(request, now=timezone.now()), "large")
    assert (found.load.slots, found.load.peak_concurrency, found.load.peak_tokens_per_second) == (8, 3.0, 100.0)
    assert (found.before.concurrency, found.after.concurrency) == (6, 10)
    assert found.verdict == Verdict.FITS_AS_USED


@pytest.mark.django_db
def test_a_request_for_a_limit_replaces_the_one_there_is(shared: tuple[Tenant, Tenant]) -> None:
    has, _ = shared
    create_limit(metric="tokens", window="minute", amount=6000, tenant=has, actor=SYSTEM)
    request = request_limit(has, metric="concurrency", window="standing", amount=8, reason="x", actor=SYSTEM)
    found = of(impact_of(request, now=timezone.now()), "large")
    assert (found.before.concurrency, found.after.concurrency) == (6, 8)
    assert found.verdict == Verdict.FITS
    more = request_limit(has, metric="tokens", window="minute", amount=12_000, reason="x", actor=SYSTEM)
    found = of(impact_of(more, now=timezone.now()), "large")
    assert (found.before.tokens_per_second, found.after.tokens_per_second) == (100.0, 200.0)


@pytest.mark.django_db
def test_instances_of_one_tenant_alone_are_no_room_for_others(shared: tuple[Tenant, Tenant]) -> None:
    has, asks = shared
    own = make_instance(ModelVersion.objects.get(model__name="large"), port=2)
    Instance.objects.filter(pk=own.pk).update(slots=100, tenant_id=has.pk)
    request = request_model(asks, model="large", reason="x", actor=SYSTEM)
    assert of(impact_of(request, now=timezone.now()), "large").load.slots == 8
    more = request_limit(has, metric="concurrency", window="standing", amount=8, reason="x", actor=SYSTEM)
    assert of(impact_of(more, now=timezone.now()), "large").load.slots == 108


@pytest.mark.django_db
def test_approvers_see_it_by_the_control_api(shared: tuple[Tenant, Tenant]) -> None:
    has, asks = shared
    grant_model(asks, model_pattern="large", effect="deny", actor=SYSTEM)
    request = request_model(asks, model="large", reason="x", actor=SYSTEM)
    client = APIClient()
    client.force_authenticate(make_user(platform_role=PlatformRole.READ_ONLY))
    answer = client.get(f"/api/requests/{request.pk}/impact/")
    assert answer.status_code == 200, answer.content
    (told,) = answer.json()["models"]
    assert (told["model"], told["instances"], told["slots"], told["verdict"]) == ("large", 1, 8, "fits_as_used")
    assert told["before"] == {
        "concurrency": 6,
        "without_concurrency": 0,
        "tokens_per_second": 0.0,
        "without_tokens": 1,
    }
    client.force_authenticate(make_member(has))
    assert client.get(f"/api/requests/{request.pk}/impact/").status_code == 403
