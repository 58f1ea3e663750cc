"""The gateway's own door, asked with a person's playground key: the same view, limits and ledger as for any client."""

from typing import Final

from django.http import HttpRequest
from django.http.response import HttpResponseBase

from gateway.api.inference import ChatCompletionsView
from gateway.relay.routes import INFERENCE

_PASSED: Final = frozenset(
    {"CONTENT_TYPE", "CONTENT_LENGTH", "QUERY_STRING", "REMOTE_ADDR", "REMOTE_HOST", "REMOTE_PORT", "REQUEST_METHOD",
     "SERVER_NAME", "SERVER_PORT", "SERVER_PROTOCOL", "HTTP_HOST"}
)  # fmt: skip
"""Nothing of the browser's goes further: no cookie, no token of a form, no header that a page could choose."""

_PATH: Final = next(address for address, api in INFERENCE.items() if api is ChatCompletionsView.api)


def ask_gateway(request: HttpRequest, secret: str) -> HttpResponseBase:
    """What the gateway answers to the request's body when it comes with `secret`, streamed if that asks for it.

    The body must be unread; who may ask, and that the page is ours (CSRF), has been looked at before.
    """
    asked = object.__new__(type(request))
    asked.__dict__.update(request.__dict__)  # the body's stream and the connection are the same ones
    asked.META = {name: value for name, value in request.META.items() if name in _PASSED}
    asked.META["HTTP_AUTHORIZATION"] = f"Bearer {secret}"
    asked.COOKIES = {}
    asked.path = asked.path_info = _PATH
    asked.__dict__.pop("headers", None)  # made from META when first asked for
    response: HttpResponseBase = ChatCompletionsView.as_view()(asked)
    return response
