"""Console: overview, tenants and what they may, the installation itself."""

from django.urls import URLPattern, path

from dashboard.views.console import overview, tenants

patterns: list[URLPattern] = [
    path("console/overview/", overview.page, name="console-overview"),
    path("console/tenants/", tenants.page, name="console-tenants"),
]
