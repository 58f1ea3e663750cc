"""Addresses of this app's control API, under /api/."""

from django.urls import URLPattern

urlpatterns: list[URLPattern] = []
