"""What the command palette finds: pages, and the things that a person may look at, by name."""

from collections.abc import Iterable
from typing import Final
from uuid import UUID

import msgspec
from django.db.models import Q
from django.urls import NoReverseMatch, reverse

from dashboard.selectors import list_portal_models
from gpupool.models import Instance, InstanceState, Model, Node
from tenants.models import ApiKey, Tenant

ENDING: Final = 4
"""Characters of a secret that are shown."""
EACH: Final = 6
"""Most of one kind; who seeks further finds the kind's own list among the pages."""


class Found(msgspec.Struct, frozen=True, kw_only=True):
    """One line of the palette."""

    kind: str
    label: str
    where: str
    icon: str
    href: str


def find_in_console(words: str) -> list[Found]:
    """Tenants, models, nodes, instances and keys of the installation; a constant number of queries."""
    if not words:
        return []
    return [*_tenants(words), *_models(words), *_nodes(words), *_instances(words), *_keys(words)]


def find_in_portal(tenant: Tenant, words: str) -> list[Found]:
    """Keys and models of one tenant."""
    if not words:
        return []
    models = [one for one in list_portal_models(tenant) if words.casefold() in one.name.casefold()]
    return [
        *_keys(words, tenant),
        *_found("model", "box", ((m.name, "", _address("portal-models", tenant.slug)) for m in models[:EACH])),
    ]


def _tenants(words: str) -> list[Found]:
    rows = Tenant.objects.filter(Q(name__icontains=words) | Q(slug__icontains=words)).order_by("slug")[:EACH]
    return _found(
        "tenant",
        "building-community",
        (
            (row.name, row.slug, _address("console-tenant", row.slug) or _address("portal-home", row.slug))
            for row in rows
        ),
    )


def _models(words: str) -> list[Found]:
    rows = Model.objects.filter(name__icontains=words).order_by("name")[:EACH]
    return _found(
        "model",
        "box",
        ((row.name, "", _address("console-model", row.pk) or _address("console-models")) for row in rows),
    )


def _nodes(words: str) -> list[Found]:
    rows = Node.objects.filter(name__icontains=words).order_by("name")[:EACH]
    return _found("node", "server-2", ((row.name, "", _address("console-node", row.pk)) for row in rows))


def _instances(words: str) -> list[Found]:
    rows = (
        Instance.objects.filter(version__model__name__icontains=words)
        .exclude(state=InstanceState.STOPPED)
        .select_related("version__model", "node")
        .order_by("-pk")[:EACH]
    )
    return _found(
        "instance",
        "cube",
        (
            (
                row.version.model.name,
                f"{row.engine} · {row.node.name if row.node else row.host}",
                _address("console-instance", row.pk) or _address("console-instances"),
            )
            for row in rows
        ),
    )


def _keys(words: str, tenant: Tenant | None = None) -> list[Found]:
    """By a name, or by the end of a secret: alone, or as it is shown behind its dots."""
    ending = words.replace("...", "…").rpartition("…")[2]
    named = Q(name__icontains=words)
    rows = ApiKey.objects.filter(named | Q(last_four=ending) if len(ending) == ENDING else named)
    rows = rows.select_related("tenant")
    if tenant is not None:
        rows = rows.filter(tenant=tenant)
    return _found(
        "key",
        "key",
        (
            (
                row.name,
                row.masked if tenant is not None else f"{row.masked} · {row.tenant.slug}",
                f"{_address('portal-keys', row.tenant.slug)}?q={row.last_four}",
            )
            for row in rows.order_by("-pk")[:EACH]
        ),
    )


def _found(kind: str, icon: str, rows: Iterable[tuple[str, str, str]]) -> list[Found]:
    return [Found(kind=kind, label=label, where=where, icon=icon, href=href) for label, where, href in rows if href]


def _address(name: str, *args: str | UUID) -> str:
    """The page's address; "" where this installation has no such page."""
    try:
        return reverse(name, args=args)
    except NoReverseMatch:
        return ""
