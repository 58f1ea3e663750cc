"""Addresses of this app's control API, under /api/."""

from django.urls import path

from tenants.api import audit, configuration, grants, issuers, keys, members, people, views

urlpatterns = [
    path("tenants/", views.TenantListView.as_view()),
    path("tenants/<slug:slug>/", views.TenantView.as_view()),
    path("tenants/<slug:slug>/suspend/", views.TenantSuspendView.as_view()),
    path("tenants/<slug:slug>/resume/", views.TenantResumeView.as_view()),
    path("tenants/<slug:slug>/keys/", keys.KeyListView.as_view()),
    path("tenants/<slug:slug>/keys/<uuid:key_id>/", keys.KeyView.as_view()),
    path("tenants/<slug:slug>/keys/<uuid:key_id>/rotate/", keys.KeyRotateView.as_view()),
    path("tenants/<slug:slug>/keys/<uuid:key_id>/compromised/", keys.KeyCompromiseView.as_view()),
    path("tenants/<slug:slug>/keys/<uuid:key_id>/exposure/", keys.KeyExposureView.as_view()),
    path("tenants/<slug:slug>/grants/", grants.GrantListView.as_view()),
    path("tenants/<slug:slug>/grants/<uuid:grant_id>/", grants.GrantView.as_view()),
    path("compromised-keys/", keys.CompromisedKeyListView.as_view()),
    path("issuers/", issuers.IssuerListView.as_view()),
    path("issuers/<uuid:issuer_id>/", issuers.IssuerView.as_view()),
    path("tenants/<slug:slug>/members/", members.MemberListView.as_view()),
    path("tenants/<slug:slug>/members/<uuid:user_id>/", members.MemberView.as_view()),
    path("tenants/<slug:slug>/invitations/", members.InvitationListView.as_view()),
    path("tenants/<slug:slug>/invitations/<uuid:invitation_id>/", members.InvitationView.as_view()),
    path("people/", people.PersonListView.as_view()),
    path("people/<uuid:user_id>/", people.PersonView.as_view()),
    path("people/<uuid:user_id>/reset-second-factor/", people.SecondFactorResetView.as_view()),
    path("role-mappings/", people.RoleMappingListView.as_view()),
    path("role-mappings/<uuid:mapping_id>/", people.RoleMappingView.as_view()),
    path("audit/", audit.AuditListView.as_view()),
    path("audit.csv", audit.AuditCsvView.as_view()),
    path("audit/<uuid:event_id>/", audit.AuditEventView.as_view()),
    path("tenants/<slug:slug>/audit/", audit.TenantAuditListView.as_view()),
    path("tenants/<slug:slug>/audit.csv", audit.TenantAuditCsvView.as_view()),
    path("configuration/history/", configuration.HistoryView.as_view()),
    path("configuration/rollback/", configuration.RollbackView.as_view()),
]
