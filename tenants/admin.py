"""Tenants in the backoffice."""

from typing import TYPE_CHECKING, Any, ClassVar

from django.contrib import admin
from django.contrib.auth.admin import UserAdmin
from django.http import HttpRequest

from core.epochs import Section
from tenants.breakglass import BreakGlassAdmin, ReadOnlyAdmin
from tenants.models import ApiKey, AuditEvent, DeadLetter, Grant, Membership, Tenant, UsageRecord, User

if TYPE_CHECKING:
    _UserAdmin = UserAdmin[User]
else:
    _UserAdmin = UserAdmin  # generic for the type checker only


@admin.register(User)
class PersonAdmin(BreakGlassAdmin, _UserAdmin):
    ordering = ("email",)
    list_display = ("email", "display_name", "platform_role", "is_active")
    search_fields = ("email", "display_name")
    list_filter = ("platform_role", "is_active")
    fieldsets: ClassVar[Any] = (
        (None, {"fields": ("email", "password", "display_name", "language")}),
        ("Rights", {"fields": ("platform_role", "is_active", "is_staff", "is_superuser")}),
    )
    add_fieldsets: Any = (
        (None, {"classes": ("wide",), "fields": ("email", "password1", "password2", "platform_role")}),
    )


@admin.register(Tenant)
class TenantAdmin(BreakGlassAdmin):
    section = Section.GRANTS
    list_display = ("slug", "name", "sla_tier", "state", "time_zone")
    search_fields = ("slug", "name")


@admin.register(Membership)
class MembershipAdmin(BreakGlassAdmin):
    list_display = ("tenant", "user", "role")
    list_select_related = ("tenant", "user")
    autocomplete_fields = ("tenant", "user")


@admin.register(ApiKey)
class ApiKeyAdmin(BreakGlassAdmin):
    """Keys are made in the portal, where the secret can be shown once."""

    section = Section.KEYS
    list_display = ("name", "tenant", "masked", "rpm_limit", "expires_at", "revoked_at", "last_used_at")
    list_select_related = ("tenant",)
    search_fields = ("name", "last_four")
    readonly_fields = ("tenant", "prefix", "last_four", "created_by", "created_at", "last_used_at")
    exclude = ("digest",)
    show_full_result_count = False

    def has_add_permission(self, request: HttpRequest) -> bool:
        return False


@admin.register(Grant)
class GrantAdmin(BreakGlassAdmin):
    section = Section.GRANTS
    epoch_field = "tenant_id"
    list_display = ("tenant", "principal_kind", "model_pattern", "actions", "effect", "expires_at")
    list_select_related = ("tenant",)


@admin.register(AuditEvent)
class AuditEventAdmin(ReadOnlyAdmin):
    list_display = ("at", "action", "actor_kind", "actor_id", "subject_type", "subject_id")
    list_filter = ("action",)


@admin.register(UsageRecord)
class UsageRecordAdmin(ReadOnlyAdmin):
    list_display = ("id", "model", "outcome", "status", "input_tokens", "output_tokens", "started_at")


@admin.register(DeadLetter)
class DeadLetterAdmin(ReadOnlyAdmin):
    list_display = ("entry_id", "reason", "at")
