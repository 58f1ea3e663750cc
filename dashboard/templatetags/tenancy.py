"""Amounts of money and of limits, names and notices in templates."""

from collections.abc import Mapping
from uuid import UUID

from django import template
from django.conf import settings
from django.utils.translation import get_language, gettext

from dashboard import labels
from dashboard.templatetags.gatehouse import bytes_text, count
from tenants.models import Metric, Notice
from tenants.policies.money import amount_of
from tenants.policies.notices import NoticeKind
from tenants.services.notice_saying import notice_said

register = template.Library()


@register.filter
def money(micros: int | None) -> str:
    """1234500 -> "1.2345 USD"; None -> "unknown"."""
    if micros is None:
        return gettext("unknown")
    sign, whole, fraction = _parts(amount_of(micros))
    return f"{sign}{int(whole):,}{fraction} {settings.GATEHOUSE.currency}"


@register.filter
def cents(micros: int | None) -> str:
    """The same rounded to hundredths, for figures that are estimates or sums."""
    return money(None if micros is None else round(micros / 10_000) * 10_000)


@register.filter
def in_units(amount: int | None, metric: str) -> str:
    """An amount of a limit's metric as people say it; None -> "unknown"."""
    if metric == Metric.MONEY:
        return cents(amount)
    return bytes_text(amount) if metric == Metric.GPU_MEMORY else count(amount)


def _parts(amount: str) -> tuple[str, str, str]:
    sign = "-" if amount.startswith("-") else ""
    whole, dot, rest = amount.lstrip("-").partition(".")
    return sign, whole, dot + rest


@register.filter
def named(user_id: UUID | None, names: Mapping[UUID, str]) -> str:
    """A person's name; the id of who is none, or is erased; a dash for nobody."""
    if user_id is None:
        return "–"
    return names.get(user_id) or f"{str(user_id)[:8]}…"


@register.filter
def notice_subject(notice: Notice) -> str:
    """What a notice says, in one line of the reader's language."""
    try:
        kind = NoticeKind(notice.kind)
    except ValueError:
        return notice.kind  # of a later version
    return notice_said(kind, notice.payload, get_language() or "en").subject


@register.filter
def platform_role(role: str) -> str:
    """A platform role in the reader's language; a dash for none."""
    return str(labels.PLATFORM_ROLES.get(role, role)) if role else "–"
