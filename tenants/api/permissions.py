"""Who may use the control API of tenants and keys."""

from rest_framework.permissions import BasePermission
from rest_framework.request import Request
from rest_framework.views import APIView

from tenants.models import User


class SignedIn(BasePermission):
    """A person; what they may do in a tenant is their role's."""

    def has_permission(self, request: Request, view: APIView) -> bool:
        return isinstance(request.user, User)
