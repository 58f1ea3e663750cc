"""Addresses of the pool's control API, mounted under /api/."""

from django.urls import path

from gpupool.api import nodes, training, views

urlpatterns = [
    path("models/", views.ModelListView.as_view(), name="api-models"),
    path("versions/", views.VersionListView.as_view(), name="api-versions"),
    path("versions/<uuid:version_id>/replicas/", views.VersionReplicasView.as_view(), name="api-version-replicas"),
    path("versions/<uuid:version_id>/retire/", views.VersionRetireView.as_view(), name="api-version-retire"),
    path("versions/<uuid:version_id>/serve/", views.VersionServeView.as_view(), name="api-version-serve"),
    path("nodes/", nodes.NodeListView.as_view(), name="api-nodes"),
    path("nodes/<uuid:node_id>/", nodes.NodeView.as_view(), name="api-node"),
    path("nodes/<uuid:node_id>/devices/", nodes.NodeDeviceListView.as_view(), name="api-node-devices"),
    path("nodes/<uuid:node_id>/maintenance/", nodes.NodeMaintenanceView.as_view(), name="api-node-maintenance"),
    path("nodes/<uuid:node_id>/token/", nodes.NodeTokenView.as_view(), name="api-node-token"),
    path("nodes/<uuid:node_id>/cordon/", nodes.NodeCordonView.as_view(), name="api-node-cordon"),
    path("nodes/<uuid:node_id>/lost/", nodes.NodeLostView.as_view(), name="api-node-lost"),
    path("engines/", views.EngineListView.as_view(), name="api-engines"),
    path("engines/<str:name>/", views.EngineView.as_view(), name="api-engine"),
    path("instances/", views.InstanceListView.as_view(), name="api-instances"),
    path("instances/<uuid:instance_id>/", views.InstanceView.as_view(), name="api-instance"),
    path("instances/<uuid:instance_id>/stop/", views.InstanceStopView.as_view(), name="api-instance-stop"),
    path("fine-tuning/jobs/", training.JobListView.as_view(), name="api-training-jobs"),
    path("fine-tuning/jobs/<uuid:job_id>/", training.JobView.as_view(), name="api-training-job"),
    path("fine-tuning/jobs/<uuid:job_id>/cancel/", training.JobCancelView.as_view(), name="api-training-job-cancel"),
    path("fine-tuning/jobs/<uuid:job_id>/events/", training.JobEventListView.as_view(), name="api-training-job-events"),
    path("fine-tuning/jobs/<uuid:job_id>/log/", training.JobLogView.as_view(), name="api-training-job-log"),
]
