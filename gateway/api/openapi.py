"""How the OpenAPI schema describes keys and refusals. Imported with the inference views."""

from typing import Any, Final

from drf_spectacular.extensions import OpenApiAuthenticationExtension

from gateway.api.problems import MEDIA_TYPE

_PROBLEM: Final = {
    "type": "object",
    "description": "Problem details (RFC 9457).",
    "properties": {
        "type": {"type": "string"},
        "title": {"type": "string"},
        "status": {"type": "integer"},
        "detail": {"type": "string", "description": "What is wrong, in a sentence."},
        "errors": {
            "type": "object",
            "description": "What is wrong with each field of the body; in answers with status 400.",
            "additionalProperties": {},
        },
    },
    "required": ["type", "title", "status", "detail"],
}
_REFUSALS: Final = {
    "400": "The body is not valid; `errors` names the fields at fault.",
    "401": "No session and no token, or an unknown one.",
    "403": "Your role does not allow it.",
    "404": "There is no such thing, or you may not know of it.",
}


class GatewayKeyScheme(OpenApiAuthenticationExtension):  # type: ignore[no-untyped-call]  # registers itself
    """API keys, as OpenAI's clients send them or as Anthropic's do."""

    target_class = "gateway.authentication.ApiKeyAuthentication"
    name = ["gatewayKey", "gatewayKeyHeader"]  # the library's own way

    def get_security_definition(self, auto_schema: Any) -> list[dict[str, str]]:
        text = "An API key of a tenant: sk-gh-..."
        return [
            {"type": "http", "scheme": "bearer", "description": text},
            {"type": "apiKey", "in": "header", "name": "x-api-key", "description": text},
        ]

    def get_security_requirement(self, auto_schema: Any) -> list[dict[str, list[str]]]:
        return [{name: []} for name in self.name]  # either of them; the library would ask for both


def describe_problems(result: dict[str, Any], **_: Any) -> dict[str, Any]:
    """drf-spectacular's hook: how each operation of the control API refuses, which is the same everywhere."""
    result.setdefault("components", {}).setdefault("schemas", {})["Problem"] = _PROBLEM
    for path, operations in result["paths"].items():
        if not path.startswith("/api/"):
            continue
        for operation in operations.values():
            for status in _refusals(path, operation):
                operation["responses"].setdefault(status, _response(status))
    return result


def _refusals(path: str, operation: dict[str, Any]) -> list[str]:
    paged = any(parameter["name"] == "cursor" for parameter in operation.get("parameters", ()))
    found = ["401", "403"]
    if "requestBody" in operation:
        found.append("400")
    if "{" in path or paged:  # a cursor that no page handed out is not there either
        found.append("404")
    return found


def _response(status: str) -> dict[str, Any]:
    schema = {"$ref": "#/components/schemas/Problem"}
    return {"description": _REFUSALS[status], "content": {MEDIA_TYPE: {"schema": schema}}}
