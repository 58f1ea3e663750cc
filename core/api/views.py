"""The floor of every control API view. With its person and actor: `tenants.api.base.ControlView`."""

from typing import Any, ClassVar

from rest_framework.request import Request
from rest_framework.serializers import Serializer
from rest_framework.views import APIView

from core.api.bodies import parse_body
from core.api.filters import Query, parse_query
from core.api.request_ids import request_id_of


class FloorView(APIView):
    """Parses bodies and query parameters; what services refuse becomes a problem elsewhere, so views catch nothing."""

    query_class: ClassVar[type[Query] | None] = None
    """Query parameters of GET. Others are refused, with every method."""
    conditional: ClassVar[tuple[str, ...]] = ()
    """Methods, in capitals, that ask for If-Match; for the schema (see core.api.etags)."""

    query: dict[str, Any]
    """The parsed query parameters."""

    def initial(self, request: Request, *args: Any, **kwargs: Any) -> None:
        super().initial(request, *args, **kwargs)
        reads = request.method in ("GET", "HEAD")
        paged = ("limit", "cursor") if reads and getattr(self, "pagination_class", None) is not None else ()
        self.query = parse_query(self.query_class if reads else None, request.query_params, also=paged)

    @property
    def request_id(self) -> str:
        return request_id_of(self.request)

    def parsed(self, serializer: type[Serializer[Any]], *, partial: bool = False) -> dict[str, Any]:
        """The body's values. Raises ValidationError (400) naming each wrong field."""
        return parse_body(serializer, self.request.data, partial=partial)
