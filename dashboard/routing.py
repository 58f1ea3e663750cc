"""Websocket addresses of the pages; `config.web` puts sessions and the check of the origin around them."""

from django.urls import path

from dashboard.consumers import ConsoleConsumer

websocket_urlpatterns = [
    path("ws/console", ConsoleConsumer.as_asgi()),  # type: ignore[arg-type]  # Django types its own views only
]
