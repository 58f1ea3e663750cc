"""A key's own usage as a DRF view; gateway.relay.own_usage answers at both doors."""

from asgiref.sync import async_to_sync
from django.http import HttpResponse
from drf_spectacular.types import OpenApiTypes
from drf_spectacular.utils import OpenApiParameter, OpenApiResponse, extend_schema
from rest_framework.permissions import BasePermission
from rest_framework.request import Request

from gateway.api.base import InferenceView
from gateway.api.http import json_response
from gateway.api.runtime import current_runtime


class OwnUsageView(InferenceView):
    """What the key itself has used, and how the limits stand that hold it."""

    def get_permissions(self) -> list[BasePermission]:
        return []  # whatever a key may do, it may know what it did

    @extend_schema(
        operation_id="get_usage",
        tags=["inference"],
        parameters=[
            OpenApiParameter("start", str, description="A day, a time or seconds; this month where not given."),
            OpenApiParameter("end", str, description="The same; now where not given. At most 93 days later."),
            OpenApiParameter("by", str, enum=["day", "model", "day,model"], description="day,model where not given."),
        ],
        responses={
            200: OpenApiTypes.OBJECT,
            400: OpenApiResponse(OpenApiTypes.OBJECT, description="A parameter that makes no sense."),
            401: OpenApiResponse(OpenApiTypes.OBJECT, description="No key, or one that is not believed."),
            503: OpenApiResponse(OpenApiTypes.OBJECT, description="The database is away; see Retry-After."),
        },
    )
    def get(self, request: Request) -> HttpResponse:
        """Sums by day and model, in the tenant's zone; money in millionths of the currency."""
        query = request.META.get("QUERY_STRING", "").encode("latin-1")
        usage = current_runtime().usage
        return json_response(async_to_sync(usage.answer)(str(request.method), self.slim, query), self.slim)
