"""Addresses of console and portal."""

from django.contrib.auth.views import LogoutView
from django.templatetags.static import static
from django.urls import include, path
from django.views.generic import RedirectView
from django.views.i18n import set_language

from dashboard.addresses import console_pool, console_tenancy, portal, watch
from dashboard.views import exports, home, login, palette, saved_views

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
    path("exports/", exports.index, name="exports"),
    path("exports/<uuid:export_id>/", exports.page, name="export"),
    path("exports/<uuid:export_id>/file/", exports.file, name="export-file"),
    path("views/save/", saved_views.save, name="view-save"),
    path("views/<uuid:view_id>/delete/", saved_views.delete, name="view-delete"),
    path("console/palette/", palette.console, name="console-palette"),
    path("t/<slug:slug>/palette/", palette.portal, name="portal-palette"),
    *console_tenancy.patterns,
    *console_pool.patterns,
    *watch.patterns,
    *portal.patterns,
]
