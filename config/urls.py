"""Every address of the web process."""

from django.contrib import admin
from django.urls import include, path
from drf_spectacular.views import SpectacularAPIView

from dashboard.views.reference import ReferenceView

urlpatterns = [
    path("", include("gateway.api.urls")),
    path("", include("dashboard.urls")),
    path("api/", include("tenants.api.urls")),
    path("api/", include("gpupool.api.urls")),
    path("api/schema", SpectacularAPIView.as_view(), name="schema"),
    path("api/docs", ReferenceView.as_view(url_name="schema"), name="docs"),
    path("backoffice/", admin.site.urls),
]

handler400 = "gateway.api.problems.bad_request"
handler404 = "gateway.api.problems.not_found"
handler500 = "gateway.api.problems.server_error"
