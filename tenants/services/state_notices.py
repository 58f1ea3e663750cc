"""What people are told at once, in the transaction in which it happens."""

from django.utils import timezone

from tenants.actor import Actor
from tenants.models import ApiKey, Tenant, TenantState
from tenants.policies.notices import NoticeKind
from tenants.services.notices import raise_notice


def tell_tenant_state(tenant: Tenant, *, actor: Actor) -> None:
    """It was suspended, or serves again."""
    suspended = tenant.state == TenantState.SUSPENDED
    raise_notice(
        NoticeKind.TENANT_SUSPENDED if suspended else NoticeKind.TENANT_RESUMED,
        tenant=tenant,
        payload={"tenant_name": tenant.name},
        dedupe_key=f"tenant-state:{tenant.pk}:{tenant.state}:{timezone.now().isoformat()}",
        actor=actor,
    )


def tell_compromised_key(key: ApiKey, *, actor: Actor) -> None:
    """It was revoked, because others know its secret."""
    raise_notice(
        NoticeKind.KEY_COMPROMISED,
        tenant=key.tenant,
        payload={"key": str(key.pk), "name": key.name, "masked": key.masked},
        dedupe_key=f"key-compromised:{key.pk}",
        actor=actor,
        person=key.created_by_id,
    )
