"""Rows that a house needs before it can answer: a tenant, keys, models with ready engines.

Needs Django set up on the house's database; all writes go through the services.
"""

from dataclasses import dataclass
from typing import Final
from uuid import UUID

from gpupool.models import Instance
from gpupool.services.attach import attach_engine
from gpupool.services.instances import set_probed_state
from tenants.actor import SYSTEM
from tenants.models import ApiKey, Tenant
from tenants.policies.pricing import PriceTag
from tenants.services import create_api_key, create_tenant, grant_model
from tenants.services.departments import set_parent
from tenants.services.limits import create_limit
from tenants.services.prices import set_price

FAR: Final = 1_000_000_000_000
"""A limit that is counted and never reached."""


@dataclass(frozen=True, slots=True)
class Key:
    """An API key's id and its secret."""

    id: UUID
    secret: str


def make_tenant(slug: str, *, models: tuple[str, ...]) -> Tenant:
    """A tenant that may use `models` (names or patterns)."""
    tenant = create_tenant(slug=slug, name=slug.title(), actor=SYSTEM)
    for model in models:
        grant_model(tenant, model_pattern=model, actor=SYSTEM)
    return tenant


def make_key(tenant: Tenant, name: str, *, rpm_limit: int | None = None) -> Key:
    made = create_api_key(tenant, name=name, rpm_limit=rpm_limit, actor=SYSTEM)
    return Key(made.key.pk, made.secret)


def price(model: str) -> None:
    """Something, so that what requests cost is reckoned."""
    set_price(model, PriceTag(input_micros=150_000, cached_input_micros=75_000, output_micros=600_000), actor=SYSTEM)


def limit_everything(tenant: Tenant, key: Key, model: str) -> None:
    """Every kind of limit on requests, at key, tenant, department and model, in nine counters."""
    row = ApiKey.objects.get(pk=key.id)
    department = create_tenant(slug=f"{tenant.slug}-above", name="Above", actor=SYSTEM)
    set_parent(tenant.pk, department.pk, actor=SYSTEM)
    for metric, window in (
        ("requests", "minute"),
        ("tokens", "minute"),
        ("input_tokens", "minute"),
        ("output_tokens", "minute"),
    ):
        create_limit(tenant=tenant, key=row, metric=metric, window=window, amount=FAR, actor=SYSTEM)
    create_limit(tenant=tenant, metric="concurrency", window="standing", amount=1_000_000, actor=SYSTEM)
    create_limit(tenant=tenant, metric="tokens", window="day", amount=FAR, actor=SYSTEM)
    create_limit(tenant=department, subtree=True, metric="money", window="month", amount=FAR, actor=SYSTEM)
    create_limit(tenant=tenant, model=model, metric="requests", window="day", amount=FAR, actor=SYSTEM)
    create_limit(
        tenant=tenant, metric="requests", window="bucket", amount=1_000_000, refill_per_second=1_000_000, actor=SYSTEM
    )


def attach(model: str, port: int, *, engine: str = "vllm", ready: bool = True) -> Instance:
    """An engine on the loopback address as an instance of `model`, `ready` as if a probe had found it."""
    instance = attach_engine(f"http://127.0.0.1:{port}", engine=engine, model_name=model, actor=SYSTEM).instance
    if ready:
        set_engine_health(instance, healthy=True)
    return instance


def set_engine_health(instance: Instance, *, healthy: bool) -> None:
    """What the controller's probe would say of an attached engine."""
    set_probed_state(instance.pk, healthy=healthy, reason="" if healthy else "Does not answer.", actor=SYSTEM)
