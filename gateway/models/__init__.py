"""What the gateway keeps."""

from gateway.models.response import StoredResponse as StoredResponse
