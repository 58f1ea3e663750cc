"""Keys that machines use, and grants that say which models they reach."""

from datetime import datetime
from uuid import UUID

from django.core.exceptions import ValidationError
from django.db import models

from core.models import TimeOrderedModel
from tenants.models.tenant import Tenant, User
from tenants.policies.rbac import ACTIONS


def _check_texts(field: str, values: object, *, within: frozenset[str] | None = None) -> None:
    if not isinstance(values, list) or not all(isinstance(value, str) for value in values):
        raise ValidationError({field: "A list of texts."})
    if within is not None and not set(values) <= within:
        raise ValidationError({field: f"Some of {', '.join(sorted(within))}."})


class KeyPurpose(models.TextChoices):
    """What a key is for that no application has."""

    NONE = "", "An application"
    PLAYGROUND = "playground", "The portal's playground"  # a person's own; its secret is nowhere: see the service


class ApiKey(TimeOrderedModel):
    """A secret shown once; only its SHA-256 digest is kept (the secret has 256 random bits)."""

    tenant = models.ForeignKey(Tenant, on_delete=models.CASCADE, related_name="api_keys")
    name = models.CharField(max_length=80)
    prefix = models.CharField(max_length=16)
    last_four = models.CharField(max_length=4)
    digest = models.CharField(max_length=64, unique=True)
    scopes = models.JSONField(default=list)
    allowed_models = models.JSONField(default=list, blank=True)
    rpm_limit = models.PositiveIntegerField(null=True, blank=True)
    keep_alive = models.BooleanField(default=True)  # comments in a stream that has nothing to say yet
    expires_at = models.DateTimeField(null=True, blank=True)
    revoked_at = models.DateTimeField(null=True, blank=True)
    compromised_at = models.DateTimeField(null=True, blank=True)  # when it was said that others know the secret
    known_good_at = models.DateTimeField(null=True, blank=True)  # of such a key: until when use was the owner's own
    replaced_by = models.ForeignKey("self", null=True, blank=True, on_delete=models.SET_NULL, related_name="replaces")
    lineage = models.UUIDField(null=True, blank=True, editable=False, db_index=True)  # of a rotated key: the first's id
    store_conversations = models.BooleanField(default=False, db_default=False)
    purpose = models.CharField(max_length=12, choices=KeyPurpose, default="", db_default="", blank=True, editable=False)
    last_used_at = models.DateTimeField(null=True, blank=True)
    created_by = models.ForeignKey(User, null=True, blank=True, on_delete=models.SET_NULL, related_name="+")
    created_at = models.DateTimeField(auto_now_add=True)

    class Meta:
        indexes = [
            models.Index(fields=["tenant", "id"]),
            models.Index(fields=["tenant", "name", "id"], name="tenants_apikey_by_name"),
            models.Index(fields=["name", "id"], name="tenants_apikey_of_all_by_name"),
            models.Index(fields=["tenant", "last_four"], name="tenants_apikey_by_ending"),
        ]
        constraints = [
            models.UniqueConstraint(
                fields=["tenant", "created_by"],
                condition=models.Q(purpose="playground", revoked_at__isnull=True),
                name="tenants_apikey_playground",
            )
        ]

    def __str__(self) -> str:
        return f"{self.name} ({self.masked})"

    def clean(self) -> None:
        """What a form, unlike the services, would let through; relays rely on it."""
        _check_texts("scopes", self.scopes, within=ACTIONS)
        _check_texts("allowed_models", self.allowed_models)
        if self.rpm_limit == 0:
            raise ValidationError({"rpm_limit": "A limit is at least 1; leave it empty for none."})

    @property
    def masked(self) -> str:
        """What may be shown of the secret."""
        return f"{self.prefix}…{self.last_four}"

    @property
    def limits_id(self) -> UUID:
        """Under which its own limits count: a key and those it was rotated into share one budget."""
        return self.lineage or self.pk

    def is_usable(self, now: datetime) -> bool:
        return self.revoked_at is None and (self.expires_at is None or self.expires_at > now)


class AccessToken(TimeOrderedModel):
    """A person's secret for the control API, shown once; only its SHA-256 digest is kept. Revoked: deleted."""

    user = models.ForeignKey(User, on_delete=models.CASCADE, related_name="access_tokens")
    name = models.CharField(max_length=80)
    last_four = models.CharField(max_length=4)
    digest = models.CharField(max_length=64, unique=True)
    expires_at = models.DateTimeField(null=True, blank=True)
    created_at = models.DateTimeField(auto_now_add=True)

    def __str__(self) -> str:
        return f"{self.name} (…{self.last_four})"


class PrincipalKind(models.TextChoices):
    TENANT = "tenant", "Tenant"
    KEY = "key", "API key"
    SUBJECT = "subject", "Token's subject"  # see tenants.principal


class GrantEffect(models.TextChoices):
    ALLOW = "allow", "Allow"
    DENY = "deny", "Deny"


class Grant(TimeOrderedModel):
    """(principal, model pattern, actions). Models are named by string: the catalogue stands above. Deny wins."""

    tenant = models.ForeignKey(Tenant, on_delete=models.CASCADE, related_name="grants")
    principal_kind = models.CharField(max_length=8, choices=PrincipalKind, default=PrincipalKind.TENANT)
    principal_id = models.UUIDField()
    model_pattern = models.CharField(max_length=200)
    actions = models.JSONField(default=list)
    effect = models.CharField(max_length=5, choices=GrantEffect, default=GrantEffect.ALLOW)
    expires_at = models.DateTimeField(null=True, blank=True)
    created_at = models.DateTimeField(auto_now_add=True)

    class Meta:
        constraints = [
            models.UniqueConstraint(
                fields=["tenant", "principal_kind", "principal_id", "model_pattern", "effect"],
                name="tenants_grant_once",
            )
        ]

    def clean(self) -> None:
        """What a form, unlike the services, would let through; relays rely on it."""
        _check_texts("actions", self.actions, within=ACTIONS | {"*"})

    def __str__(self) -> str:
        return f"{self.effect} {self.principal_kind}:{self.principal_id} {self.model_pattern}"
