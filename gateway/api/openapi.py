"""How the OpenAPI schema describes keys and refusals. Imported with the inference views."""

from typing import Any, Final

from drf_spectacular.authentication import SessionScheme
from drf_spectacular.extensions import OpenApiAuthenticationExtension

from gateway.api.problems import MEDIA_TYPE

_PROBLEM: Final = {
    "type": "object",
    "description": "Problem details (RFC 9457).",
    "properties": {
        "type": {"type": "string", "description": "A URN that programs may compare, or about:blank."},
        "title": {"type": "string"},
        "status": {"type": "integer"},
        "detail": {"type": "string", "description": "What is wrong, in a sentence."},
        "request_id": {"type": "string", "description": "As in the header X-Request-Id, log and audit log."},
        "errors": {
            "type": "object",
            "description": "What is wrong with each field of the body; in answers with status 400.",
            "additionalProperties": {},
        },
    },
    "required": ["type", "title", "status", "detail", "request_id"],
}
_REFUSALS: Final = {
    "400": "The body or a query parameter is not valid; `errors` names the fields at fault.",
    "401": "No session and no token, or an unknown one.",
    "403": "Your role does not allow it.",
    "404": "There is no such thing, or you may not know of it.",
    "409": "It does not fit the state things are in now; or a request with this Idempotency-Key is still running.",
    "412": "It was changed since you read it.",
    "415": "The body is not JSON.",
    "422": "The Idempotency-Key was used for another request.",
    "428": "If-Match is missing.",
}


class GatewayKeyScheme(OpenApiAuthenticationExtension):  # type: ignore[no-untyped-call]  # registers itself
    """API keys, as OpenAI's clients send them or as Anthropic's do, and tokens of issuers."""

    target_class = "gateway.authentication.MachineAuthentication"
    name = ["gatewayKey", "gatewayKeyHeader", "gatewayToken"]  # the library's own way

    def get_security_definition(self, auto_schema: Any) -> list[dict[str, str]]:
        text = "An API key of a tenant: sk-gh-..."
        return [
            {"type": "http", "scheme": "bearer", "description": text},
            {"type": "apiKey", "in": "header", "name": "x-api-key", "description": text},
            {
                "type": "http",
                "scheme": "bearer",
                "bearerFormat": "JWT",
                "description": "A token of an issuer that an operator has registered.",
            },
        ]

    def get_security_requirement(self, auto_schema: Any) -> list[dict[str, list[str]]]:
        return [{name: []} for name in self.name]  # either of them; the library would ask for both


class BrowserScheme(SessionScheme):  # type: ignore[no-untyped-call]  # drf-spectacular publishes no types; registers itself
    """Sessions of the console, which may ask for a second factor."""

    target_class = "tenants.api.authentication.BrowserAuthentication"


def describe_problems(result: dict[str, Any], **_: Any) -> dict[str, Any]:
    """drf-spectacular's hook: how each operation of the control API refuses, which is the same everywhere."""
    result.setdefault("components", {}).setdefault("schemas", {})["Problem"] = _PROBLEM
    for path, operations in result["paths"].items():
        if not path.startswith("/api/"):
            continue
        for method, operation in operations.items():
            for status in _refusals(path, method, operation):
                operation["responses"].setdefault(status, _response(status))
    return result


def _refusals(path: str, method: str, operation: dict[str, Any]) -> list[str]:
    names = {parameter["name"] for parameter in operation.get("parameters", ())}
    found = ["400", "401", "403"]
    # A cursor that no page handed out is not there either, nor what a body or a query may name.
    if "{" in path or not names.isdisjoint({"cursor", "node"}) or "requestBody" in operation:
        found.append("404")
    if method != "get":
        found.append("409")
    if "requestBody" in operation:
        found.append("415")
    if "If-Match" in names:
        found += ["412", "428"]
    if "Idempotency-Key" in names:
        found.append("422")
    return found


def _response(status: str) -> dict[str, Any]:
    schema = {"$ref": "#/components/schemas/Problem"}
    return {"description": _REFUSALS[status], "content": {MEDIA_TYPE: {"schema": schema}}}
