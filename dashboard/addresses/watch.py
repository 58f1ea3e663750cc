"""Console and portal: GPU memory, service levels, requests."""

from django.urls import URLPattern, path

from dashboard.views import gpu_memory_data, live
from dashboard.views.console import gpu_memory, requests, slo
from dashboard.views.portal import gpu_memory as portal_gpu_memory
from dashboard.views.portal import requests as portal_requests
from dashboard.views.portal import slo as portal_slo

patterns: list[URLPattern] = [
    path("console/requests/", requests.log, name="console-requests"),
    path("console/requests/stages/", requests.stages, name="console-request-stages"),
    path("console/requests/refused/", requests.refused, name="console-request-refused"),
    path("console/requests/<uuid:request_id>/", requests.one, name="console-request"),
    path("t/<slug:slug>/requests/", portal_requests.log, name="portal-requests"),
    path("t/<slug:slug>/requests/stages/", portal_requests.stages, name="portal-request-stages"),
    path("t/<slug:slug>/requests/refused/", portal_requests.refused, name="portal-request-refused"),
    path("t/<slug:slug>/requests/<uuid:request_id>/", portal_requests.one, name="portal-request"),
    path("live/", live.standing, name="live-standing"),
    path("console/gpu-memory/", gpu_memory.page, name="console-gpu-memory"),
    path("console/gpu-memory/processes/<uuid:node_id>/", gpu_memory.processes, name="console-gpu-memory-processes"),
    path("console/gpu-memory/frame/", gpu_memory_data.console_frame, name="console-gpu-memory-frame"),
    path("console/gpu-memory/history/", gpu_memory_data.console_history, name="console-gpu-memory-history"),
    path("console/gpu-memory/tree/", gpu_memory_data.console_tree, name="console-gpu-memory-tree"),
    path("t/<slug:slug>/gpu-memory/", portal_gpu_memory.page, name="portal-gpu-memory"),
    path("t/<slug:slug>/gpu-memory/frame/", gpu_memory_data.portal_frame, name="portal-gpu-memory-frame"),
    path("t/<slug:slug>/gpu-memory/history/", gpu_memory_data.portal_history, name="portal-gpu-memory-history"),
    path("t/<slug:slug>/gpu-memory/tree/", gpu_memory_data.portal_tree, name="portal-gpu-memory-tree"),
    path("console/slo/", slo.page, name="console-slo"),
    path("console/slo/new/", slo.new, name="console-slo-new"),
    path("console/slo/silence/", slo.silence, name="console-slo-silence-all"),
    path("console/slo/<uuid:objective_id>/", slo.page, name="console-slo-objective"),
    path("console/slo/<uuid:objective_id>/edit/", slo.edit, name="console-slo-edit"),
    path("console/slo/<uuid:objective_id>/delete/", slo.delete, name="console-slo-delete"),
    path("console/slo/<uuid:objective_id>/silence/", slo.silence, name="console-slo-silence"),
    path("console/slo/silences/<uuid:silence_id>/end/", slo.unsilence, name="console-slo-unsilence"),
    path("console/slo/alerts/<uuid:alert_id>/acknowledge/", slo.acknowledge, name="console-slo-acknowledge"),
    path("console/slo/tiers/", slo.tiers, name="console-slo-tiers"),
    path("t/<slug:slug>/slo/", portal_slo.page, name="portal-slo"),
    path("t/<slug:slug>/slo/new/", portal_slo.new, name="portal-slo-new"),
    path("t/<slug:slug>/slo/silence/", portal_slo.silence, name="portal-slo-silence-all"),
    path("t/<slug:slug>/slo/<uuid:objective_id>/", portal_slo.page, name="portal-slo-objective"),
    path("t/<slug:slug>/slo/<uuid:objective_id>/edit/", portal_slo.edit, name="portal-slo-edit"),
    path("t/<slug:slug>/slo/<uuid:objective_id>/delete/", portal_slo.delete, name="portal-slo-delete"),
    path("t/<slug:slug>/slo/<uuid:objective_id>/silence/", portal_slo.silence, name="portal-slo-silence"),
    path("t/<slug:slug>/slo/silences/<uuid:silence_id>/end/", portal_slo.unsilence, name="portal-slo-unsilence"),
    path(
        "t/<slug:slug>/slo/alerts/<uuid:alert_id>/acknowledge/", portal_slo.acknowledge, name="portal-slo-acknowledge"
    ),
]
