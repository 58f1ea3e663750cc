"""Stored responses as DRF views; gateway.relay.stored answers at both doors."""

from typing import Final

from asgiref.sync import async_to_sync
from django.http import HttpResponse
from drf_spectacular.types import OpenApiTypes
from drf_spectacular.utils import OpenApiParameter, OpenApiResponse, extend_schema
from rest_framework.request import Request

from gateway.api.base import InferenceView
from gateway.api.http import json_response
from gateway.api.runtime import current_runtime
from gateway.relay.plan import Api

_REFUSALS: Final = {
    401: OpenApiResponse(OpenApiTypes.OBJECT, description="No key, or one that is unknown, revoked or expired."),
    404: OpenApiResponse(OpenApiTypes.OBJECT, description="No such response of this tenant, or not any more."),
    503: OpenApiResponse(OpenApiTypes.OBJECT, description="The store is away; see Retry-After."),
}


class _StoredView(InferenceView):
    api = Api.RESPONSES

    def answer(self, request: Request) -> HttpResponse:
        """What the relay would answer."""
        query = request.META.get("QUERY_STRING", "").encode("latin-1")
        stored = current_runtime().stored
        return json_response(async_to_sync(stored.answer)(str(request.method), self.slim, query), self.slim)


class StoredResponseView(_StoredView):
    """One stored response."""

    @extend_schema(operation_id="get_response", tags=["inference"], responses={200: OpenApiTypes.OBJECT, **_REFUSALS})
    def get(self, request: Request, name: str) -> HttpResponse:
        """The response, if it belongs to the key's tenant."""
        return self.answer(request)

    @extend_schema(
        operation_id="delete_response", tags=["inference"], responses={200: OpenApiTypes.OBJECT, **_REFUSALS}
    )
    def delete(self, request: Request, name: str) -> HttpResponse:
        """Delete it; conversations cannot be gone on from it any more."""
        return self.answer(request)


class InputItemsView(_StoredView):
    """What a stored response was asked."""

    @extend_schema(
        operation_id="list_response_input_items",
        tags=["inference"],
        parameters=[
            OpenApiParameter("after", str, description="The id of the last item that is known."),
            OpenApiParameter("limit", int, description="1 to 100, 20 where not given."),
            OpenApiParameter("order", str, enum=["asc", "desc"], description="desc where not given."),
        ],
        responses={200: OpenApiTypes.OBJECT, **_REFUSALS},
    )
    def get(self, request: Request, name: str) -> HttpResponse:
        """The items of its own request, page by page."""
        return self.answer(request)


class CancelResponseView(_StoredView):
    """For responses in the background, which there are none of."""

    @extend_schema(
        operation_id="cancel_response",
        tags=["inference"],
        request=None,
        responses={400: OpenApiResponse(OpenApiTypes.OBJECT, description="Always, where it exists."), **_REFUSALS},
    )
    def post(self, request: Request, name: str) -> HttpResponse:
        """Refused: no response runs in the background."""
        return self.answer(request)
