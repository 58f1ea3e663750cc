"""Console: overview, tenants and what they may, the installation itself."""

from django.urls import URLPattern, path

from dashboard.views.console import (
    approvals,
    audit,
    health,
    keys,
    overview,
    people,
    prices,
    quotas,
    settings,
    tenants,
    view_as,
)

patterns: list[URLPattern] = [
    path("console/overview/", overview.page, name="console-overview"),
    path("console/overview/attention/", overview.attention, name="console-overview-attention"),
    path("console/tenants/", tenants.page, name="console-tenants"),
    path("console/tenants/new/", tenants.create, name="console-tenant-new"),  # before the tenant that is called so
    path("console/tenants/<slug:slug>/", tenants.one, name="console-tenant"),
    path("console/tenants/<slug:slug>/tier/", tenants.tier, name="console-tenant-tier"),
    path("console/tenants/<slug:slug>/state/<str:to>/", tenants.state, name="console-tenant-state"),
    path("console/tenants/<slug:slug>/view-as/", view_as.begin, name="console-tenant-view-as"),
    path("console/keys/", keys.page, name="console-keys"),
    path("console/keys/<uuid:key_id>/revoke/", keys.revoke, name="console-key-revoke"),
    path("console/quotas/", quotas.page, name="console-quotas"),
    path("console/quotas/new/", quotas.create, name="console-quota-new"),
    path("console/quotas/<uuid:limit_id>/", quotas.change, name="console-quota-change"),
    path("console/quotas/<uuid:limit_id>/raise/", quotas.boost, name="console-quota-boost"),
    path("console/quotas/<uuid:limit_id>/delete/", quotas.delete, name="console-quota-delete"),
    path("console/prices/", prices.page, name="console-prices"),
    path("console/prices/new/", prices.create, name="console-price-new"),
    path("console/prices/<uuid:price_id>/withdraw/", prices.withdraw, name="console-price-withdraw"),
    path("console/approvals/", approvals.page, name="console-approvals"),
    path("console/approvals/<uuid:request_id>/", approvals.one, name="console-approval"),
    path("console/people/", people.page, name="console-people"),
    path("console/people/new/", people.create, name="console-person-new"),
    path("console/people/<uuid:user_id>/", people.one, name="console-person"),
    path("console/people/<uuid:user_id>/role/", people.role, name="console-person-role"),
    path("console/people/<uuid:user_id>/activity/<str:to>/", people.activity, name="console-person-activity"),
    path("console/people/<uuid:user_id>/second-factor/", people.second_factor, name="console-person-factor"),
    path("console/people/<uuid:user_id>/tokens/<uuid:token_id>/", people.token, name="console-person-token"),
    path("console/people/mappings/new/", people.map_role, name="console-mapping-new"),
    path("console/people/mappings/<uuid:mapping_id>/", people.unmap_role, name="console-mapping-delete"),
    path("console/audit/", audit.page, name="console-audit"),
    path("console/audit/<uuid:event_id>/", audit.event, name="console-audit-event"),
    path("console/health/", health.page, name="console-health"),
    path("console/settings/", settings.page, name="console-settings"),
    path("view-as/end/", view_as.end, name="view-as-end"),
]
