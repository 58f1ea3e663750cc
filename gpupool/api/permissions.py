"""Who may use the pool's control API: platform roles, and nobody by a tenant's."""

from rest_framework.permissions import SAFE_METHODS, BasePermission
from rest_framework.request import Request
from rest_framework.views import APIView

from tenants.models import User


class PlatformRolePermission(BasePermission):
    """Readers of the platform may look, operators may change."""

    message = "This needs a platform role: read-only to look, operator to change."

    def has_permission(self, request: Request, view: APIView) -> bool:
        user = request.user
        if not isinstance(user, User):
            return False
        return user.may_read_platform if request.method in SAFE_METHODS else user.may_operate
