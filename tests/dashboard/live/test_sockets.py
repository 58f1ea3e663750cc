"""`/ws/live` from end to end: who may watch, what they get, and that they stop getting it."""

from collections.abc import AsyncIterator, Callable

import pytest
from channels.db import database_sync_to_async
from django.contrib.sessions.backends.db import SessionStore
from django.utils import timezone

from dashboard.live.consumer import CLOSE_DENIED, is_same_origin
from dashboard.live.hub import close_shared_hub, shared_hub
from gpupool.leases.default import close_shared_store
from tenants import services
from tenants.actor import SYSTEM
from tenants.models import TenantRole, TenantState, User
from tenants.services.members import remove_member
from tenants.policies.roles import Standing
from tests.dashboard.live.sockets import session_of, socket
from tests.dashboard.people import person, pool, tenant

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture(autouse=True)
async def hub_is_closed() -> AsyncIterator[None]:
    yield
    await close_shared_hub()
    await close_shared_store()


async def operator_key() -> str:
    return await database_sync_to_async(lambda: session_of(person("olga", platform_role="operator")))()


@pytest.mark.shows("U1")
async def test_operator_gets_a_keyframe_and_then_frames_in_sequence() -> None:
    await database_sync_to_async(pool)()
    async with socket(await operator_key()) as page:
        await page.subscribe("fleet")
        assert await page.told("subscribed") == {"n": 1, "op": "subscribed", "period": 1.0}
        first, second = await page.frame(), await page.frame()
    assert (first["n"], first["ch"], first["v"]) == (1, "fleet", "fleet.v1")
    assert (second["epoch"], second["seq"]) == (first["epoch"], first["seq"] + 1)
    assert first["figures"]["ready"] == 1
    assert first["devices"][0]["name"] == "NVIDIA H100"
    assert abs(first["at"] - timezone.now().timestamp()) < 10
