"""The Open Inference Protocol, version 2 (KServe, Triton): passed on, with the model's name in the address replaced.

JSON only. Source: kserve/open-inference-protocol, specification/protocol/inference_rest.md; binary tensors are
Triton's extension of it.
"""

from typing import Final
from urllib.parse import quote

import msgspec

from core.errors import GatehouseError, InvalidRequest, NotFound
from gateway.relay.dialects.base import render_error_event
from gateway.relay.members import DuplicateMember, MalformedJson, Span, apply_edits, scan_members
from gateway.relay.plan import Api, DialectStream, ParsedBody, SlimRequest, Work
from gateway.relay.routes import find_infer
from gateway.relay.splice import check_utf8

BINARY_HEADER: Final = b"inference-header-content-length"


class _Wishes(msgspec.Struct):
    binary_data: object = None  # of one output
    binary_data_output: object = None  # of all


class _Output(msgspec.Struct):
    parameters: _Wishes | None = None


_parameters = msgspec.json.Decoder(_Wishes | None)
_outputs = msgspec.json.Decoder(list[_Output] | None)


def infer_work(request: SlimRequest) -> Work:
    """The body as it is; what precedes and follows the model's name in the address is the engine's room's to say.

    Raises InvalidRequest with `param` naming the member at fault.
    """
    found = find_infer(request.path)
    if found is None:
        raise NotFound
    if any(name == BINARY_HEADER for name, _ in request.headers):
        raise InvalidRequest(
            "Binary tensors are not supported here: send `data` as JSON, without Inference-Header-Content-Length."
        )
    body = request.body
    check_utf8(body)
    try:
        spans = scan_members(body)
    except (DuplicateMember, MalformedJson) as error:
        raise InvalidRequest(f"The body is not valid: {error}.") from error
    inputs = spans.get("inputs")
    if inputs is None:
        raise InvalidRequest("Missing required member: 'inputs'.", param="inputs")
    if not body.startswith(b"[", inputs[2]):
        raise InvalidRequest("Invalid value for 'inputs': expected an array.", param="inputs")
    _refuse_binary(body, spans)
    parsed = ParsedBody(found.model, stream=False, include_usage=False, n=1, max_tokens=0, spans={})
    path = f"/versions/{quote(found.version, safe='')}/infer" if found.version else "/infer"
    return Work(Api.INFER, path, body, parsed, InferDialect(request, found.model))


def _refuse_binary(body: bytes, spans: dict[str, Span]) -> None:
    """An answer in binary could not be read, and would look like the engine's fault."""
    try:
        wishes = [_parameters.decode(_value(body, spans.get("parameters")))]
    except msgspec.DecodeError as error:
        raise InvalidRequest(f"Invalid value for 'parameters': {error}.", param="parameters") from error
    try:
        wishes += [output.parameters for output in _outputs.decode(_value(body, spans.get("outputs"))) or ()]
    except msgspec.DecodeError as error:
        raise InvalidRequest(f"Invalid value for 'outputs': {error}.", param="outputs") from error
    if any(wish is not None and (wish.binary_data or wish.binary_data_output) for wish in wishes):
        raise InvalidRequest("Binary tensors are not supported here: ask for outputs as JSON.")


def _value(body: bytes, span: Span | None) -> bytes:
    return b"null" if span is None else body[span[2] : span[3]]


class InferDialect:
    """Answers under the name that the client asked for."""

    keep_alive = b""

    def __init__(self, request: SlimRequest, model: str) -> None:
        self._request = request
        self._model = model

    def stream(self) -> DialectStream:
        raise ValueError("answers of this protocol are no streams")

    async def whole(self, body: bytes) -> bytes:
        span = scan_members(body).get("model_name")
        if span is None:
            return body
        return apply_edits(body, [(span[2], span[3], msgspec.json.encode(self._model))])

    def error_event(self, error: GatehouseError) -> bytes:
        return render_error_event(self._request.api, error, self._request.request_id)
