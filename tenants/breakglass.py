"""Base of the admin pages under /backoffice/: superusers only, every write audited and published like a service's."""

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, ClassVar
from uuid import UUID

from django.contrib import admin
from django.core.paginator import Paginator
from django.db import models, transaction
from django.http import HttpRequest
from django.utils.functional import cached_property

from core.epochs import Section, bump_epoch
from tenants.actor import user_actor
from tenants.models import Tenant
from tenants.services.audit import record_audit

if TYPE_CHECKING:
    _ModelAdmin = admin.ModelAdmin[Any]
    _Paginator = Paginator[models.QuerySet[Any]]
else:
    _ModelAdmin = admin.ModelAdmin  # generic for the type checker only
    _Paginator = Paginator


class BreakGlassAdmin(_ModelAdmin):
    """Admin whose writes leave an audit row and bump the epochs of what `changed_by` names."""

    section: ClassVar[Section | None] = None
    epoch_field: ClassVar[str] = "pk"
    """Attribute of the object whose value the section is told of."""
    fixed_fields: ClassVar[tuple[str, ...]] = ()
    """Set when a row is made, and shown only afterwards: what moves between owners would concern both."""

    def changed_by(self, obj: Any) -> Iterable[tuple[Section, UUID]]:
        """Sections and objects that a write to `obj` concerns, in the order in which sections are locked."""
        return [] if self.section is None else [(self.section, getattr(obj, self.epoch_field))]

    def has_module_permission(self, request: HttpRequest) -> bool:
        return bool(request.user.is_active and request.user.is_superuser)

    def has_view_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return self.has_module_permission(request)

    def has_add_permission(self, request: HttpRequest) -> bool:
        return self.has_module_permission(request)

    def has_change_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return self.has_module_permission(request)

    def has_delete_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return self.has_module_permission(request)

    def get_readonly_fields(self, request: HttpRequest, obj: Any = None) -> list[Any]:
        fixed = self.fixed_fields if obj is not None else ()
        return [*super().get_readonly_fields(request, obj), *fixed]

    def record(self, verb: str, obj: models.Model, request: HttpRequest, after: dict[str, Any]) -> None:
        """The audit row of a write; names of fields only, for values may be secrets or personal."""
        assert request.user.pk is not None  # the admin lets nobody in who is not logged in
        record_audit(
            f"backoffice.{obj._meta.model_name}.{verb}",
            subject=obj,
            actor=user_actor(request.user.pk),
            tenant_id=obj.pk if isinstance(obj, Tenant) else getattr(obj, "tenant_id", None),
            after=after,
        )

    def _publish(self, obj: models.Model) -> None:
        for section, object_id in self.changed_by(obj):
            bump_epoch(section, object_id)

    def save_model(self, request: HttpRequest, obj: Any, form: Any, change: bool) -> None:
        with transaction.atomic():
            super().save_model(request, obj, form, change)
            self.record("changed" if change else "created", obj, request, {"fields": list(form.changed_data)})
            self._publish(obj)

    def delete_model(self, request: HttpRequest, obj: Any) -> None:
        with transaction.atomic():
            self.record("deleted", obj, request, {})
            self._publish(obj)
            super().delete_model(request, obj)

    def delete_queryset(self, request: HttpRequest, queryset: models.QuerySet[Any]) -> None:
        with transaction.atomic():
            for obj in queryset:
                self.delete_model(request, obj)


class NewestRows(_Paginator):
    """Pages through the newest MOST rows: to count or to sort all of the ledger would read all of it."""

    MOST: ClassVar[int] = 10_000

    @cached_property
    def count(self) -> int:
        rows: Any = self.object_list  # the admin gives a query
        return int(rows[: self.MOST].count())


class ReadOnlyAdmin(BreakGlassAdmin):
    """For rows that nobody edits by hand."""

    show_full_result_count = False  # a count of the ledger would scan it

    def has_add_permission(self, request: HttpRequest) -> bool:
        return False

    def has_change_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False

    def has_delete_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False
