"""Addresses of the gateway in the web process."""

from django.urls import path, re_path

from gateway.api import alerts, objectives
from gateway.api.breakers import BreakersView
from gateway.api.capacity import ImpactView
from gateway.api.conversations import ConversationListView, ConversationView
from gateway.api.inference import VIEWS, InferModelView, InferView, ModelsView, ModelView
from gateway.api.probes import about_server_here, healthz, metrics, no_inference_here, nothing_here, readyz
from gateway.api.reconciliation import ReconciliationView
from gateway.api.stored import CancelResponseView, InputItemsView, StoredResponseView
from gateway.api.tuning import (
    FileContentView,
    FilesView,
    FileView,
    JobCancelView,
    JobCheckpointsView,
    JobEventsView,
    JobsView,
    JobView,
)
from gateway.api.usage import OwnUsageView
from gateway.relay.routes import INFERENCE

urlpatterns = [
    path("v1/models", ModelsView.as_view()),
    path("v1/models/<path:name>", ModelView.as_view()),
    *(path(address.removeprefix("/"), VIEWS[api].as_view()) for address, api in INFERENCE.items()),
    path("v1/responses/<str:name>", StoredResponseView.as_view()),
    path("v1/responses/<str:name>/input_items", InputItemsView.as_view()),
    path("v1/responses/<str:name>/cancel", CancelResponseView.as_view()),
    path("v1/usage", OwnUsageView.as_view()),
    path("v1/files", FilesView.as_view()),
    path("v1/files/<str:name>", FileView.as_view()),
    path("v1/files/<str:name>/content", FileContentView.as_view()),
    path("v1/fine_tuning/jobs", JobsView.as_view()),
    path("v1/fine_tuning/jobs/<str:name>", JobView.as_view()),
    path("v1/fine_tuning/jobs/<str:name>/cancel", JobCancelView.as_view()),
    path("v1/fine_tuning/jobs/<str:name>/events", JobEventsView.as_view()),
    path("v1/fine_tuning/jobs/<str:name>/checkpoints", JobCheckpointsView.as_view()),
    re_path(r"^v1/", nothing_here),
    path("v2", about_server_here),
    path("v2/health/live", about_server_here),
    path("v2/health/ready", about_server_here),
    path("v2/models/<path:name>/infer", InferView.as_view()),
    path("v2/models/<path:name>", InferModelView.as_view()),
    re_path(r"^v2/", no_inference_here),
    path("api/tenants/<slug:slug>/conversations/", ConversationListView.as_view()),
    path("api/tenants/<slug:slug>/conversations/<uuid:conversation_id>/", ConversationView.as_view()),
    path("api/objectives/", objectives.ObjectiveListView.as_view()),
    path("api/objectives/tiers/", objectives.TierObjectivesView.as_view()),
    path("api/objectives/<uuid:objective_id>/", objectives.ObjectiveView.as_view()),
    path("api/objectives/<uuid:objective_id>/status/", objectives.ObjectiveStatusView.as_view()),
    path("api/alerts/", alerts.AlertListView.as_view()),
    path("api/alerts/<uuid:alert_id>/acknowledge/", alerts.AlertAcknowledgeView.as_view()),
    path("api/silences/", alerts.SilenceListView.as_view()),
    path("api/silences/<uuid:silence_id>/", alerts.SilenceView.as_view()),
    path("api/tenants/<slug:slug>/objectives/", objectives.TenantObjectiveListView.as_view()),
    path("api/tenants/<slug:slug>/objectives/<uuid:objective_id>/", objectives.ObjectiveView.as_view()),
    path("api/tenants/<slug:slug>/objectives/<uuid:objective_id>/status/", objectives.ObjectiveStatusView.as_view()),
    path("api/tenants/<slug:slug>/alerts/", alerts.AlertListView.as_view()),
    path("api/tenants/<slug:slug>/alerts/<uuid:alert_id>/acknowledge/", alerts.AlertAcknowledgeView.as_view()),
    path("api/tenants/<slug:slug>/silences/", alerts.SilenceListView.as_view()),
    path("api/tenants/<slug:slug>/silences/<uuid:silence_id>/", alerts.SilenceView.as_view()),
    path("api/breakers/", BreakersView.as_view()),
    path("api/reconciliation/", ReconciliationView.as_view()),
    path("api/requests/<uuid:request_id>/impact/", ImpactView.as_view()),
    path("healthz", healthz),
    path("readyz", readyz),
    path("metrics", metrics),
]
