"""One tree of errors: each carries the HTTP status, OpenAI `type` and `code` it is told as.

`render_openai` and `render_anthropic` are the only places that turn one into bytes for a client; both doors
(relay and DRF) use them, so that their answers are the same bytes.
"""

import math
from typing import ClassVar, Final

import msgspec


class GatehouseError(Exception):
    """Base of all errors that a caller is told about. `message` is shown to the caller."""

    status: ClassVar[int] = 500
    type: ClassVar[str] = "server_error"
    code: ClassVar[str] = "internal_error"
    default_message: ClassVar[str] = "The gateway failed to handle this request."

    def __init__(
        self,
        message: str | None = None,
        *,
        param: str | None = None,
        retry_after_seconds: float | None = None,
        headers: tuple[tuple[bytes, bytes], ...] = (),
    ) -> None:
        self.message = message or self.default_message
        self.param = param
        self.retry_after_seconds = retry_after_seconds
        self.headers = headers
        super().__init__(self.message)


class InvalidRequest(GatehouseError):
    status = 400
    type = "invalid_request_error"
    code = "invalid_request"
    default_message = "The request is not valid."


class BodyTooLarge(InvalidRequest):
    status = 413
    code = "request_too_large"
    default_message = "The request body is larger than this gateway accepts."


class BodyTimeout(InvalidRequest):
    status = 408
    code = "request_timeout"
    default_message = "The request body did not arrive in time."


class MethodNotAllowed(InvalidRequest):
    status = 405
    code = "method_not_allowed"
    default_message = "This method is not allowed here."


class NotFound(InvalidRequest):
    status = 404
    code = "not_found"
    default_message = "There is nothing at this address."


class ModelNotFound(InvalidRequest):
    """Unknown model and model without a grant: the same bytes, so names cannot be probed."""

    status = 404
    code = "model_not_found"
    default_message = "The model does not exist or you do not have access to it."


class Unauthenticated(GatehouseError):
    status = 401
    type = "invalid_request_error"
    code = "missing_api_key"
    default_message = "No API key given: send it as 'Authorization: Bearer <key>'."


class InvalidApiKey(Unauthenticated):
    """Unknown, revoked and expired keys are told alike."""

    code = "invalid_api_key"
    default_message = "Incorrect API key provided."


class PermissionDenied(GatehouseError):
    status = 403
    type = "permission_error"
    code = "permission_denied"
    default_message = "This key may not do that."


class TenantSuspended(PermissionDenied):
    code = "tenant_suspended"
    default_message = "This tenant is suspended."


class RateLimited(GatehouseError):
    status = 429
    type = "rate_limit_error"
    code = "rate_limit_exceeded"
    default_message = "Rate limit reached."
    metric = ""
    """What the limit counts that refused it (requests, tokens, ...), where it was one of the tenants' limits."""
    window = ""
    """In which window that limit counts (minute, month, standing, ...)."""
    lacking = 0
    """By how much the request was too large for what was left, in units of the metric."""


class QuotaExceeded(GatehouseError):
    """A calendar budget is used up: waiting a minute does not help."""

    status = 429
    type = "insufficient_quota"
    code = "insufficient_quota"
    default_message = "The budget is used up."
    metric = ""
    window = ""
    lacking = 0
    """All as of RateLimited."""


class Unavailable(GatehouseError):
    """Ours, not the caller's: 503 with Retry-After."""

    status = 503
    type = "server_error"
    code = "service_unavailable"
    default_message = "The gateway cannot serve this request now."


class NotSupported(InvalidRequest):
    """The model is there, but none of its engines can do what is asked."""

    code = "unsupported_by_model"
    default_message = "The model's engine does not support this."


class NoReadyInstance(Unavailable):
    code = "no_ready_instance"
    default_message = "No instance of this model is ready."


class StateStoreUnavailable(Unavailable):
    code = "state_store_unavailable"
    default_message = "Limits cannot be checked now."


class SnapshotStale(Unavailable):
    code = "configuration_unavailable"
    default_message = "The gateway has lost its configuration store."


class LedgerUnavailable(Unavailable):
    code = "ledger_unavailable"
    default_message = "Usage cannot be recorded now."


class Draining(Unavailable):
    code = "draining"
    default_message = "This gateway process is shutting down."


class UpstreamFailure(GatehouseError):
    """The engine failed before the first content byte and no other could be tried."""

    status = 502
    type = "server_error"
    code = "upstream_error"
    default_message = "The model's engine failed to answer."


class UpstreamTimeout(UpstreamFailure):
    status = 504
    code = "upstream_timeout"
    default_message = "The model's engine did not answer in time."


class _OpenAIError(msgspec.Struct):
    message: str
    type: str
    param: str | None
    code: str


class _OpenAIBody(msgspec.Struct):
    error: _OpenAIError


_encoder = msgspec.json.Encoder()
_CLOCK_SECONDS: Final = 0.01  # of a wait of whole seconds, computed from two readings of a clock


def render_openai(error: GatehouseError) -> bytes:
    """The body of an error in OpenAI's shape."""
    return _encoder.encode(_OpenAIBody(_OpenAIError(error.message, error.type, error.param, error.code)))


def render_openai_event(error: GatehouseError) -> bytes:
    """The same as one SSE event, for a stream that has already begun. No `[DONE]` follows it."""
    return b"data: " + render_openai(error) + b"\n\n"


def render_sentence(error: GatehouseError) -> bytes:
    """The body of an error in the Open Inference Protocol's shape: `{"error": "a sentence"}`."""
    return _encoder.encode({"error": error.message})


class _AnthropicError(msgspec.Struct):
    type: str
    message: str


class _AnthropicBody(msgspec.Struct):
    error: _AnthropicError
    request_id: str
    type: str = "error"


_ANTHROPIC_TYPES: Final = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
    504: "timeout_error",
    529: "overloaded_error",
}
"""Source: Anthropic's API reference, "Errors"."""


def render_anthropic(error: GatehouseError, request_id: str) -> bytes:
    """The body of an error in Anthropic's shape."""
    default = "invalid_request_error" if error.status < 500 else "api_error"
    kind = _ANTHROPIC_TYPES.get(error.status, default)
    return _encoder.encode(_AnthropicBody(_AnthropicError(kind, error.message), request_id))


def render_anthropic_event(error: GatehouseError, request_id: str) -> bytes:
    """The same as one SSE event, for a stream that has already begun. No `message_stop` follows it."""
    return b"event: error\ndata: " + render_anthropic(error, request_id) + b"\n\n"


def error_headers(error: GatehouseError) -> list[tuple[bytes, bytes]]:
    """Response headers of an error: content type, Retry-After where known, and the error's own."""
    headers = [(b"content-type", b"application/json")]
    if error.retry_after_seconds is not None:
        # Whole seconds, and none too few: whoever comes back when told shall not be told again.
        headers.append((b"retry-after", b"%d" % max(1, math.ceil(error.retry_after_seconds - _CLOCK_SECONDS))))
    if error.status == 401:
        headers.append((b"www-authenticate", b'Bearer realm="gatehouse"'))
    headers.extend(error.headers)
    return headers
