"""Addresses of the gateway in the web process."""

from django.urls import path, re_path

from gateway.api.inference import ChatCompletionsView, CompletionsView, ModelsView, ModelView
from gateway.api.probes import healthz, metrics, nothing_here, readyz

urlpatterns = [
    path("v1/models", ModelsView.as_view()),
    path("v1/models/<path:name>", ModelView.as_view()),
    path("v1/chat/completions", ChatCompletionsView.as_view()),
    path("v1/completions", CompletionsView.as_view()),
    re_path(r"^v1/", nothing_here),
    path("healthz", healthz),
    path("readyz", readyz),
    path("metrics", metrics),
]
