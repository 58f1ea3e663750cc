"""Issuers of tokens: whose signatures the doors believe, and how claims become a tenant, scopes and a subject."""

from django.db import models

from core.models import TimeOrderedModel
from tenants.models.tenant import Tenant


class TokenIssuer(TimeOrderedModel):
    """One value of the claim `iss`. With `tenant` all its tokens are that tenant's, else `tenant_claim` says whose."""

    name = models.CharField(max_length=80)
    issuer = models.CharField(max_length=500, unique=True)  # the claim `iss`, compared as text
    audiences = models.JSONField(default=list)  # a token names one of them in `aud`
    algorithms = models.JSONField(default=list)
    jwks_url = models.CharField(max_length=2000, blank=True)
    pinned_jwks = models.TextField(blank=True)  # a JSON key set, believed besides what the address gives
    allow_private = models.BooleanField(default=False)  # the address may be inside this network
    leeway_seconds = models.FloatField(default=30.0)  # for clocks that differ: of exp, nbf and iat
    tenant = models.ForeignKey(Tenant, null=True, blank=True, on_delete=models.CASCADE, related_name="issuers")
    tenant_claim = models.CharField(max_length=200, default="tid")
    scope_claim = models.CharField(max_length=200, default="scope")
    role_claim = models.CharField(max_length=200, default="roles")
    role_scopes = models.JSONField(default=dict, blank=True)  # role -> list of actions
    default_scopes = models.JSONField(default=list, blank=True)  # of a token whose claims give none
    created_at = models.DateTimeField(auto_now_add=True)

    class Meta:
        constraints = [
            models.CheckConstraint(
                condition=models.Q(leeway_seconds__gte=0, leeway_seconds__lte=300), name="tenants_issuer_leeway"
            )
        ]

    def __str__(self) -> str:
        return self.name
