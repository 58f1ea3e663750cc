"""Rows for the tests of the console's pages of tenancy."""

import csv
import io
from datetime import timedelta
from typing import Any

from django.utils import timezone

from tenants.actor import SYSTEM, user_actor
from tenants.models import AccessRequest, Limit, Metric, Tenant, TenantRole, User, Window
from tenants.policies.pricing import PriceTag
from tenants.services import create_access_token, create_role_mapping
from tenants.services.limits import create_limit
from tenants.services.prices import set_price
from tenants.services.requests import request_limit
from tests.dashboard.people import minutes_ago, pool, tenant, usage


def limit(owner: Tenant | None, *, amount: int = 1_000, metric: str = Metric.TOKENS, **more: Any) -> Limit:
    return create_limit(
        metric=metric, window=more.pop("window", Window.DAY), amount=amount, tenant=owner, actor=SYSTEM, **more
    )


def asked_by(owner: Tenant, person: User, *, amount: int = 5_000) -> AccessRequest:
    """A member asks for more tokens a day than the limit of a thousand allows."""
    return request_limit(
        owner,
        metric=Metric.TOKENS,
        window=Window.DAY,
        amount=amount,
        reason="The launch is next week.",
        actor=user_actor(person.pk),
    )


def everything() -> Tenant:
    """The tenant acme with some of all that pages of tenancy show."""
    acme = tenant("acme", ada=TenantRole.OWNER, ben=TenantRole.VIEWER)
    pool()
    usage(acme, at=minutes_ago(3))
    limit(acme)
    limit(acme, metric=Metric.GPU_MEMORY, window=Window.STANDING, amount=64 * 2**30)
    limit(None, metric=Metric.REQUESTS, window=Window.MINUTE, amount=10_000)
    ada = User.objects.get(email="ada@example.com")
    asked_by(acme, ada)
    create_access_token(ada, name="deploys", actor=user_actor(ada.pk))
    set_price("qwen3-8b", PriceTag(input_micros=500_000, output_micros=1_500_000), actor=SYSTEM)
    set_price(
        "qwen3-8b",
        PriceTag(input_micros=400_000),
        effective_from=timezone.now() + timedelta(days=30),
        actor=SYSTEM,
    )
    create_role_mapping(claim="groups", value="gpu-admins", platform_role="operator", actor=SYSTEM)
    return acme


def text_of(response: Any) -> str:
    return str(response.content.decode())


def rows_of(response: Any) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(response.content.decode())))
