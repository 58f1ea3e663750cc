"""Addresses of the pool's control API, mounted under /api/."""

from django.urls import path

from gpupool.api import catalogue, nodes, training, versions, views

urlpatterns = [
    path("models/", catalogue.ModelListView.as_view(), name="api-models"),
    path("models/<uuid:model_id>/", catalogue.ModelView.as_view(), name="api-model"),
    path("models/<uuid:model_id>/aliases/", catalogue.AliasListView.as_view(), name="api-model-aliases"),
    path("aliases/<uuid:alias_id>/", catalogue.AliasView.as_view(), name="api-alias"),
    path("adapters/", catalogue.AdapterListView.as_view(), name="api-adapters"),
    path("adapters/<uuid:adapter_id>/retire/", catalogue.AdapterRetireView.as_view(), name="api-adapter-retire"),
    path("versions/", versions.VersionListView.as_view(), name="api-versions"),
    path("versions/<uuid:version_id>/", versions.VersionView.as_view(), name="api-version"),
    path("versions/<uuid:version_id>/adapters/", catalogue.VersionAdapterView.as_view(), name="api-version-adapters"),
    path("versions/<uuid:version_id>/admit/", versions.VersionAdmitView.as_view(), name="api-version-admit"),
    path("versions/<uuid:version_id>/card/", versions.VersionCardView.as_view(), name="api-version-card"),
    path("versions/<uuid:version_id>/lineage/", versions.VersionLineageView.as_view(), name="api-version-lineage"),
    path("versions/<uuid:version_id>/manifest/", versions.VersionManifestView.as_view(), name="api-version-manifest"),
    path("versions/<uuid:version_id>/reopen/", versions.VersionReopenView.as_view(), name="api-version-reopen"),
    path("versions/<uuid:version_id>/replicas/", versions.VersionReplicasView.as_view(), name="api-version-replicas"),
    path("versions/<uuid:version_id>/retire/", versions.VersionRetireView.as_view(), name="api-version-retire"),
    path("versions/<uuid:version_id>/serve/", versions.VersionServeView.as_view(), name="api-version-serve"),
    path("versions/<uuid:version_id>/switch/", versions.VersionSwitchView.as_view(), name="api-version-switch"),
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
