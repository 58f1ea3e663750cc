"""A row of most kinds, for tests that go over everything."""

from dataclasses import dataclass
from datetime import timedelta

from django.utils import timezone

from gpupool.services import create_alias
from gpupool.services.reservations import create_reservation
from tenants.actor import SYSTEM
from tenants.models import AuditEvent, PlatformRole, Tenant, User, Webhook
from tenants.policies.pricing import PriceTag
from tenants.policies.roles import Standing
from tenants.services import (
    create_access_token,
    create_invitation,
    create_role_mapping,
    create_token_issuer,
    grant_model,
)
from tenants.services.limits import create_limit
from tenants.services.prices import set_price
from tenants.services.requests import request_model
from tests.factories import (
    make_adapter,
    make_fine_tuning_job,
    make_instance,
    make_key,
    make_member,
    make_model,
    make_node,
    make_tenant,
    make_user,
    make_version,
)


@dataclass(frozen=True, slots=True)
class Rows:
    superuser: User
    tenant: Tenant
    addresses: dict[str, str]
    """Parameters of addresses in the control API: names or ids of rows that are there."""


def one_of_everything() -> Rows:
    """A tenant with what it can have, a model that is served and has a price, a node; what the platform keeps."""
    superuser = make_user(platform_role=PlatformRole.SUPERUSER)
    tenant = make_tenant("acme")
    member = make_member(tenant)
    key = make_key(tenant).key
    model = make_model("llama", granted_to=[tenant])
    version = make_version(model)
    instance = make_instance(version, port=1)
    grant = grant_model(tenant, model_pattern="m-*", actor=SYSTEM)
    limit = create_limit(metric="requests", window="minute", amount=5, tenant=tenant, actor=SYSTEM)
    price = set_price("llama", PriceTag(1, 1, 1), effective_from=timezone.now() + timedelta(days=1), actor=SYSTEM)
    issuer = create_token_issuer(
        name="idp",
        issuer="https://idp.test",
        audiences=["gatehouse"],
        jwks_url="https://idp.invalid/jwks",
        actor=SYSTEM,
    )
    request = request_model(tenant, model="other", reason="To try it.", actor=SYSTEM)
    mapping = create_role_mapping(claim="g", value="v", platform_role=PlatformRole.READ_ONLY, actor=SYSTEM)
    webhook = Webhook.objects.create(tenant=tenant, url="https://hooks.invalid/x")  # a service would look it up
    standing = Standing(superuser.active_platform_role, None)
    invited = create_invitation(tenant, email="new@example.test", role="viewer", standing=standing, actor=SYSTEM)
    token = create_access_token(member, name="laptop", actor=SYSTEM).token
    reservation = create_reservation(tenant.pk, devices=1, actor=SYSTEM)
    addresses = {
        "slug": tenant.slug,
        "name": "vllm",
        "code": "79",  # NVIDIA's catalogue answers it
        "month": f"{timezone.now():%Y-%m}",
        "key_id": str(key.pk),
        "user_id": str(member.pk),
        "token_id": str(token.pk),
        "version_id": str(version.pk),
        "model_id": str(model.pk),
        "alias_id": str(create_alias(model.pk, "llama-latest", actor=SYSTEM).pk),
        "adapter_id": str(make_adapter(version).pk),
        "instance_id": str(instance.pk),
        "node_id": str(make_node().pk),
        "grant_id": str(grant.pk),
        "limit_id": str(limit.pk),
        "reservation_id": str(reservation.pk),
        "price_id": str(price.pk),
        "issuer_id": str(issuer.pk),
        "request_id": str(request.pk),
        "mapping_id": str(mapping.pk),
        "webhook_id": str(webhook.pk),
        "invitation_id": str(invited.invitation.pk),
        "job_id": str(make_fine_tuning_job(tenant, version).pk),
        "event_id": str(AuditEvent.objects.latest("id").pk),
    }
    return Rows(superuser, tenant, addresses)
