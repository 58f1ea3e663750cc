"""Icons, pills and figures in templates. `static/js/format.js` does the same to live frames."""

import math
from datetime import datetime
from typing import Final

from django import template
from django.templatetags.static import static
from django.utils import timezone
from django.utils.formats import date_format
from django.utils.html import format_html
from django.utils.safestring import SafeString
from django.utils.translation import gettext

from core.api.request_ids import request_id_of
from dashboard import labels
from dashboard.csp import allow_written_styles
from dashboard.fault_sentences import fault_said
from dashboard.reads.saved_views import list_views
from dashboard.reasons import clause_said, reason_said
from dashboard.refusals import said as said_in_words

register = template.Library()

_HOW_SHOWN: Final = frozenset({"range", "from", "to", "zone", "sort", "group", "show"})
_BINARY_UNITS: Final = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")


@register.simple_tag
def icon(name: str) -> SafeString:
    """One icon of the vendored sprite; decoration only, so hidden from assistive technology."""
    return format_html(
        '<svg class="icon" aria-hidden="true"><use href="{}#{}"></use></svg>',
        static("vendor/tabler-icons/sprite.svg"),
        name,
    )


@register.simple_tag(takes_context=True)
def plotly(context: template.Context) -> SafeString:
    """The script of the charts; the page's policy then allows the styles that it writes."""
    allow_written_styles(context["request"])
    return format_html(
        '<script nonce="{}" src="{}" defer></script>',
        context["CSP_NONCE"],
        static("vendor/plotly/plotly-cartesian.min.js"),
    )


@register.simple_tag(takes_context=True)
def request_id(context: template.Context) -> str:
    """The id of the request that the page answers, to be named when asking for help; "" where there is none."""
    told = context.get("request_id") or (request_id_of(context["request"]) if "request" in context else "")
    return str(told)


@register.inclusion_tag("components/saved_views.html", takes_context=True)
def saved_views(context: template.Context, table: str) -> dict[str, object]:
    """The views of the list `table` that the reader saved, and how to save one."""
    request = context["request"]
    query = request.GET.copy()
    for name in ("after", "before", "count", "format"):
        query.pop(name, None)
    tenant = context["shell"].tenant
    return {
        "views": list_views(request.user, tenant=tenant, table=table),
        "table": table,
        "tenant": tenant.slug if tenant is not None else "",
        "path": request.path,
        "query": query.urlencode(),
        "csrf_token": context.get("csrf_token"),
    }


@register.simple_tag(takes_context=True)
def without_filters(context: template.Context) -> str:
    """The address's query of how a list is shown, its time and its order; nothing of what is sought in it."""
    query = context["request"].GET.copy()
    for name in set(query) - _HOW_SHOWN:
        del query[name]
    return str(query.urlencode())


@register.simple_tag
def pill(kind: str, value: str) -> SafeString:
    """A state as a coloured pill; the colour repeats the word, never replaces it."""
    tone = labels.TONES.get(value, "idle")
    return format_html('<span class="pill {}" data-value="{}">{}</span>', tone, value, labels.word(kind, value))


@register.simple_block_tag
def frame(content: str, labelled_by: str) -> SafeString:
    """A table's rows in a frame that scrolls sideways, by keyboard too, and that its heading gives a name to."""
    return format_html(
        '<div class="scroll-x" tabindex="0" role="region" aria-labelledby="{}"><table class="gh-grid">{}</table></div>',
        labelled_by,
        content,
    )


@register.filter
def word(value: str, kind: str) -> str:
    return labels.word(kind, value)


@register.filter
def initials(name: str, limit: int = 2) -> str:
    """First letters of a name's words, for an avatar."""
    words = [part for part in name.replace("@", " ").replace(".", " ").split() if part]
    return "".join(part[0] for part in words[:limit]).upper()


def _number(value: float, decimals: int) -> str:
    # English and Chinese write numbers alike; Django's Chinese formats leave the separators out.
    return f"{value:,.{decimals}f}"


