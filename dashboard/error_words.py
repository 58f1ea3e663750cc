"""What the gateway's error codes mean, in the reader's language: its answers speak English."""

from collections.abc import Mapping
from typing import Final

from django.utils.functional import Promise
from django.utils.translation import get_language
from django.utils.translation import gettext_lazy as _

CODES: Final[Mapping[str, Promise]] = {
    "internal_error": _("The gateway failed to handle this request."),
    "invalid_request": _("The request is not valid."),
    "unknown_parameter": _("The request has a parameter that is not known here."),
    "unsupported_content_encoding": _("The body's encoding is not supported."),
    "request_too_large": _("The request body is larger than this gateway accepts."),
    "headers_too_large": _("The request's headers are larger than this gateway accepts."),
    "request_timeout": _("The request did not arrive in time."),
    "method_not_allowed": _("This method is not allowed here."),
    "not_found": _("There is nothing at this address."),
    "model_not_found": _("The model does not exist, or there is no access to it."),
    "missing_api_key": _("No API key was given."),
    "invalid_api_key": _("The API key is not valid."),
    "permission_denied": _("The key may not do that."),
    "tenant_suspended": _("The tenant is suspended."),
    "rate_limit_exceeded": _("A limit is reached."),
    "insufficient_quota": _("The budget is used up."),
    "too_many_connections": _("There are too many connections."),
    "service_unavailable": _("The gateway cannot serve this request now."),
    "unsupported_by_model": _("The model's engine does not support this."),
    "no_ready_instance": _("No instance of this model is ready."),
    "state_store_unavailable": _("Limits cannot be checked now."),
    "configuration_unavailable": _("The gateway has lost its configuration store."),
    "ledger_unavailable": _("Usage cannot be recorded now."),
    "usage_unavailable": _("Usage cannot be read now."),
    "draining": _("The gateway's process is shutting down."),
    "upstream_error": _("The model's engine failed to answer."),
    "upstream_timeout": _("The model's engine did not answer in time."),
    "engine_error": _("The model's engine answered with an error."),
    "engine_unavailable": _("The model's engine cannot serve this request now."),
    "engine_rate_limited": _("The model's engine has too much to do."),
    "relay_memory_exhausted": _("The gateway's process holds as much as it may."),
    "read_too_slowly": _("The client read the answer too slowly."),
    "answer_too_large": _("The answer is larger than the gateway keeps."),
    "token_keys_unavailable": _("The keys of the token's issuer cannot be had now."),
    "response_store_unavailable": _("Stored responses cannot be read now."),
    "response_not_found": _("There is no such response."),
    "previous_response_not_found": _("The response before it is not stored any more."),
    "conversation_too_long": _("The conversation is too long."),
    "conversation_too_large": _("The conversation is larger than the gateway keeps."),
    "conversation_store_unavailable": _("Conversations cannot be stored now."),
    "fine_tuning_unavailable": _("Fine-tuning cannot be reached now."),
    "not_configured": _("This is not set up here."),
    "file_not_found": _("There is no such file."),
    "fine_tuning_job_not_found": _("There is no such fine-tuning job."),
    "conflict": _("It is not possible as things stand."),
}
"""By the code that answers and the request log name."""


def words_beside_english() -> dict[str, str]:
    """By code, where the page's language is not the one that the gateway's own messages are in."""
    if (get_language() or "en").startswith("en"):
        return {}
    return {code: str(said) for code, said in CODES.items()}
