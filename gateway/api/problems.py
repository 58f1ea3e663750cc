"""Errors of the control API as problem details (RFC 9457); the inference endpoints have OpenAI's shape."""

import json
import sys
from collections.abc import Mapping
from http import HTTPStatus
from typing import Any, Final

from django.core.exceptions import ObjectDoesNotExist
from django.db import InterfaceError, OperationalError
from django.http import HttpRequest, HttpResponse
from django.http.response import HttpResponseBase
from django.template import loader
from django.views import defaults
from psycopg.errors import DeadlockDetected
from rest_framework.exceptions import APIException, NotFound, ValidationError
from rest_framework.response import Response
from rest_framework.views import exception_handler

from core.api.etags import PreconditionFailed, PreconditionRequired
from core.api.idempotency import KeyReused
from core.api.request_ids import request_id_of
from core.errors import InvalidRequest
from core.refusals import Conflict, InvalidInput
from gateway.api.http import error_response
from gateway.relay.routes import INFERENCE, OIP, api_near

MEDIA_TYPE: Final = "application/problem+json"


class _ConflictProblem(APIException):
    status_code = HTTPStatus.CONFLICT


_URN: Final = "urn:gatehouse:problem:"
_KINDS: Final[Mapping[type[Exception], str]] = {
    ValidationError: _URN + "invalid-input",
    _ConflictProblem: _URN + "conflict",
    PreconditionFailed: _URN + "precondition-failed",
    PreconditionRequired: _URN + "precondition-required",
    KeyReused: _URN + "idempotency-key-reused",
}
"""Problems that a program may want to tell apart; a status says all about the others."""
_TITLES: Final[Mapping[str, str]] = {
    _URN + "invalid-input": "Invalid input",
    _URN + "conflict": "Conflict",
    _URN + "precondition-failed": "Changed since it was read",
    _URN + "precondition-required": "If-Match is missing",
    _URN + "idempotency-key-reused": "Idempotency key used for another request",
}
_AWAY_RETRY_SECONDS: Final = 5
_NOT_UNDERSTOOD: Final = "This request is not valid here: is its Host header one that this gateway is known by?"


def render_problem(error: Exception, context: dict[str, Any]) -> Response | None:
    """DRF's exception handler: `detail` is a sentence; `errors` names each wrong field of a body.

    `reasons` are the sentences of a conflict that has several.

    What services refuse is told here too: InvalidInput as 400, Conflict as 409, and what somebody else took away since
    the view found it as 404.
    """
    reasons: tuple[str, ...] = ()
    if isinstance(error, InvalidInput):
        error = ValidationError({error.field: [error.message]})
    elif isinstance(error, Conflict):
        reasons = error.reasons
        error = _ConflictProblem(error.message)
    elif isinstance(error, ObjectDoesNotExist):
        error = NotFound()
    elif isinstance(error, OperationalError) and isinstance(error.__cause__, DeadlockDetected):
        error = _ConflictProblem("Others changed what this is about at the same moment: nothing was done, try again.")
    response = exception_handler(error, context)
    if response is None:
        return None
    problem = _problem(response.status_code, context.get("request"), kind=_kind(error))
    if isinstance(error, ValidationError):
        errors = error.detail if isinstance(error.detail, dict) else {"non_field_errors": error.detail}
        problem["detail"] = "The request is not valid: " + ", ".join(errors) + "."
        problem["errors"] = errors
    elif isinstance(error, APIException):
        problem["detail"] = str(error.detail)
    else:
        problem["detail"] = str(response.data.get("detail", problem["title"])) if response.data else problem["title"]
    if reasons:
        problem["reasons"] = list(reasons)
    response.data = problem
    response.content_type = MEDIA_TYPE
    return response


def not_found(request: HttpRequest, exception: Exception) -> HttpResponseBase:
    """Django's handler404: addresses under /api/ get a problem, others the page."""
    if not request.path.startswith("/api/"):
        return defaults.page_not_found(request, exception)
    return _answer(request, 404, "There is nothing at this address.")


def bad_request(request: HttpRequest, exception: Exception) -> HttpResponseBase:
    """Django's handler400: it refuses a host that is not among ours, for one, before it looks for a view.

    Applications get it in the shape of the API that they asked; the reason stays in the log.
    """
    if request.path in INFERENCE or request.path.startswith(("/v1/", OIP)):
        return error_response(InvalidRequest(_NOT_UNDERSTOOD), api_near(request.path))
    if request.path.startswith("/api/"):
        return _answer(request, 400, _NOT_UNDERSTOOD)
    return defaults.bad_request(request, exception)


def server_error(request: HttpRequest) -> HttpResponseBase:
    """Django's handler500, told apart in the same way; 503 with Retry-After where it is only the database that is away.

    Called while the exception is being handled.
    """
    away = isinstance(sys.exc_info()[1], OperationalError | InterfaceError)
    if not request.path.startswith("/api/"):
        page = loader.get_template("500.html").render({"request_id": request_id_of(request)})
        answer: HttpResponseBase = HttpResponse(page, status=500)
    elif away:
        answer = _answer(request, 503, "The database cannot be reached now. Try again in a moment.")
    else:
        answer = _answer(request, 500, "The failure is ours and is in the log of the web process.")
    if away:
        answer.status_code = HTTPStatus.SERVICE_UNAVAILABLE
        answer["Retry-After"] = str(_AWAY_RETRY_SECONDS)
    return answer


def _kind(error: Exception) -> str:
    return next((urn for kind, urn in _KINDS.items() if isinstance(error, kind)), "about:blank")


def _problem(status: int, request: Any, *, kind: str = "about:blank") -> dict[str, Any]:
    problem = {"type": kind, "title": _TITLES.get(kind, HTTPStatus(status).phrase), "status": status}
    return problem | ({"request_id": request_id_of(request)} if request is not None else {})


def _answer(request: HttpRequest, status: int, detail: str) -> HttpResponse:
    body = json.dumps({**_problem(status, request), "detail": detail}, separators=(",", ":"))
    return HttpResponse(body, status=status, content_type=MEDIA_TYPE)
