"""The agent stream alone, for tests that need no pages."""

import os

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "config.settings")

from channels.routing import ProtocolTypeRouter, URLRouter
from django.core.asgi import get_asgi_application

_django = get_asgi_application()

from gpupool.stream.routing import websocket_urlpatterns  # noqa: E402  # after Django is set up

application = ProtocolTypeRouter({"http": _django, "websocket": URLRouter(websocket_urlpatterns)})
