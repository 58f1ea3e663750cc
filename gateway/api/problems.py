"""Errors of the control API as problem details (RFC 9457); the inference endpoints have OpenAI's shape."""

from http import HTTPStatus
from typing import Any, Final

from rest_framework.exceptions import APIException, ValidationError
from rest_framework.response import Response
from rest_framework.views import exception_handler

MEDIA_TYPE: Final = "application/problem+json"


def render_problem(error: Exception, context: dict[str, Any]) -> Response | None:
    """DRF's exception handler: `detail` is a sentence; `errors` names each wrong field of a body."""
    response = exception_handler(error, context)
    if response is None:
        return None
    problem: dict[str, Any] = {
        "type": "about:blank",
        "title": HTTPStatus(response.status_code).phrase,
        "status": response.status_code,
    }
    if isinstance(error, ValidationError):
        errors = error.detail if isinstance(error.detail, dict) else {"non_field_errors": error.detail}
        problem["detail"] = "The request is not valid: " + ", ".join(errors) + "."
        problem["errors"] = errors
    elif isinstance(error, APIException):
        problem["detail"] = str(error.detail)
    else:
        problem["detail"] = str(response.data.get("detail", problem["title"])) if response.data else problem["title"]
    response.data = problem
    response.content_type = MEDIA_TYPE
    return response
