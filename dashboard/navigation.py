"""The entries of the sidebar. Only pages that exist stand here."""

from collections.abc import Sequence
from dataclasses import dataclass

from django.urls import Resolver404, resolve, reverse
from django.utils.functional import Promise
from django.utils.translation import gettext as _

from tenants.models import Tenant


@dataclass(frozen=True, slots=True)
class Item:
    """One entry; `external` marks pages outside console and portal."""

    label: str | Promise
    icon: str
    href: str
    current: bool = False
    count: str = ""
    external: bool = False


@dataclass(frozen=True, slots=True)
class Group:
    title: str
    items: Sequence[Item]


def console_groups(*, view_name: str, superuser: bool) -> list[Group]:
    """What people with a platform role reach."""

    def entry(label: str, icon: str, name: str) -> Item:
        return Item(label, icon, reverse(name), current=_is_current(name, view_name))

    return [
        Group(
            _("Operate"),
            [
                entry(_("Overview"), "layout-dashboard", "console-overview"),
                entry(_("Nodes"), "server-2", "console-nodes"),
                entry(_("Instances"), "cube", "console-instances"),
                entry(_("Engines"), "stack-2", "console-engines"),
                entry(_("Will it fit?"), "gauge", "console-fit"),
            ],
        ),
        Group(_("Tenancy"), [entry(_("Tenants"), "building-community", "console-tenants")]),
        *_platform_group(superuser=superuser),
    ]


def portal_groups(tenant: Tenant, *, view_name: str, active_keys: str) -> list[Group]:
    """What members of a tenant reach."""

    def entry(label: str, icon: str, name: str, count: str = "") -> Item:
        href = reverse(name, args=[tenant.slug])
        return Item(label, icon, href, current=_is_current(name, view_name), count=count)

    return [
        Group(
            "",
            [
                entry(_("Quick start"), "rocket", "portal-home"),
                entry(_("API keys"), "key", "portal-keys", active_keys),
                entry(_("Usage"), "chart-bar", "portal-usage"),
                entry(_("Members"), "users", "portal-members"),
            ],
        ),
        *_platform_group(superuser=False),
    ]


def account_groups() -> list[Group]:
    """What people without a platform role reach from pages that belong to no tenant."""
    return [Group("", [Item(_("Start page"), "home", reverse("home"))])]


def _is_current(name: str, view_name: str) -> bool:
    """Pages below an entry (portal-key-new, console-node) light up the entry itself (portal-keys, console-nodes)."""
    one = name.removesuffix("s")
    return view_name in (name, one) or view_name.startswith(one + "-")


def _platform_group(*, superuser: bool) -> list[Group]:
    items = []
    if exists("/api/docs"):
        items.append(Item(_("API reference"), "code", "/api/docs", external=True))
    if superuser and exists("/backoffice/"):
        items.append(Item(_("Backoffice"), "database", "/backoffice/", external=True))
    return [Group(_("Platform"), items)] if items else []


def exists(path: str) -> bool:
    """Whether this process answers at `path`."""
    try:
        resolve(path)
    except Resolver404:
        return False
    return True
