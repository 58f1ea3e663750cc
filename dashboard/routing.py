"""Websocket addresses of the pages; `config.web` puts sessions and the check of the origin around them."""

from django.urls import path

from dashboard.live.consumer import LiveConsumer

websocket_urlpatterns = [
    path("ws/live", LiveConsumer.as_asgi()),  # type: ignore[arg-type]  # Django types its own views only
]
