"""Console: nodes, instances, models, engines."""

from django.urls import URLPattern, path

from dashboard.views.console import attach, engines, fit, instances, nodes

patterns: list[URLPattern] = [
    path("console/instances/", instances.index, name="console-instances"),
    path("console/instances/<uuid:instance_id>/stop/", instances.stop, name="console-instance-stop"),
    path("console/instances/attach/", attach.attach, name="console-instance-attach"),
    path("console/nodes/", nodes.index, name="console-nodes"),
    path("console/nodes/<uuid:node_id>/", nodes.page, name="console-node"),
    path("console/nodes/<uuid:node_id>/maintenance/", nodes.maintenance, name="console-node-maintenance"),
    path("console/nodes/<uuid:node_id>/back/", nodes.back, name="console-node-back"),
    path("console/nodes/<uuid:node_id>/cordon/<str:to>/", nodes.cordon, name="console-node-cordon"),
    path("console/devices/<uuid:device_id>/isolate/", nodes.isolate, name="console-device-isolate"),
    path("console/devices/<uuid:device_id>/give-back/", nodes.give_back, name="console-device-back"),
    path("console/engines/", engines.index, name="console-engines"),
    path("console/engines/<str:name>/<str:to>/", engines.switch, name="console-engine-switch"),
    path("console/fit/", fit.page, name="console-fit"),
]
