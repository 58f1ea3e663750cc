"""Files and fine-tuning jobs as DRF views; gateway.relay.tuning answers at both doors."""

from typing import Final

from asgiref.sync import async_to_sync
from django.http import HttpResponse
from drf_spectacular.types import OpenApiTypes
from drf_spectacular.utils import OpenApiParameter, OpenApiResponse, extend_schema
from rest_framework.permissions import BasePermission
from rest_framework.request import Request

from gateway.api.base import InferenceView
from gateway.api.http import json_response
from gateway.api.runtime import current_runtime

_REFUSALS: Final = {
    400: OpenApiResponse(OpenApiTypes.OBJECT, description="What was sent makes no sense; `param` says where."),
    401: OpenApiResponse(OpenApiTypes.OBJECT, description="No key, or one that is not believed."),
    403: OpenApiResponse(OpenApiTypes.OBJECT, description="The key lacks the scope train."),
    404: OpenApiResponse(OpenApiTypes.OBJECT, description="No such thing of this tenant, or no such model."),
    409: OpenApiResponse(OpenApiTypes.OBJECT, description="It does not fit the state that things are in."),
    503: OpenApiResponse(OpenApiTypes.OBJECT, description="The store is away, or no trainer is configured."),
}
_ANSWERS: Final = {200: OpenApiTypes.OBJECT, **_REFUSALS}
_PAGE: Final = [
    OpenApiParameter("after", str, description="The id of the last item that is known."),
    OpenApiParameter("limit", int, description="1 to 100."),
]
_UPLOAD: Final = {
    "multipart/form-data": {
        "type": "object",
        "properties": {
            "purpose": {"type": "string", "enum": ["fine-tune"]},
            "file": {"type": "string", "format": "binary", "description": "JSON Lines, an example a line."},
        },
        "required": ["purpose", "file"],
    }
}
_TAG: Final = ["fine-tuning"]


class _TuningView(InferenceView):
    def get_permissions(self) -> list[BasePermission]:
        return []  # asked where both doors answer: the scope is train, and the model is in the body

    def answer(self, request: Request) -> HttpResponse:
        """What the relay would answer."""
        query = request.META.get("QUERY_STRING", "").encode("latin-1")
        told = async_to_sync(current_runtime().tuning.answer)(str(request.method), self.slim, query)
        response = json_response(told.body, self.slim)
        response["content-type"] = told.content_type
        return response


class FilesView(_TuningView):
    @extend_schema(operation_id="list_files", tags=_TAG, parameters=_PAGE, responses=_ANSWERS)
    def get(self, request: Request) -> HttpResponse:
        """The tenant's files, newest first."""
        return self.answer(request)

    @extend_schema(operation_id="create_file", tags=_TAG, request=_UPLOAD, responses=_ANSWERS)
    def post(self, request: Request) -> HttpResponse:
        """Upload examples; the first line that is none is told by its number."""
        return self.answer(request)


class FileView(_TuningView):
    @extend_schema(operation_id="get_file", tags=_TAG, responses=_ANSWERS)
    def get(self, request: Request, name: str) -> HttpResponse:
        """One of the tenant's files."""
        return self.answer(request)

    @extend_schema(operation_id="delete_file", tags=_TAG, responses=_ANSWERS)
    def delete(self, request: Request, name: str) -> HttpResponse:
        """Delete it, unless a job needs it."""
        return self.answer(request)


class FileContentView(_TuningView):
    @extend_schema(operation_id="get_file_content", tags=_TAG, responses={200: OpenApiTypes.BINARY, **_REFUSALS})
    def get(self, request: Request, name: str) -> HttpResponse:
        """Its bytes, as they were uploaded."""
        return self.answer(request)


class JobsView(_TuningView):
    @extend_schema(operation_id="list_fine_tuning_jobs", tags=_TAG, parameters=_PAGE, responses=_ANSWERS)
    def get(self, request: Request) -> HttpResponse:
        """The tenant's jobs, newest first; `metadata[name]=value` asks for those that have it."""
        return self.answer(request)

    @extend_schema(operation_id="create_fine_tuning_job", tags=_TAG, request=OpenApiTypes.OBJECT, responses=_ANSWERS)
    def post(self, request: Request) -> HttpResponse:
        """Ask for a training; OpenAI's body. The key needs the scope train, and a grant of it on the model."""
        return self.answer(request)


class JobView(_TuningView):
    @extend_schema(operation_id="get_fine_tuning_job", tags=_TAG, responses=_ANSWERS)
    def get(self, request: Request, name: str) -> HttpResponse:
        """One of the tenant's jobs."""
        return self.answer(request)


class JobCancelView(_TuningView):
    @extend_schema(operation_id="cancel_fine_tuning_job", tags=_TAG, request=None, responses=_ANSWERS)
    def post(self, request: Request, name: str) -> HttpResponse:
        """End it; what it has learnt is lost."""
        return self.answer(request)


class JobEventsView(_TuningView):
    @extend_schema(operation_id="list_fine_tuning_events", tags=_TAG, parameters=_PAGE, responses=_ANSWERS)
    def get(self, request: Request, name: str) -> HttpResponse:
        """What happened in it, newest first."""
        return self.answer(request)


class JobCheckpointsView(_TuningView):
    @extend_schema(operation_id="list_fine_tuning_checkpoints", tags=_TAG, parameters=_PAGE, responses=_ANSWERS)
    def get(self, request: Request, name: str) -> HttpResponse:
        """What it made: one, when it has succeeded."""
        return self.answer(request)