@register.filter(name="bytes")
def bytes_text(value: int | None) -> str:
    """1536 -> "1.5 KiB"; None -> "unknown": a size nobody reported is not zero."""
    if value is None:
        return gettext("unknown")
    power = 0 if value < 1024 else min(len(_BINARY_UNITS) - 1, int(math.log(value, 1024)))
    scaled = value / 1024**power
    return f"{_number(scaled, 0 if power == 0 or scaled >= 100 else 1)} {_BINARY_UNITS[power]}"


@register.filter
def count(value: int | None) -> str:
    """A whole number with separators; None -> "unknown"."""
    return gettext("unknown") if value is None else _number(value, 0)


@register.filter
def count_or_dash(value: int | None) -> str:
    """A whole number; None -> a dash, where nothing to count exists yet."""
    return "–" if value is None else _number(value, 0)


@register.filter
def short(value: float | None) -> str:
    """1840000 -> "1.84 M"; None -> "unknown"."""
    if value is None:
        return gettext("unknown")
    for unit, size in (("B", 1e9), ("M", 1e6), ("k", 1e4)):
        if abs(value) >= size:
            scaled = value / (1e3 if unit == "k" else size)
            return f"{_number(scaled, 2 if scaled < 10 else 1 if scaled < 100 else 0)} {unit}"
    return _number(value, 0)


@register.filter
def rate(value: float | None) -> str:
    """A rate a second: two decimals below 10, one below 100, none above."""
    if value is None:
        return gettext("unknown")
    return _number(value, 2 if value < 10 else 1 if value < 100 else 0)


@register.filter
def percent(value: float | None) -> str:
    """0.945 -> "94.5 %"; None -> a dash."""
    return "–" if value is None else f"{_number(value * 100, 1)} %"


@register.filter
def milliseconds(value: float | None) -> str:
    """412.3 -> "412 ms", 2300 -> "2.3 s"; None -> a dash."""
    if value is None:
        return "–"
    return f"{_number(value, 0)} ms" if value < 1000 else f"{_number(value / 1000, 1)} s"


def _local(value: datetime) -> datetime:
    try:
        return timezone.localtime(value)
    except OverflowError:  # the last hours of the year 9999 lie beyond it in zones ahead of UTC
        return value


@register.filter
def moment(value: datetime | None) -> str:
    """Date and time to the minute, in the page's zone."""
    if value is None:
        return "–"
    # Translators: a date format in Django's letters, day and time to the minute.
    return date_format(_local(value), gettext("j M Y, H:i"))


@register.filter
def day(value: datetime | None) -> str:
    """The date, in the page's zone."""
    # Translators: a date format in Django's letters, the day alone.
    return "–" if value is None else date_format(_local(value), gettext("j M Y"))


@register.filter
def said(message: str) -> str:
    """A service's sentence in the page's language; see dashboard.refusals."""
    return said_in_words(message)


@register.filter
def why(reason: str) -> str:
    """Why the pool did something, or cannot, in the page's language; see dashboard.reasons."""
    return reason_said(reason)


@register.filter
def why_of_device(clause: str) -> str:
    """The same of what one device has against an instance, a sentence's end."""
    return clause_said(clause)


@register.filter
def fault(text: str) -> str:
    """What an error code means, in the page's language; see dashboard.fault_sentences."""
    return fault_said(text)


@register.filter
def clock(value: datetime) -> str:
    """The time of day to the second, in the page's zone."""
    return date_format(timezone.localtime(value), "H:i:s")


def duration_text(seconds: float) -> str:
    """A length of time in its largest unit."""
    whole = max(0, int(seconds))
    if whole < 60:
        return gettext("%(n)s s") % {"n": whole}
    if whole < 3600:
        return gettext("%(n)s min") % {"n": whole // 60}
    if whole < 86400:
        return gettext("%(n)s h") % {"n": whole // 3600}
    return gettext("%(n)s d") % {"n": whole // 86400}


@register.filter
def age(value: datetime | float | None) -> str:
    """How long ago `value` (a time, or seconds since the epoch) was; None -> a dash."""
    if value is None:
        return "–"
    then = value.timestamp() if isinstance(value, datetime) else value
    return duration_text(timezone.now().timestamp() - then)
