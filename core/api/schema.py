"""What the OpenAPI schema says of views made on this floor, beside what it finds out by itself."""

from typing import Any, Final

from drf_spectacular.openapi import AutoSchema
from drf_spectacular.utils import OpenApiParameter

from core.api.idempotency import IdempotentCreate
from core.api.views import FloorView

_IDEMPOTENCY_KEY: Final = OpenApiParameter(
    "Idempotency-Key",
    {"type": "string", "minLength": 1, "maxLength": 255, "pattern": "^[!-~]+$"},
    OpenApiParameter.HEADER,
    description="A request that is sent again with the same key within 24 hours is done once.",
)
_IF_MATCH: Final = OpenApiParameter(
    "If-Match",
    {"type": "string"},
    OpenApiParameter.HEADER,
    required=True,
    description="The ETag of what is changed, as last read; * for whatever it is.",
)


class ControlSchema(AutoSchema):
    """Adds declared query parameters, `Idempotency-Key` and `If-Match`."""

    def get_override_parameters(self) -> list[Any]:
        found: list[Any] = list(super().get_override_parameters())
        if isinstance(self.view, FloorView):
            if self.method == "GET" and self.view.query_class is not None:
                found.append(self.view.query_class)
            if self.method in self.view.conditional:
                found.append(_IF_MATCH)
        if isinstance(self.view, IdempotentCreate) and self.method == "POST":
            found.append(_IDEMPOTENCY_KEY)
        return found
