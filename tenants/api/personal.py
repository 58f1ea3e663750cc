"""The control API of exports: everything about a tenant or a person as one file."""

from typing import Any
from uuid import UUID

from drf_spectacular.types import OpenApiTypes
from drf_spectacular.utils import OpenApiResponse, extend_schema
from rest_framework.exceptions import NotFound
from rest_framework.request import Request

from core.api.downloads import download
from tenants.api.access import platform_access, tenant_access
from tenants.api.base import ControlView
from tenants.models import User
from tenants.policies.roles import Action, Object
from tenants.reads.export import MEDIA_TYPE
from tenants.services.exports import export_person, export_tenant

_LINES = {
    (200, MEDIA_TYPE): OpenApiResponse(
        OpenApiTypes.STR, description="A JSON object a line; the last one says how many rows there are."
    )
}


class TenantExportView(ControlView):
    """Everything that is held about a tenant."""

    @extend_schema(responses=_LINES)
    def get(self, request: Request, slug: str) -> Any:
        """A download of all its rows, without secrets; for its owners and superusers. Audited."""
        tenant, _ = tenant_access(request, slug, Action.VIEW, Object.PERSONAL_DATA)
        lines = export_tenant(tenant, actor=self.actor)
        return download(request._request, f"{tenant.slug}.jsonl", MEDIA_TYPE, lines)


class PersonExportView(ControlView):
    """Everything that is held about a person."""

    @extend_schema(responses=_LINES)
    def get(self, request: Request, user_id: UUID) -> Any:
        """A download of all their rows, without secrets; for themselves and superusers. Audited."""
        if self.person.pk != user_id:
            platform_access(request, Action.VIEW, Object.PERSONAL_DATA)
        person = User.objects.filter(pk=user_id).first()
        if person is None:
            raise NotFound
        return download(
            request._request, f"person-{person.pk}.jsonl", MEDIA_TYPE, export_person(person, actor=self.actor)
        )
