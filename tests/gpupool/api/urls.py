"""The pool's control API alone, where the house mounts it."""

from django.urls import include, path

urlpatterns = [path("api/", include("gpupool.api.urls"))]
