"""The devices' memory over the control API: the pool's for platform roles, a tenant's own for its members."""

import pytest
from rest_framework.test import APIClient

from tenants.models import Limit, TenantRole, User
from tests.factories import make_member, make_user
from tests.gpupool.pool import GIB, a_device, an_online_node
from tests.gpupool.reads.test_memory_reads import two_tenants

pytestmark = pytest.mark.django_db


def client(user: User) -> APIClient:
    made = APIClient()
    made.force_authenticate(user)
    return made


def test_the_pools_tree_with_its_figures() -> None:
    node = an_online_node(a_device("gpu-0"))
    two_tenants(node)
    reader = client(make_user(platform_role="read_only"))
    told = reader.get("/api/gpu-memory/").json()
    assert (told["scope"], told["simulated"]) == ("cluster", "")
    assert told["summary"]["allocated_mib"] == 10240
    kinds = {one["kind"]: one for one in told["nodes"]}
    assert kinds["cluster"]["mib"] == kinds["gpu"]["mib"] == 16 * 1024
    assert (kinds["gpu"]["extra"]["reserved"], kinds["gpu"]["extra"]["used"]) == (10240, 7168)
    assert reader.get(f"/api/gpu-memory/?node={node.pk}").json()["scope"] == f"node:{node.pk}"
    assert reader.get("/api/gpu-memory/?node=0192d3c0-0000-7000-8000-000000000000").status_code == 404
    assert reader.get("/api/gpu-memory/?nodes=1").status_code == 400


@pytest.mark.shows("R132")
def test_members_get_their_tenants_own_against_its_quota() -> None:
    acme, _ = two_tenants(an_online_node(a_device("gpu-0")))
    Limit.objects.create(tenant=acme, metric="gpu_memory", amount=8 * GIB)
    member = client(make_member(acme, role=TenantRole.VIEWER))
    answer = member.get("/api/tenants/acme/gpu-memory/")
    told = answer.json()
    assert told["quotas"] == [
        {"metric": "gpu_memory", "model": "", "amount": 8 * GIB, "held": 4 * GIB, "used_bytes": 3 * GIB}
    ]
    assert told["summary"]["used_mib"] == 3072
    for word in ("rival", "Rival", "common-model"):
        assert word not in answer.content.decode()
    assert member.get("/api/tenants/rival/gpu-memory/").status_code == 404
    assert member.get("/api/gpu-memory/").status_code == 403
