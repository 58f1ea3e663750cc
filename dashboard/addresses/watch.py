"""Console and portal: GPU memory, service levels, requests."""

from django.urls import URLPattern, path

from dashboard.views import live
from dashboard.views.console import gpu_memory
from dashboard.views.portal import gpu_memory as portal_gpu_memory

patterns: list[URLPattern] = [
    path("live/", live.standing, name="live-standing"),
    path("console/gpu-memory/", gpu_memory.page, name="console-gpu-memory"),
    path("console/gpu-memory/processes/<uuid:node_id>/", gpu_memory.processes, name="console-gpu-memory-processes"),
    path("t/<slug:slug>/gpu-memory/", portal_gpu_memory.page, name="portal-gpu-memory"),
]
