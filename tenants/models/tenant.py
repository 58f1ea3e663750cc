"""Tenants, people, and which people belong to which tenant."""

from typing import Any, ClassVar
from zoneinfo import available_timezones

from django.contrib.auth.models import AbstractUser, UserManager
from django.core.exceptions import ValidationError
from django.db import models
from django.utils.crypto import salted_hmac

from core.ids import uuid7
from core.models import TimeOrderedModel
from tenants.policies.roles import Action, Object, may


class PlatformRole(models.TextChoices):
    """What a person may do across all tenants."""

    NONE = "", "None"
    READ_ONLY = "read_only", "Read-only"
    OPERATOR = "operator", "Operator"
    SUPERUSER = "superuser", "Superuser"


class TenantRole(models.TextChoices):
    OWNER = "owner", "Owner"
    ADMIN = "admin", "Admin"
    DEVELOPER = "developer", "Developer"
    VIEWER = "viewer", "Viewer"
    BILLING = "billing", "Billing"


class SlaTier(models.TextChoices):
    GOLD = "gold", "Gold"
    SILVER = "silver", "Silver"
    BRONZE = "bronze", "Bronze"


class TenantState(models.TextChoices):
    ACTIVE = "active", "Active"
    SUSPENDED = "suspended", "Suspended"


class RoleSource(models.TextChoices):
    """Who gave a role. What an identity provider's claims gave, they take away again; nothing else do they touch."""

    MANUAL = "manual", "By hand"
    CLAIMS = "claims", "By claims"


class EmailUserManager(UserManager["User"]):
    """Users are named by e-mail address; there is no user name."""

    def _build(self, email: str, password: str | None, extra: dict[str, Any]) -> "User":
        if not email:
            raise ValueError("a user needs an e-mail address")
        user = self.model(email=self.normalize_email(email).lower(), **extra)
        user.set_password(password)
        user.save(using=self._db)
        return user

    def create_user(  # type: ignore[override]  # no user name, on purpose
        self, email: str, password: str | None = None, **extra: Any
    ) -> "User":
        return self._build(email, password, extra)

    def create_superuser(  # type: ignore[override]  # no user name, on purpose
        self, email: str, password: str | None = None, **extra: Any
    ) -> "User":
        extra |= {"is_staff": True, "is_superuser": True, "platform_role": PlatformRole.SUPERUSER}
        return self._build(email, password, extra)

    def get_by_natural_key(self, username: str | None) -> "User":
        return self.get(email=(username or "").lower())


class User(AbstractUser):
    """A person. Machines use keys instead."""

    id = models.UUIDField(primary_key=True, default=uuid7, editable=False)
    username = None  # type: ignore[assignment]  # AbstractUser's field, removed
    email = models.EmailField(unique=True)
    display_name = models.CharField(max_length=120, blank=True)
    platform_role = models.CharField(max_length=16, choices=PlatformRole, default=PlatformRole.NONE, blank=True)
    platform_role_source = models.CharField(max_length=8, choices=RoleSource, default=RoleSource.MANUAL)
    sessions_ended = models.PositiveIntegerField(default=0)  # counted up, it ends all that run
    language = models.CharField(max_length=16, blank=True)

    USERNAME_FIELD = "email"
    REQUIRED_FIELDS: ClassVar[list[str]] = []
    objects = EmailUserManager()  # type: ignore[misc]  # a manager without user names

    def __str__(self) -> str:
        return self.display_name or self.email

    def clean(self) -> None:
        super().clean()
        self.email = self.email.lower()  # as people are looked up by when they log in

    def _get_session_auth_hash(self, secret: str | None = None) -> str:
        """What sessions are bound to: the password, as Django has it, and how often sessions were ended."""
        bound: str = super()._get_session_auth_hash(secret)  # type: ignore[misc]  # not in the stubs
        if not self.sessions_ended:
            return bound
        return salted_hmac(f"sessions-{self.sessions_ended}", bound, secret=secret, algorithm="sha256").hexdigest()

    @property
    def active_platform_role(self) -> str:
        """The platform role, as tenants.policies.roles asks for it; people who are deactivated have none."""
        return self.platform_role if self.is_active else ""

    @property
    def may_operate(self) -> bool:
        """May change what runs on the platform."""
        return may(Action.CHANGE, Object.POOL, platform_role=self.active_platform_role, tenant_role=None)

    @property
    def may_read_platform(self) -> bool:
        """May see the whole platform."""
        return may(Action.VIEW, Object.POOL, platform_role=self.active_platform_role, tenant_role=None)


def validate_time_zone(value: str) -> None:
    if value not in available_timezones():
        raise ValidationError(f"{value} is not an IANA time zone")


class Tenant(TimeOrderedModel):
    """A department or team that shares the pool."""

    slug = models.SlugField(max_length=63, unique=True)
    name = models.CharField(max_length=120)
    parent = models.ForeignKey("self", null=True, blank=True, on_delete=models.PROTECT, related_name="children")
    sla_tier = models.CharField(max_length=8, choices=SlaTier, default=SlaTier.BRONZE)
    time_zone = models.CharField(max_length=64, default="UTC", validators=[validate_time_zone])
    state = models.CharField(max_length=12, choices=TenantState, default=TenantState.ACTIVE)
    response_retention_days = models.PositiveSmallIntegerField(default=30)  # of stored responses; 0 stores none
    conversation_retention_days = models.PositiveSmallIntegerField(default=30, db_default=30)  # the same of those
    erasing_at = models.DateTimeField(null=True, blank=True, editable=False)  # since when: it never serves again
    created_at = models.DateTimeField(auto_now_add=True)

    def __str__(self) -> str:
        return self.name

    def clean(self) -> None:
        """What a form, unlike the services, would let through."""
        if self.erasing_at is not None and self.state != TenantState.SUSPENDED:
            raise ValidationError({"state": "This tenant is being erased."})


class Membership(TimeOrderedModel):
    tenant = models.ForeignKey(Tenant, on_delete=models.CASCADE, related_name="memberships")
    user = models.ForeignKey(User, on_delete=models.CASCADE, related_name="memberships")
    role = models.CharField(max_length=12, choices=TenantRole)
    source = models.CharField(max_length=8, choices=RoleSource, default=RoleSource.MANUAL)
    created_at = models.DateTimeField(auto_now_add=True)

    class Meta:
        constraints = [models.UniqueConstraint(fields=["tenant", "user"], name="tenants_membership_once")]

    def __str__(self) -> str:
        return f"{self.user_id} {self.role} of {self.tenant_id}"
