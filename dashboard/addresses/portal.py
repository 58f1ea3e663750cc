"""Portal of one tenant."""

from django.urls import URLPattern, path

from dashboard.views.portal import keys, members, quickstart, usage

patterns: list[URLPattern] = [
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
