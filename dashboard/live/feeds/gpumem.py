"""The channel `gpumem`: where every byte of device memory is, each second, while somebody looks."""

from datetime import datetime

from dashboard.live.base import Encoder, Gone, Viewer, node_of, tenant_of
from dashboard.live.feeds.scopes import tenant_in
from dashboard.live.gpumem_codec import GpumemEncoder
from gpupool.models import Node
from gpupool.reads.memory import read_tenant_tree, read_tree
from tenants.policies.roles import Object


class GpumemFeed:
    """Scopes: `cluster` (or nothing), `node:UUID`, and `tenant:SLUG`, which has of others only what they claimed."""

    name: str = "gpumem"
    period_seconds: float = 1.0

    def may_watch(self, viewer: Viewer, scope: str) -> bool:
        """The pool's are for platform roles, a tenant's for those who see its usage."""
        slug = tenant_of(scope)
        if slug is not None:
            return viewer.may_view(Object.USAGE, tenant=slug)
        return viewer.reads_platform and (scope in ("", "cluster") or node_of(scope) is not None)

    def read(self, scope: str, *, now: datetime) -> object:
        """Raises Gone for a tenant or a node that is gone."""
        if tenant_of(scope) is not None:
            return read_tenant_tree(tenant_in(scope), now=now)
        try:
            return read_tree(now=now, node_id=node_of(scope))
        except Node.DoesNotExist as error:
            raise Gone from error

    def encoder(self) -> Encoder:
        return GpumemEncoder()
