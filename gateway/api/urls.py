"""Addresses of the gateway in the web process."""

from django.urls import path, re_path

from gateway.api.inference import VIEWS, ModelsView, ModelView
from gateway.api.probes import healthz, metrics, nothing_here, readyz
from gateway.relay.routes import INFERENCE

urlpatterns = [
    path("v1/models", ModelsView.as_view()),
    path("v1/models/<path:name>", ModelView.as_view()),
    *(path(address.removeprefix("/"), VIEWS[api].as_view()) for address, api in INFERENCE.items()),
    re_path(r"^v1/", nothing_here),
    path("healthz", healthz),
    path("readyz", readyz),
    path("metrics", metrics),
]
