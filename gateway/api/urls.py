"""Addresses of the gateway in the web process."""

from django.urls import path, re_path

from gateway.api.inference import VIEWS, ModelsView, ModelView
from gateway.api.probes import healthz, metrics, nothing_here, readyz
from gateway.api.stored import CancelResponseView, InputItemsView, StoredResponseView
from gateway.relay.routes import INFERENCE

urlpatterns = [
    path("v1/models", ModelsView.as_view()),
    path("v1/models/<path:name>", ModelView.as_view()),
    *(path(address.removeprefix("/"), VIEWS[api].as_view()) for address, api in INFERENCE.items()),
    path("v1/responses/<str:name>", StoredResponseView.as_view()),
    path("v1/responses/<str:name>/input_items", InputItemsView.as_view()),
    path("v1/responses/<str:name>/cancel", CancelResponseView.as_view()),
    re_path(r"^v1/", nothing_here),
    path("healthz", healthz),
    path("readyz", readyz),
    path("metrics", metrics),
]
