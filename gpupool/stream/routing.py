"""Websocket addresses of this app."""

from django.urls import path

from gpupool.stream.consumer import AgentConsumer
from gpupool.stream.messages import STREAM_PATH

websocket_urlpatterns = [path(STREAM_PATH.removeprefix("/"), AgentConsumer.as_asgi())]  # type: ignore[arg-type]  # Channels' own use of path()
