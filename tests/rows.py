"""A row of most kinds, for tests that go over everything."""

from dataclasses import dataclass

from tenants.actor import SYSTEM
from tenants.models import PlatformRole, Tenant, User
from tenants.services import grant_model
from tenants.services.limits import create_limit
from tests.factories import (
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
    """A tenant with keys, members, grants and limits, a model that is served, a node."""
    superuser = make_user(platform_role=PlatformRole.SUPERUSER)
    tenant = make_tenant("acme")
    member = make_member(tenant)
    key = make_key(tenant).key
    model = make_model("llama", granted_to=[tenant])
    version = make_version(model)
    instance = make_instance(version, port=1)
    node = make_node()
    grant = grant_model(tenant, model_pattern="m-*", actor=SYSTEM)
    limit = create_limit(metric="requests", window="minute", amount=5, tenant=tenant, actor=SYSTEM)
    addresses = {
        "slug": tenant.slug,
        "name": "vllm",
        "key_id": str(key.pk),
        "user_id": str(member.pk),
        "version_id": str(version.pk),
        "instance_id": str(instance.pk),
        "node_id": str(node.pk),
        "grant_id": str(grant.pk),
        "limit_id": str(limit.pk),
    }
    return Rows(superuser, tenant, addresses)
