"""How people come in: invitations, roles that an identity provider's claims stand for, and links that log in once."""

from datetime import datetime

from django.db import models
from django.db.models import Q

from core.models import TimeOrderedModel
from tenants.models.tenant import PlatformRole, Tenant, TenantRole, User


class Invitation(TimeOrderedModel):
    """Whoever holds the link becomes a member with `role`, once; only the link's SHA-256 digest is kept."""

    tenant = models.ForeignKey(Tenant, on_delete=models.CASCADE, related_name="invitations")
    email = models.EmailField()
    role = models.CharField(max_length=12, choices=TenantRole)
    digest = models.CharField(max_length=64, unique=True)
    invited_by = models.ForeignKey(User, null=True, on_delete=models.SET_NULL, related_name="+")
    created_at = models.DateTimeField(auto_now_add=True)
    expires_at = models.DateTimeField()
    accepted_at = models.DateTimeField(null=True)
    accepted_by = models.ForeignKey(User, null=True, on_delete=models.SET_NULL, related_name="+")
    withdrawn_at = models.DateTimeField(null=True)

    class Meta:
        indexes = [models.Index(fields=["tenant", "-id"])]
        constraints = [
            models.UniqueConstraint(
                fields=["tenant", "email"],
                condition=Q(accepted_at__isnull=True, withdrawn_at__isnull=True),
                name="tenants_invitation_open_once",
            )
        ]

    def __str__(self) -> str:
        return f"{self.role} of {self.tenant_id}"

    def state(self, now: datetime) -> str:
        """open, accepted, withdrawn or expired."""
        if self.accepted_at is not None:
            return "accepted"
        if self.withdrawn_at is not None:
            return "withdrawn"
        return "open" if self.expires_at > now else "expired"


class RoleMapping(TimeOrderedModel):
    """Who logs in with `claim` holding `value` gets the role: a platform one, or one in a tenant.

    `claim` is a name at the top of the claims, or a path of names with dots between them.
    """

    claim = models.CharField(max_length=200)
    value = models.CharField(max_length=200)
    platform_role = models.CharField(max_length=16, choices=PlatformRole, default=PlatformRole.NONE, blank=True)
    tenant = models.ForeignKey(Tenant, null=True, blank=True, on_delete=models.CASCADE, related_name="role_mappings")
    tenant_role = models.CharField(max_length=12, choices=TenantRole, blank=True, default="")
    created_at = models.DateTimeField(auto_now_add=True)

    class Meta:
        constraints = [
            models.UniqueConstraint(
                fields=["claim", "value", "tenant"], name="tenants_rolemapping_once", nulls_distinct=False
            ),
            models.CheckConstraint(
                condition=(Q(tenant__isnull=True, tenant_role="") & ~Q(platform_role=""))
                | (Q(tenant__isnull=False, platform_role="") & ~Q(tenant_role="")),
                name="tenants_rolemapping_one_role",
            ),
        ]

    def __str__(self) -> str:
        return f"{self.claim}={self.value}: {self.platform_role or self.tenant_role}"


class LoginLink(TimeOrderedModel):
    """A link that logs its person in, once and for some minutes; only its SHA-256 digest is kept."""

    user = models.ForeignKey(User, on_delete=models.CASCADE, related_name="+")
    digest = models.CharField(max_length=64, unique=True)
    created_at = models.DateTimeField(auto_now_add=True)
    expires_at = models.DateTimeField()
    used_at = models.DateTimeField(null=True)

    def __str__(self) -> str:
        return f"for {self.user_id}"
