"""Addresses of console and portal."""

from django.contrib.auth.views import LogoutView
from django.templatetags.static import static
from django.urls import include, path
from django.views.generic import RedirectView
from django.views.i18n import set_language

from dashboard.views import home, login
from dashboard.views.console import attach, engines, fit, instances, nodes, overview, tenants
from dashboard.views.portal import keys, members, quickstart, usage

urlpatterns = [
    path("", home.start, name="home"),
    # Pages that are not ours (backoffice, API reference) name no icon; browsers then ask for this one.
    path("favicon.ico", RedirectView.as_view(url=static("img/mark.svg"), permanent=True)),
    path("login/", login.LoginView.as_view(), name="login"),
    path("login/", login.LoginView.as_view(), name="account_login"),  # as allauth looks for it
    path("backoffice/login/", login.backoffice),  # before the backoffice's own
    path("logout/", LogoutView.as_view(), name="logout"),
    path("", include("dashboard.accounts.urls")),
    path("language/", set_language, name="set_language"),
    path("console/overview/", overview.page, name="console-overview"),
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
    path("console/tenants/", tenants.page, name="console-tenants"),
    path("t/<slug:slug>/", quickstart.page, name="portal-home"),
    path("t/<slug:slug>/keys/", keys.index, name="portal-keys"),
    path("t/<slug:slug>/keys/new/", keys.create, name="portal-key-new"),
    path("t/<slug:slug>/keys/<uuid:key_id>/rotate/", keys.rotate, name="portal-key-rotate"),
    path("t/<slug:slug>/keys/<uuid:key_id>/leaked/", keys.leaked, name="portal-key-leaked"),
    path("t/<slug:slug>/keys/<uuid:key_id>/revoke/", keys.revoke, name="portal-key-revoke"),
    path("t/<slug:slug>/members/", members.index, name="portal-members"),
    path("t/<slug:slug>/members/invite/", members.invite, name="portal-member-invite"),
    path("t/<slug:slug>/members/<uuid:user_id>/role/", members.role, name="portal-member-role"),
    path("t/<slug:slug>/members/<uuid:user_id>/remove/", members.remove, name="portal-member-remove"),
    path(
        "t/<slug:slug>/invitations/<uuid:invitation_id>/withdraw/",
        members.withdraw,
        name="portal-member-withdraw",
    ),
    path("t/<slug:slug>/usage/", usage.page, name="portal-usage"),
]
