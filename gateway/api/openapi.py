"""How the gateway's keys are described in the OpenAPI schema. Imported with the inference views."""

from typing import Any

from drf_spectacular.extensions import OpenApiAuthenticationExtension


class GatewayKeyScheme(OpenApiAuthenticationExtension):  # type: ignore[no-untyped-call]  # registers itself
    """API keys as bearer tokens."""

    target_class = "gateway.authentication.ApiKeyAuthentication"
    name = "gatewayKey"

    def get_security_definition(self, auto_schema: Any) -> dict[str, str]:
        return {"type": "http", "scheme": "bearer", "description": "An API key of a tenant: sk-gh-..."}
