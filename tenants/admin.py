"""Tenants in the backoffice."""

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, ClassVar
from uuid import UUID

from django.contrib import admin
from django.contrib.auth.admin import UserAdmin
from django.contrib.auth.models import Group
from django.db import transaction
from django.http import HttpRequest, HttpResponse

from core.epochs import Section
from tenants.breakglass import BreakGlassAdmin, NewestRows, ReadOnlyAdmin
from tenants.models import (
    AccessToken,
    Adjustment,
    ApiKey,
    AuditEvent,
    DeadLetter,
    Grant,
    Limit,
    Membership,
    PlatformRole,
    Price,
    RoleSource,
    Tenant,
    UsageRecord,
    User,
)
from tenants.services.tenants import MOST_RETENTION_DAYS

if TYPE_CHECKING:
    _UserAdmin = UserAdmin[User]
else:
    _UserAdmin = UserAdmin  # generic for the type checker only


admin.site.unregister(Group)  # rights come from roles alone


@admin.register(User)
class PersonAdmin(BreakGlassAdmin, _UserAdmin):
    ordering = ("email",)
    list_display = ("email", "display_name", "platform_role", "is_active")
    search_fields = ("email", "display_name")
    list_filter = ("platform_role", "is_active")
    fieldsets: ClassVar[Any] = (
        (None, {"fields": ("email", "password", "display_name", "language")}),
        ("Rights", {"fields": ("platform_role", "is_active")}),
    )
    add_fieldsets: Any = (
        (None, {"classes": ("wide",), "fields": ("email", "password1", "password2", "platform_role")}),
    )

    def has_delete_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False  # the control API erases people, with all that stands elsewhere

    def save_model(self, request: HttpRequest, obj: User, form: Any, change: bool) -> None:
        obj.is_staff = obj.is_superuser = obj.platform_role == PlatformRole.SUPERUSER
        if {"platform_role", "is_active"} & set(form.changed_data):  # as the service does it
            obj.platform_role_source = RoleSource.MANUAL
            obj.sessions_ended += 1
        super().save_model(request, obj, form, change)

    def user_change_password(self, request: HttpRequest, id: str, form_url: str = "") -> HttpResponse:
        with transaction.atomic():
            user = self.get_object(request, id)
            before = user.password if user else ""
            response = super().user_change_password(request, id, form_url)
            if user is not None and User.objects.get(pk=user.pk).password != before:
                self.record("password_changed", user, request, {})
        return response


@admin.register(Tenant)
class TenantAdmin(BreakGlassAdmin):
    section = Section.GRANTS
    readonly_fields = ("parent",)  # moved by the control API, which lets no circle be closed
    list_display = ("slug", "name", "sla_tier", "state", "time_zone")
    search_fields = ("slug", "name")

    def formfield_for_dbfield(self, db_field: Any, request: HttpRequest, **kwargs: Any) -> Any:
        if db_field.name in ("response_retention_days", "conversation_retention_days"):
            kwargs["max_value"] = MOST_RETENTION_DAYS  # as the service has it; the column holds more
        return super().formfield_for_dbfield(db_field, request, **kwargs)

    def has_delete_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False  # the control API erases one, with all that stands elsewhere

    def changed_by(self, obj: Tenant) -> Iterable[tuple[Section, UUID]]:
        limits = obj.limits.order_by("pk").values_list("pk", flat=True)  # their days and months are of its zone
        return [*super().changed_by(obj), *((Section.LIMITS, limit_id) for limit_id in limits)]


@admin.register(Membership)
class MembershipAdmin(BreakGlassAdmin):
    fixed_fields = ("tenant", "user")
    list_display = ("tenant", "user", "role")
    list_select_related = ("tenant", "user")
    autocomplete_fields = ("tenant", "user")


@admin.register(ApiKey)
class ApiKeyAdmin(BreakGlassAdmin):
    """Keys are made in the portal, where the secret can be shown once."""

    section = Section.KEYS
    list_display = ("name", "tenant", "masked", "rpm_limit", "keep_alive", "expires_at", "revoked_at", "last_used_at")
    list_select_related = ("tenant",)
    search_fields = ("name", "last_four")
    readonly_fields = ("tenant", "prefix", "last_four", "created_by", "created_at", "last_used_at")
    exclude = ("digest",)
    show_full_result_count = False

    def has_add_permission(self, request: HttpRequest) -> bool:
        return False


@admin.register(AccessToken)
class AccessTokenAdmin(BreakGlassAdmin):
    """Made by `manage.py access_token`, which shows the secret once; here to be seen and deleted."""

    list_display = ("name", "user", "last_four", "expires_at", "created_at")
    list_select_related = ("user",)
    exclude = ("digest",)

    def has_add_permission(self, request: HttpRequest) -> bool:
        return False

    def has_change_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False


@admin.register(Grant)
class GrantAdmin(BreakGlassAdmin):
    section = Section.GRANTS
    epoch_field = "tenant_id"
    fixed_fields = ("tenant",)
    list_display = ("tenant", "principal_kind", "model_pattern", "actions", "effect", "expires_at")
    list_select_related = ("tenant",)


@admin.register(AuditEvent)
class AuditEventAdmin(ReadOnlyAdmin):
    paginator = NewestRows
    sortable_by = ()
    list_display = ("at", "action", "actor_kind", "actor_id", "subject_type", "subject_id")


@admin.register(UsageRecord)
class UsageRecordAdmin(ReadOnlyAdmin):
    paginator = NewestRows
    sortable_by = ()
    list_display = ("id", "model", "outcome", "status", "input_tokens", "output_tokens", "started_at")


@admin.register(DeadLetter)
class DeadLetterAdmin(ReadOnlyAdmin):
    list_display = ("entry_id", "reason", "at")


@admin.register(Limit)
class LimitAdmin(ReadOnlyAdmin):
    """Made and changed by the control API, which knows what makes sense."""

    list_display = ("tenant", "key", "model", "metric", "window", "amount", "boost_amount", "boost_until")
    list_select_related = ("tenant", "key")


@admin.register(Price)
class PriceAdmin(ReadOnlyAdmin):
    list_display = ("model", "version_id", "effective_from", "input_micros", "output_micros", "request_micros")


@admin.register(Adjustment)
class AdjustmentAdmin(ReadOnlyAdmin):
    list_display = ("tenant_id", "month", "kind", "amount_micros", "created_at")
