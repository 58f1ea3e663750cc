"""What feeds look up of their scopes. One query each."""

from dashboard.live.base import Gone, tenant_of
from tenants.models import Tenant


def tenant_in(scope: str) -> Tenant:
    """The tenant of a tenant's scope. Raises Gone for one that is gone, and for another scope."""
    tenant = Tenant.objects.filter(slug=tenant_of(scope) or "").first()
    if tenant is None:
        raise Gone
    return tenant


def tenant_or_all(scope: str) -> Tenant | None:
    """None, for all tenants, of no scope; else as `tenant_in`."""
    return tenant_in(scope) if scope else None
