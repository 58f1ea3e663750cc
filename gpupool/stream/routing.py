"""Websocket addresses of this app."""

from typing import Any

from django.urls import path

from gpupool.stream.consumer import AgentConsumer
from gpupool.stream.messages import STREAM_PATH

websocket_urlpatterns: list[Any] = [  # of views of Channels' own kind
    path(STREAM_PATH.removeprefix("/"), AgentConsumer.as_asgi()),  # type: ignore[arg-type]  # Django types its own only
]
