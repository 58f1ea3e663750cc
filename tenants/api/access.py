"""Who may use the control API: outsiders are told 404, people whose role does not allow it 403."""

from typing import NamedTuple

from rest_framework.exceptions import NotFound, PermissionDenied
from rest_framework.request import Request

from tenants import selectors
from tenants.models import Tenant, TenantState, User
from tenants.policies.roles import Action, Object, may


class TenantAccess(NamedTuple):
    """A tenant, and one's role in it: None for platform roles that are no members."""

    tenant: Tenant
    role: str | None


def person_of(request: Request) -> User:
    """The person behind a request. Raises PermissionDenied where it is none."""
    if not isinstance(request.user, User):
        raise PermissionDenied
    return request.user


def tenant_access(request: Request, slug: str, action: Action, on: Object) -> TenantAccess:
    """The tenant, if the person may do `action` to its `on`.

    Raises NotFound for outsiders, as if there were no such tenant, and PermissionDenied where their role, or the
    tenant's suspension, does not allow it.
    """
    access = find_tenant(request, slug)
    require(request, access, action, on)
    return access


def find_tenant(request: Request, slug: str) -> TenantAccess:
    """The tenant, for its members and for platform roles; for what only the object found in it decides.

    Raises NotFound for outsiders.
    """
    user = person_of(request)
    try:
        tenant = selectors.get_tenant_for(user, slug)
    except Tenant.DoesNotExist as error:
        raise NotFound from error
    return TenantAccess(tenant, selectors.get_role(user, tenant))


def require(request: Request, access: TenantAccess, action: Action, on: Object) -> None:
    """Raises PermissionDenied unless the person may do `action` to the tenant's `on`."""
    if is_allowed_in(request, access, action, on):
        return
    if access.tenant.state == TenantState.SUSPENDED and action is Action.CREATE:
        raise PermissionDenied("This tenant is suspended.")
    raise PermissionDenied(f"Your role in this tenant may not {action} its {_words(on)}.")


def is_allowed_in(request: Request, access: TenantAccess, action: Action, on: Object) -> bool:
    """The same as an answer."""
    return may(
        action,
        on,
        platform_role=person_of(request).active_platform_role,
        tenant_role=access.role,
        suspended=access.tenant.state == TenantState.SUSPENDED,
    )


def platform_access(request: Request, action: Action, on: Object) -> User:
    """The person, if their platform role may do `action` to the platform's `on`. Raises PermissionDenied."""
    user = person_of(request)
    if not may(action, on, platform_role=user.active_platform_role, tenant_role=None):
        raise PermissionDenied(f"Your platform role may not {action} {_words(on)}.")
    return user


def _words(on: Object) -> str:
    return on.value.replace("_", " ")
