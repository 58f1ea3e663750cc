"""Addresses of this app's control API, under /api/."""

from django.urls import path

from tenants.api import views

urlpatterns = [
    path("tenants/", views.TenantListView.as_view()),
    path("tenants/<slug:slug>/", views.TenantView.as_view()),
    path("tenants/<slug:slug>/suspend/", views.TenantSuspendView.as_view()),
    path("tenants/<slug:slug>/resume/", views.TenantResumeView.as_view()),
    path("tenants/<slug:slug>/keys/", views.KeyListView.as_view()),
    path("tenants/<slug:slug>/keys/<uuid:key_id>/", views.KeyView.as_view()),
]
