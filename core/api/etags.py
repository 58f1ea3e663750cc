"""ETag and If-Match: of two people who change one thing at once, the second is told.

    with transaction.atomic():
        limit = Limit.objects.select_for_update().get(pk=limit_id)
        check_match(request, LimitSerializer(limit).data)
        limit = services.change_limit(limit.pk, actor=self.actor, **values)
    return tagged(LimitSerializer(limit).data)

Name such methods in the view's `conditional`, for the schema.
"""

import hashlib
import json
from collections.abc import Collection, Mapping
from typing import Any

from rest_framework import status
from rest_framework.exceptions import APIException
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.utils.encoders import JSONEncoder


class PreconditionRequired(APIException):
    """An update without If-Match: it would overwrite what its sender never saw."""

    status_code = status.HTTP_428_PRECONDITION_REQUIRED
    default_detail = "Say If-Match with the ETag of what you change; GET tells it."
    default_code = "precondition_required"


class PreconditionFailed(APIException):
    """It was changed since."""

    status_code = status.HTTP_412_PRECONDITION_FAILED
    default_detail = "It was changed since you read it: read it again."
    default_code = "precondition_failed"


def etag_of(representation: Mapping[str, Any], *, without: Collection[str] = ()) -> str:
    """A strong ETag, in its quotes, of what a serializer tells.

    `without` names members that change on their own (`last_used_at`) and are nobody's edit.
    """
    told = {name: value for name, value in representation.items() if name not in without}
    canonical = json.dumps(told, cls=JSONEncoder, sort_keys=True, separators=(",", ":"))
    return f'"{hashlib.sha256(canonical.encode()).hexdigest()[:32]}"'


def check_match(request: Request, representation: Mapping[str, Any], *, without: Collection[str] = ()) -> None:
    """Raises PreconditionRequired (428) without If-Match, PreconditionFailed (412) when it names another state.

    Call it with the row locked, in the transaction that writes: else two may pass at once.
    """
    said = request.headers.get("If-Match")
    if said is None:
        raise PreconditionRequired
    if said.strip() == "*":
        return
    if etag_of(representation, without=without) not in {tag.strip() for tag in said.split(",")}:
        raise PreconditionFailed


def tagged(representation: Mapping[str, Any], *, without: Collection[str] = (), status: int = 200) -> Response:
    """An answer with its ETag."""
    return Response(representation, status=status, headers={"ETag": etag_of(representation, without=without)})
