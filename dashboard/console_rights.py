"""What the person behind a page of the console may do, by their platform role alone."""

from django.core.exceptions import PermissionDenied
from django.http import HttpRequest

from dashboard.access import signed_in
from tenants.actor import Actor, user_actor
from tenants.policies.roles import Action, Object, may


def allowed(request: HttpRequest, action: Action, on: Object) -> bool:
    return may(action, on, platform_role=signed_in(request).active_platform_role, tenant_role=None)


def require(request: HttpRequest, action: Action, on: Object) -> Actor:
    """Whom the audit log names for what follows. Raises PermissionDenied unless they may."""
    if not allowed(request, action, on):
        raise PermissionDenied
    return user_actor(signed_in(request).pk)
