"""The API reference: Swagger UI, served by us."""

from typing import Any

from drf_spectacular.utils import extend_schema
from drf_spectacular.views import SpectacularSwaggerSplitView
from rest_framework.request import Request
from rest_framework.response import Response

from dashboard.csp import allow_written_styles


class ReferenceView(SpectacularSwaggerSplitView):
    """The page and, at the same address, its script, so that scripts need no exception in the policy."""

    @extend_schema(exclude=True)
    def get(self, request: Request, *args: Any, **kwargs: Any) -> Response:
        allow_written_styles(request._request)
        response: Response = super().get(request, *args, **kwargs)  # type: ignore[no-untyped-call]  # spectacular has no types
        return response
