"""Base of the admin pages under /backoffice/: superusers only, every write audited and published like a service's."""

from typing import TYPE_CHECKING, Any, ClassVar

from django.contrib import admin
from django.db import models, transaction
from django.http import HttpRequest

from core.epochs import Section, bump_epoch
from tenants.actor import user_actor
from tenants.services.audit import record_audit

if TYPE_CHECKING:
    _ModelAdmin = admin.ModelAdmin[Any]
else:
    _ModelAdmin = admin.ModelAdmin  # generic for the type checker only


class BreakGlassAdmin(_ModelAdmin):
    """Admin whose writes leave an audit row and bump `section` for the changed object."""

    section: ClassVar[Section | None] = None
    epoch_field: ClassVar[str] = "pk"
    """Attribute of the object whose value the section is told of."""

    def has_module_permission(self, request: HttpRequest) -> bool:
        return bool(request.user.is_active and request.user.is_superuser)

    def _publish(self, verb: str, obj: models.Model, request: HttpRequest, after: dict[str, Any]) -> None:
        assert request.user.pk is not None  # the admin lets nobody in who is not logged in
        actor = user_actor(request.user.pk)
        record_audit(f"backoffice.{obj._meta.model_name}.{verb}", subject=obj, actor=actor, after=after)
        if self.section is not None:
            bump_epoch(self.section, getattr(obj, self.epoch_field))

    def save_model(self, request: HttpRequest, obj: Any, form: Any, change: bool) -> None:
        with transaction.atomic():
            super().save_model(request, obj, form, change)
            # Names of fields only: values may be secrets or personal.
            self._publish("changed" if change else "created", obj, request, {"fields": list(form.changed_data)})

    def delete_model(self, request: HttpRequest, obj: Any) -> None:
        with transaction.atomic():
            self._publish("deleted", obj, request, {})
            super().delete_model(request, obj)

    def delete_queryset(self, request: HttpRequest, queryset: models.QuerySet[Any]) -> None:
        for obj in queryset:
            self.delete_model(request, obj)


class ReadOnlyAdmin(BreakGlassAdmin):
    """For rows that nobody edits by hand."""

    show_full_result_count = False  # a count of the ledger would scan it

    def has_add_permission(self, request: HttpRequest) -> bool:
        return False

    def has_change_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False

    def has_delete_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False
