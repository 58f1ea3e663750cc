"""Who may use the control API of tenants and keys."""

from rest_framework.permissions import SAFE_METHODS, BasePermission
from rest_framework.request import Request
from rest_framework.views import APIView

from tenants.models import User


class OperatorsChange(BasePermission):
    """Everyone who is signed in may look (at what is theirs), operators may change."""

    message = "Only platform operators may change tenants."

    def has_permission(self, request: Request, view: APIView) -> bool:
        user = request.user
        return isinstance(user, User) and (request.method in SAFE_METHODS or user.may_operate)


class SignedIn(BasePermission):
    """A person; what they may do in a tenant is their role's."""

    def has_permission(self, request: Request, view: APIView) -> bool:
        return isinstance(request.user, User)
