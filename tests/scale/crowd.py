"""A large installation in the database: tenants, keys, usage of weeks with its sums, audit rows, refusals.

Made by the database itself where it can be: a million rows take some seconds.
"""

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final
from uuid import UUID

from django.db import connection

from tenants.models import Tenant
from tenants.services.rollups import rebuild_day

MODELS: Final = 12


_FILLED: Final = (
    "tenants_tenant", "tenants_apikey", "tenants_usagerecord", "tenants_auditevent", "tenants_usageminute",
    "tenants_usagehour", "tenants_usageday", "tenants_tenanthour", "tenants_tenantday",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Crowd:
    tenants: int
    keys: int
    usage: int
    audits: int
    days: int
    """Over which the usage is spread, evenly."""


SMALL: Final = Crowd(tenants=8, keys=20, usage=200, audits=60, days=8)
MIDDLE: Final = Crowd(tenants=300, keys=1_500, usage=12_000, audits=2_000, days=8)
LARGE: Final = Crowd(tenants=10_000, keys=100_000, usage=1_000_000, audits=200_000, days=28)

_TENANTS: Final = """
INSERT INTO tenants_tenant (id, slug, name, sla_tier, time_zone, state, response_retention_days, created_at)
SELECT uuidv7(), %(name)s || '-' || n, 'Crowd ' || n, (ARRAY['gold', 'silver', 'bronze'])[1 + n %% 3],
    (ARRAY['UTC', 'Asia/Shanghai', 'Asia/Kolkata'])[1 + n %% 3], 'active', 30, now() - make_interval(mins => n)
FROM generate_series(1, %(tenants)s) AS n
"""
_KEYS: Final = """
INSERT INTO tenants_apikey (id, tenant_id, name, prefix, last_four, digest, scopes, allowed_models, keep_alive,
    revoked_at, created_at)
SELECT uuidv7(), owner.id, 'key-' || %(name)s || '-' || n, 'sk-gh-', lpad(to_hex(n %% 65536), 4, '0'),
    md5(%(name)s || n) || md5(n::text), '[]', '[]', true,
    CASE WHEN n %% 9 = 0 THEN now() END, now() - make_interval(mins => n %% 40000)
FROM generate_series(1, %(keys)s) AS n
JOIN (SELECT id, row_number() OVER (ORDER BY id) AS place FROM tenants_tenant
    WHERE slug LIKE %(name)s || '-%%') AS owner
    ON owner.place = CASE WHEN n %% 2 = 0 THEN 1 ELSE 1 + n %% %(tenants)s END
"""
_USAGE: Final = """
INSERT INTO tenants_usagerecord (id, tenant_id, key_id, model, engine_request_id, door, api, streamed, outcome, status,
    error_code, usage_source, input_tokens, cached_tokens, output_tokens, started_at, duration_ms, ttft_ms, attempts,
    process_id, sequence)
SELECT uuidv7(-back), owner.tenant_id, owner.id, 'model-' || n %% %(models)s, '', 'relay', 'chat', n %% 3 > 0,
    CASE WHEN n %% 50 = 0 THEN 'failed' WHEN n %% 70 = 0 THEN 'cancelled' ELSE 'success' END,
    CASE WHEN n %% 50 = 0 THEN 502 ELSE 200 END, CASE WHEN n %% 50 = 0 THEN 'engine_failed' ELSE '' END, 'engine',
    20 + n %% 4000, n %% 20, 5 + n %% 700, now() - back, 50 + n %% 9000, CASE WHEN n %% 3 > 0 THEN 20 + n %% 2000 END,
    1, '00000000-0000-7000-8000-000000000001', n
FROM (
    SELECT n, make_interval(secs => n * %(span)s / %(usage)s) AS back FROM generate_series(1, %(usage)s) AS n
) AS asked
JOIN (
    SELECT id, tenant_id, row_number() OVER (ORDER BY id) - 1 AS place FROM tenants_apikey
    WHERE name LIKE 'key-' || %(name)s || '-%%'
) AS owner ON owner.place = CASE WHEN n %% 2 = 0 THEN 1 ELSE (n::bigint * 7919) %% %(keys)s END
"""
_AUDITS: Final = """
INSERT INTO tenants_auditevent (id, at, actor_kind, action, subject_type, subject_id, tenant_id, request_id, before,
    after)
SELECT uuidv7(-make_interval(secs => n * 10)), now() - make_interval(secs => n * 10), 'system',
    (ARRAY['api_key.created', 'api_key.revoked', 'tenant.suspended', 'limit.changed'])[1 + n %% 4], 'api_key',
    uuidv7(), owner.id, '', '{}', '{"amount": 5}'
FROM generate_series(1, %(audits)s) AS n
JOIN (SELECT id, row_number() OVER (ORDER BY id) AS place FROM tenants_tenant
    WHERE slug LIKE %(name)s || '-%%') AS owner
    ON owner.place = 1 + n %% %(tenants)s
"""


def fill(crowd: Crowd, *, now: datetime, name: str = "crowd") -> Tenant:
    """Add the crowd, called `name` in slugs and keys.

    Returns its busiest tenant, which has half of the keys and of the usage.
    """
    values: dict[str, str | int | float] = {
        "name": name,
        "tenants": crowd.tenants,
        "keys": crowd.keys,
        "usage": crowd.usage,
        "audits": crowd.audits,
        "models": MODELS,
        "span": float(crowd.days * 86_400),
    }
    with connection.cursor() as cursor:
        cursor.execute("SHOW statement_timeout")
        (patience,) = cursor.fetchone()
        cursor.execute("SET statement_timeout = 0")  # a million rows take longer than any page may
        for statement in (_TENANTS, _KEYS, _USAGE, _AUDITS):
            cursor.execute(statement, values)
    for back in range(crowd.days + 1):
        rebuild_day(now - timedelta(days=back))
    with connection.cursor() as cursor:
        # Only these: of the server's own tables another worker's run may hold the locks until its test ends.
        cursor.execute(f"ANALYZE {', '.join(_FILLED)}")
        cursor.execute(
            "SELECT tenant_id FROM tenants_apikey WHERE name LIKE 'key-' || %s || '-%%' "
            "GROUP BY 1 ORDER BY count(*) DESC LIMIT 1",
            [name],
        )
        busiest: UUID = cursor.fetchone()[0]
        cursor.execute("SELECT set_config('statement_timeout', %s, false)", [patience])
    return Tenant.objects.get(pk=busiest)
