"""Serializers that describe the inference endpoints in the OpenAPI schema; bodies are parsed by msgspec."""
