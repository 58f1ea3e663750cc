"""Where a notice leads: to the page of what it tells of, in the console or in the tenant's portal."""

from collections.abc import Mapping
from typing import Final

import structlog
from django.conf import settings
from django.core.exceptions import ValidationError
from django.urls import NoReverseMatch, reverse

from tenants.models import Notice, Webhook
from tenants.policies.notices import NoticeKind

_LIMITS: Final = ("portal-limits", "")
_QUOTAS: Final = ("console-quotas", "")

_PORTAL: Final[Mapping[str, tuple[str, str]]] = {
    NoticeKind.BUDGET_SHARE: _LIMITS,
    NoticeKind.BUDGET_REFUSING: _LIMITS,
    NoticeKind.BUDGET_FORECAST: _LIMITS,
    NoticeKind.KEY_EXPIRING: ("portal-key", "key"),
    NoticeKind.KEY_COMPROMISED: ("portal-key", "key"),
    NoticeKind.GRANT_ENDING: ("portal-models", ""),
    NoticeKind.BOOST_ENDING: _LIMITS,
    NoticeKind.TENANT_SUSPENDED: ("portal-home", ""),
    NoticeKind.TENANT_RESUMED: ("portal-home", ""),
    NoticeKind.WEBHOOK_DISABLED: ("portal-setting-webhook", "webhook"),
    NoticeKind.OBJECTIVE_BURNING: ("portal-slo-objective", "objective"),
    NoticeKind.OBJECTIVE_RECOVERED: ("portal-slo-objective", "objective"),
    NoticeKind.REQUEST_DECIDED: ("portal-limit-asks", ""),
}
_CONSOLE: Final[Mapping[str, tuple[str, str]]] = {
    NoticeKind.BUDGET_SHARE: _QUOTAS,
    NoticeKind.BUDGET_REFUSING: _QUOTAS,
    NoticeKind.BUDGET_FORECAST: _QUOTAS,
    NoticeKind.BOOST_ENDING: _QUOTAS,
    NoticeKind.WEBHOOK_DISABLED: ("console-setting-webhook", "webhook"),
    NoticeKind.OBJECTIVE_BURNING: ("console-slo-objective", "objective"),
    NoticeKind.OBJECTIVE_RECOVERED: ("console-slo-objective", "objective"),
    NoticeKind.REQUEST_OPENED: ("console-approval", "request"),
}
"""The page by its name, and what of the payload it is the page of: of all PLATFORM_KINDS, and above of TENANT_KINDS."""

logger = structlog.get_logger(__name__)


def notice_link(notice: Notice) -> str | None:
    """The full address of the page, for who gets the notice.

    None where `web_url` is not set, as no request may say what the address of this installation is, and of what has
    no page. Never raises for what a payload holds: the notice is worth more than its link.
    """
    page, key = (_CONSOLE if notice.tenant is None else _PORTAL).get(notice.kind, ("", ""))
    if settings.GATEHOUSE.web_url is None or not page or (key and key not in notice.payload):
        return None
    before = [] if notice.tenant is None else [notice.tenant.slug]
    if notice.payload.get("ended_by") == "deleted":  # its own page went with it
        page, key = page.removesuffix("-objective"), ""
    fragment = ""
    if key == "webhook" and not _is_there(notice):
        page, key, fragment = page.removesuffix("-setting-webhook") + "-settings", "", "#webhooks"
    try:
        path: str = reverse(page, args=[*before, notice.payload[key]] if key else before)
    except NoReverseMatch:
        logger.warning("notice_without_a_page", notice_id=str(notice.pk), kind=notice.kind, page=page)
        return None
    return f"{settings.GATEHOUSE.public_web_url}{path}{fragment}"


def _is_there(notice: Notice) -> bool:
    """Whether its webhook was not deleted since, at any time: nothing tells of that but the row itself."""
    try:
        return Webhook.objects.filter(pk=notice.payload["webhook"], tenant=notice.tenant).exists()
    except ValidationError:  # no id at all
        return False
