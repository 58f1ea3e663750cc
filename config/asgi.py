"""The web process: Django, websockets of pages and node agents, and the second door to inference."""

import os

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "config.settings")

from django.core.asgi import get_asgi_application

_django = get_asgi_application()  # before anything that touches models

from config.web import build_application  # noqa: E402

application = build_application(_django)
