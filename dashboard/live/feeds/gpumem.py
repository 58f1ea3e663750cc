"""The channel `gpumem`: where every byte of device memory is, each second, while somebody looks."""

from datetime import datetime
from uuid import UUID

from dashboard.live.base import Encoder, Gone, Viewer, tenant_of
from dashboard.live.gpumem_codec import GpumemEncoder
from gpupool.models import Node
from gpupool.reads.memory import read_tenant_tree, read_tree
from tenants.models import Tenant
from tenants.policies.roles import Object

_NODE = "node:"


class GpumemFeed:
    """Scopes: `cluster` (or nothing), `node:UUID`, and `tenant:SLUG`, which has of others only what they claimed."""

    name: str = "gpumem"
    period_seconds: float = 1.0

    def may_watch(self, viewer: Viewer, scope: str) -> bool:
        """The pool's are for platform roles, a tenant's for those who see its usage."""
        slug = tenant_of(scope)
        if slug is not None:
            return viewer.may_view(Object.USAGE, tenant=slug)
        return viewer.reads_platform and (scope in ("", "cluster") or _node(scope) is not None)

    def read(self, scope: str, *, now: datetime) -> object:
        """Raises Gone for a tenant or a node that is gone."""
        slug = tenant_of(scope)
        if slug is not None:
            tenant = Tenant.objects.filter(slug=slug).first()
            if tenant is None:
                raise Gone
            return read_tenant_tree(tenant, now=now)
        try:
            return read_tree(now=now, node_id=_node(scope))
        except Node.DoesNotExist as error:
            raise Gone from error

    def encoder(self) -> Encoder:
        return GpumemEncoder()


def _node(scope: str) -> UUID | None:
    if not scope.startswith(_NODE):
        return None
    text = scope.removeprefix(_NODE)
    try:
        node_id = UUID(text)
    except ValueError:
        return None
    return node_id if str(node_id) == text else None  # one spelling, so that it is read once
