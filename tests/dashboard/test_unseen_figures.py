"""What an instance did when it was last seen is told nowhere as if it did it now."""

from datetime import UTC, datetime, timedelta

import pytest
from django.test import Client
from django.utils import timezone

from gpupool.models import Instance, Lease, Node
from gpupool.policies.silence import SILENT_AFTER
from tenants.actor import SYSTEM
from tenants.models import TenantRole, User
from tenants.services.limits import create_limit
from tests.dashboard.people import Pool, person, pool, tenant
from tests.dashboard.tenancy_rows import rows_of, text_of

pytestmark = pytest.mark.django_db
GIB = 2**30


@pytest.fixture(params=["noticed", "unnoticed"])
def silent(request: pytest.FixtureRequest) -> Pool:
    """An instance whose node fell silent with 4,040 requests running on it.

    Without a controller or its lease store nobody notices: all stays as it was.
    """
    noticed = request.param == "noticed"
    made = pool(state="unknown" if noticed else "ready")
    heard = timezone.now() - SILENT_AFTER - timedelta(seconds=1)
    Node.objects.update(state="unreachable" if noticed else "online", last_seen_at=heard)
    figures = {"running_requests": 4040, "waiting_requests": 4041, "kv_used": 0.77, "device_bytes": 20 * GIB}
    Instance.objects.update(pid=7, **figures)
    return made


def test_the_list_and_its_csv_and_the_order_of_both_do_not_tell_it(operator: Client, silent: Pool) -> None:
    busy = Instance.objects.create(
        version=silent.version, engine="vllm", state="ready", running_requests=1, waiting_requests=0
    )
    for key in ("running", "waiting"):
        page = operator.get(f"/console/instances/?sort=-{key}")
        assert [row.id for row in page.context["rows"]] == [str(busy.pk), str(silent.instance.pk)]
        rows = rows_of(operator.get(f"/console/instances/?sort=-{key}&format=csv"))
        assert [(row["running"], row["waiting"]) for row in rows] == [("1", "0"), ("", "")]
    Instance.objects.filter(pk=silent.instance.pk).update(memory_rss_bytes=33 * GIB)
    Node.objects.update(last_seen_at=datetime(2026, 11, 3, 12, 30, tzinfo=UTC))
    told = text_of(operator.get(f"/console/instances/{silent.instance.pk}/"))
    assert "last heard of 3 Nov 2026, 12:30" in told
    assert "33.0 GiB" not in told
    assert "the memory guard is content" not in told
    for address in (f"instances/{silent.instance.pk}", "instances", "routing", "overview"):
        assert "4,04" not in text_of(operator.get(f"/console/{address}/"))


def test_its_tenant_is_not_told_either(client: Client, silent: Pool) -> None:
    acme = tenant("acme", ada=TenantRole.OWNER)
    Instance.objects.update(tenant_id=acme.pk)
    Lease.objects.update(tenant_id=acme.pk)
    create_limit(tenant=acme, metric="gpu_memory", window="standing", amount=80 * GIB, actor=SYSTEM)
    client.force_login(User.objects.get(email="ada@example.com"))
    page = client.get("/t/acme/capacity/")
    told = page.context["capacity"]
    assert (told.claimed, told.in_use) == (24 * GIB, None)
    assert [one.use.used_bytes for one in told.quotas] == [None]
    assert [row.kv_now for row in page.context["page"].rows] == [None]
    for figure in ("4,040", "20.0 GiB"):
        assert figure not in text_of(page)
    (row,) = rows_of(client.get("/t/acme/capacity/?format=csv"))
    assert (row["in_use"], row["requests"], row["kv"], row["claimed"]) == ("", "", "", str(24 * GIB))
    client.force_login(person("olga", platform_role="operator"))
    assert client.get("/console/tenants/acme/").context["told"].pool.used is None
