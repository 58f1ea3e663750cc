"""The backoffice as a whole; its pages are in tenants.breakglass."""

from typing import Any, Final

from django.contrib.admin import AdminSite
from django.http import HttpRequest

from tenants.models import User
from tenants.second_factor import lacks_second_factor

_NOT_SHOWN: Final = frozenset({"account", "mfa", "socialaccount"})
"""Apps of allauth: their pages would let secrets be typed into tables, and show second factors."""


class Backoffice(AdminSite):
    """For superusers, who come in by our log-in page."""

    def register(self, model_or_iterable: Any, admin_class: Any = None, **options: Any) -> None:
        models = model_or_iterable if isinstance(model_or_iterable, (list, tuple)) else [model_or_iterable]
        shown = [model for model in models if model._meta.app_label not in _NOT_SHOWN]
        super().register(shown, admin_class, **options)

    def has_permission(self, request: HttpRequest) -> bool:
        user = request.user
        return isinstance(user, User) and user.is_active and user.is_staff and not lacks_second_factor(user)
