"""How limits stand, as pages are told: read from the counters, or not known."""

from datetime import timedelta

import pytest
import redis
from django.conf import settings

from config.apps import _reader
from gateway.relay.limiting import layout
from gateway.relay.limiting.key_limits import key_limit
from gateway.services import limit_standing
from gateway.services.limit_standing import StandingReader
from gateway.services.snapshot_source import limit_rows
from tenants.actor import SYSTEM
from tenants.models import Limit
from tenants.services import rotate_api_key
from tenants.services.limits import create_limit
from tenants.standing import Standing, read_standings
from tests.factories import make_key, make_tenant
from tests.ports import free_port
from tests.waiting import stay_within_a_day

pytestmark = pytest.mark.django_db


@pytest.fixture(autouse=True)
def _patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A Valkey that stalls is waited for longer than a page would."""
    monkeypatch.setattr(limit_standing, "DEADLINE_SECONDS", 30.0)
    monkeypatch.setattr(_reader(), "_client", None)  # made with the deadline of before


def _limit() -> Limit:
    stay_within_a_day()
    return create_limit(tenant=make_tenant(), metric="tokens", window="day", amount=100, actor=SYSTEM)


def _write(client: "redis.Redis", limit: Limit, *, used: int, held: int, prefix: str) -> None:
    (row,) = limit_rows([limit.pk])
    counter = layout.counter_of(row, limit.counts_from.timestamp())
    client.hset(layout.area(prefix) + layout.GENERATION, mapping={"id": "a", "state": layout.READY})
    client.hset(layout.area(prefix) + counter.name, mapping={"used": used, "held": held, "end": counter.end})


def test_what_counters_say_is_told_and_while_they_are_lost_nothing(valkey_url: str) -> None:
    limit = _limit()
    reader = StandingReader(valkey_url, prefix="t:")
    assert reader([limit.pk]) == {}
    with redis.Redis.from_url(valkey_url) as client:
        _write(client, limit, used=40, held=10, prefix="t:")
        told = reader([limit.pk])[limit.pk]
        client.hset(layout.area("t:") + layout.GENERATION, "state", layout.REBUILDING)
    assert (told.used, told.reserved, told.remaining) == (40, 10, 50)
    assert 0 < told.reset_seconds <= 86_400
    assert reader([limit.pk]) == {}


def test_a_valkey_that_is_away_says_nothing() -> None:
    assert StandingReader(f"redis://127.0.0.1:{free_port()}", prefix="t:")([_limit().pk]) == {}


def test_the_house_asks_its_own_valkey(valkey_url: str) -> None:
    limit = _limit()
    with redis.Redis.from_url(valkey_url) as client:
        _write(client, limit, used=1, held=0, prefix=settings.GATEHOUSE.valkey_prefix)
    assert isinstance(read_standings([limit.pk])[limit.pk], Standing)


def test_a_keys_own_rate_is_told_under_the_keys_id_and_by_the_counter_of_its_lineage(valkey_url: str) -> None:
    tenant = make_tenant()
    first = make_key(tenant, rpm_limit=7).key
    second = rotate_api_key(first.pk, overlap=timedelta(hours=1), actor=SYSTEM).key
    reader = StandingReader(valkey_url, prefix="t:")
    with redis.Redis.from_url(valkey_url) as client:
        row = key_limit(first.pk, tenant.pk, 7)
        now = int(client.time()[0])
        client.hset(layout.area("t:") + layout.GENERATION, mapping={"id": "a", "state": layout.READY})
        client.hset(layout.area("t:") + layout.counter_of(row, now).name, mapping={str(now): 3, "used": 3})
        told = reader([first.pk, second.pk, make_key(tenant).key.pk])
    assert {key: (one.used, one.remaining) for key, one in told.items()} == {first.pk: (3, 4), second.pk: (3, 4)}
