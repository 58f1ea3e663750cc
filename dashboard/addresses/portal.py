"""Portal of one tenant."""

from django.urls import URLPattern, path

from dashboard.views.portal import (
    asks,
    billing,
    capacity,
    keys,
    limits,
    members,
    models,
    playground,
    quickstart,
    settings,
    usage,
    webhooks,
)

patterns: list[URLPattern] = [
    path("t/<slug:slug>/", quickstart.page, name="portal-home"),
    path("t/<slug:slug>/first/", quickstart.first, name="portal-home-first"),
    path("t/<slug:slug>/keys/", keys.index, name="portal-keys"),
    path("t/<slug:slug>/keys/<uuid:key_id>/", keys.one, name="portal-key"),
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
    path("t/<slug:slug>/limits/", limits.page, name="portal-limits"),
    path("t/<slug:slug>/limits/requests/", asks.index, name="portal-limit-asks"),
    path("t/<slug:slug>/limits/requests/<uuid:request_id>/withdraw/", asks.withdraw, name="portal-limit-withdraw"),
    path("t/<slug:slug>/limits/<uuid:limit_id>/more/", asks.more, name="portal-limit-more"),
    path("t/<slug:slug>/models/", models.page, name="portal-models"),
    path("t/<slug:slug>/models/ask/", asks.model, name="portal-model-ask"),
    path("t/<slug:slug>/playground/", playground.page, name="portal-playground"),
    path("t/<slug:slug>/playground/chat/", playground.chat, name="portal-playground-chat"),
    path("t/<slug:slug>/capacity/", capacity.page, name="portal-capacity"),
    path("t/<slug:slug>/billing/", billing.page, name="portal-billing"),
    path("t/<slug:slug>/settings/", settings.page, name="portal-settings"),
    path("t/<slug:slug>/settings/webhooks/new/", webhooks.create, name="portal-setting-webhook-new"),
    path("t/<slug:slug>/settings/webhooks/<uuid:webhook_id>/", webhooks.page, name="portal-setting-webhook"),
    path("t/<slug:slug>/settings/webhooks/<uuid:webhook_id>/test/", webhooks.test, name="portal-setting-webhook-test"),
    path(
        "t/<slug:slug>/settings/webhooks/<uuid:webhook_id>/change/",
        webhooks.change,
        name="portal-setting-webhook-change",
    ),
    path(
        "t/<slug:slug>/settings/webhooks/<uuid:webhook_id>/secret/",
        webhooks.rotate,
        name="portal-setting-webhook-secret",
    ),
    path(
        "t/<slug:slug>/settings/webhooks/<uuid:webhook_id>/switch/<str:to>/",
        webhooks.switch,
        name="portal-setting-webhook-switch",
    ),
    path(
        "t/<slug:slug>/settings/webhooks/<uuid:webhook_id>/delete/",
        webhooks.delete,
        name="portal-setting-webhook-delete",
    ),
]
