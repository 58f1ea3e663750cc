"""What the frame around every page shows."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from django.http import HttpRequest
from django.urls import reverse
from django.utils.translation import gettext as _

from dashboard import labels
from dashboard.access import portal_of
from dashboard.navigation import Group, account_groups, console_groups, portal_groups
from dashboard.strings import script_strings
from dashboard.viewing import Viewing, viewing_in
from gpupool.reads.nodes import simulated_nodes
from tenants import selectors
from tenants.models import Tenant, User

COUNT_LIMIT: Final = 999
"""Most keys that the sidebar counts: it is on every page."""

SWITCHER_LIMIT: Final = 50
"""Most tenants in the switcher; who belongs to more finds them on the console's list."""


@dataclass(frozen=True, slots=True)
class Shell:
    """Sidebar, user chip and the scripts' words. Empty for people who are not logged in."""

    home: str = "/"
    area_name: str = ""
    groups: Sequence[Group] = ()
    tenant: Tenant | None = None
    tenants: Sequence[Tenant] = ()
    user_name: str = ""
    role: str = ""
    may_read_platform: bool = False
    palette: str = ""  # where the command palette asks; "": there is none
    viewing: Viewing | None = None  # an operator looks as a member: every page says so
    simulated: str = ""  # all, some: nodes are made up, and every page of the console says so
    strings: Mapping[str, object] = field(default_factory=dict)


def _short_count(number: int) -> str:
    return f"{COUNT_LIMIT}+" if number > COUNT_LIMIT else str(number)


def shell(request: HttpRequest) -> dict[str, Shell]:
    """Context processor."""
    user = getattr(request, "user", None)
    if not isinstance(user, User):
        return {"shell": Shell(strings=script_strings())}
    view_name = request.resolver_match.view_name if request.resolver_match else ""
    platform_role = str(labels.PLATFORM_ROLES.get(user.platform_role, ""))
    access, viewing = portal_of(request), viewing_in(request)
    if viewing is not None and access is not None:
        user = viewing.member
        tenants = [viewing.tenant]
    elif access is not None:
        tenants = list(selectors.list_tenants_for(user)[:SWITCHER_LIMIT])
    if access is not None:
        return {
            "shell": Shell(
                home=reverse("portal-home", args=[access.tenant.slug]),
                palette=reverse("portal-palette", args=[access.tenant.slug]),
                area_name=_("Portal"),
                groups=portal_groups(
                    access.tenant,
                    view_name=view_name,
                    active_keys=_short_count(selectors.count_usable_keys(access.tenant, at_most=COUNT_LIMIT + 1)),
                ),
                tenant=access.tenant,
                tenants=tenants,
                user_name=str(user),
                role=f"{access.tenant.name} · {labels.word('role', access.role)}" if access.role else platform_role,
                may_read_platform=user.may_read_platform and viewing is None,
                viewing=viewing,
                strings=script_strings(),
            )
        }
    reads_platform = user.may_read_platform and viewing is None
    return {
        "shell": Shell(
            home=reverse("home"),
            palette=reverse("console-palette") if reads_platform else "",
            area_name=_("Console") if reads_platform else "",
            groups=console_groups(view_name=view_name, superuser=user.is_superuser)
            if reads_platform
            else account_groups(),
            user_name=str(user),
            role=platform_role,
            may_read_platform=reads_platform,
            viewing=viewing,
            simulated=simulated_nodes() if reads_platform else "",
            strings=script_strings(),
        )
    }
