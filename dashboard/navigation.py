"""The entries of the sidebar. Only pages that exist stand here."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from django.urls import NoReverseMatch, Resolver404, resolve, reverse
from django.utils.functional import Promise
from django.utils.translation import gettext as _
from django.utils.translation import pgettext

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

    def group(title: str, *entries: tuple[str, str, str]) -> Group:
        found = (_entry(label, icon, name, (), view_name) for label, icon, name in entries)
        return Group(title, [item for item in found if item is not None])

    return [
        group(
            _("Operate"),
            (_("Overview"), "layout-dashboard", "console-overview"),
            (_("GPU memory"), "flame", "console-gpu-memory"),
            (_("Nodes"), "server-2", "console-nodes"),
            (_("Instances"), "cube", "console-instances"),
            (_("Service levels"), "target", "console-slo"),
            (pgettext("page", "Requests"), "list-details", "console-requests"),
        ),
        group(
            _("Models"),
            (_("Models"), "box", "console-models"),
            (_("Routing"), "route", "console-routing"),
            (_("Engines"), "stack-2", "console-engines"),
            (_("Will it fit?"), "gauge", "console-fit"),
            (_("Reservations"), "calendar-time", "console-reservations"),
        ),
        group(
            _("Tenancy"),
            (_("Tenants"), "building-community", "console-tenants"),
            (_("Keys"), "key", "console-keys"),
            (_("Quotas"), "adjustments", "console-quotas"),
            (_("Prices"), "receipt", "console-prices"),
            (_("Approvals"), "clipboard-check", "console-approvals"),
            (_("People"), "users", "console-people"),
        ),
        group(
            _("Platform"),
            (_("Healing rules"), "stethoscope", "console-healing"),
            (_("Audit log"), "history", "console-audit"),
            (_("Health"), "heart-rate-monitor", "console-health"),
            (_("Settings"), "settings", "console-settings"),
        ),
        *_reference_group(superuser=superuser),
    ]


def portal_groups(tenant: Tenant, *, view_name: str, active_keys: str) -> list[Group]:
    """What members of a tenant reach."""

    def group(title: str, *entries: tuple[str, str, str]) -> Group:
        found = (_entry(label, icon, name, (tenant.slug,), view_name) for label, icon, name in entries)
        return Group(title, [item for item in found if item is not None])

    build = group(
        _("Build"),
        (_("Quick start"), "rocket", "portal-home"),
        (_("API keys"), "key", "portal-keys"),
        (_("Models"), "box", "portal-models"),
        (_("Playground"), "message-chatbot", "portal-playground"),
        (pgettext("page", "Requests"), "list-details", "portal-requests"),
    )
    return [
        Group(build.title, [replace(item, count=active_keys) if item.icon == "key" else item for item in build.items]),
        group(
            _("Watch"),
            (_("Usage"), "chart-bar", "portal-usage"),
            (_("Limits"), "adjustments", "portal-limits"),
            (_("Service levels"), "target", "portal-slo"),
            (_("Capacity"), "gauge", "portal-capacity"),
            (_("GPU memory"), "flame", "portal-gpu-memory"),
        ),
        group(
            _("Manage"),
            (_("Members"), "users", "portal-members"),
            (_("Billing"), "receipt", "portal-billing"),
            (_("Settings"), "settings", "portal-settings"),
        ),
        *_reference_group(superuser=False),
    ]


def account_groups() -> list[Group]:
    """What people without a platform role reach from pages that belong to no tenant."""
    return [Group("", [Item(_("Start page"), "home", reverse("home"))])]


def title_of(path: str) -> str:
    """What the sidebar calls the page at `path`, with the tenant whose portal it is of; "" where it does not."""
    try:
        found = resolve(path)
    except Resolver404:
        return ""
    slug = found.kwargs.get("slug") if found.view_name.startswith("portal-") else None
    groups = (
        console_groups(view_name=found.view_name, superuser=False)
        if slug is None
        else portal_groups(Tenant(slug=slug), view_name=found.view_name, active_keys="")
    )
    label = next((str(item.label) for group in groups for item in group.items if item.current), "")
    return f"{label} · {slug}" if label and slug else label


def _is_current(name: str, view_name: str) -> bool:
    """Pages below an entry (portal-key-new, console-node) light up the entry itself (portal-keys, console-nodes)."""
    one = name.removesuffix("s")
    return view_name in (name, one) or view_name.startswith(one + "-")


def _entry(label: str, icon: str, name: str, args: tuple[str, ...], view_name: str) -> Item | None:
    """None where there is no such page."""
    try:
        href = reverse(name, args=args)
    except NoReverseMatch:
        return None
    return Item(label, icon, href, current=_is_current(name, view_name))


def _reference_group(*, superuser: bool) -> list[Group]:
    items = []
    if exists("/api/docs"):
        items.append(Item(_("API reference"), "code", "/api/docs", external=True))
    if superuser and exists("/backoffice/"):
        items.append(Item(_("Backoffice"), "database", "/backoffice/", external=True))
    return [Group(_("Reference"), items)] if items else []


def exists(path: str) -> bool:
    """Whether this process answers at `path`."""
    try:
        resolve(path)
    except Resolver404:
        return False
    return True
