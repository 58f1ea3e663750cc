"""Words of limits, requests and comparisons, for the pages of the portal."""

from django import template
from django.utils.translation import gettext, pgettext

from dashboard.limit_words import metric_word, window_word
from dashboard.templatetags.gatehouse import duration_text

register = template.Library()

register.filter(metric_word)
register.filter(window_word)


@register.filter
def length(seconds: int | None) -> str:
    """A length of time in its largest unit; None -> a dash."""
    return "–" if seconds is None else duration_text(seconds)


@register.filter
def change_from(now: int, before: int) -> float | None:
    """How much more than before, as a share; None where there was nothing before."""
    return (now - before) / before if before else None


@register.filter
def signed_percent(value: float | None) -> str:
    """0.124 -> "+12.4 %"; None -> ""."""
    return "" if value is None else f"{value * 100:+,.1f} %".replace("-", "−")


@register.filter
def model_state(value: str) -> str:
    """The word for how a model stands."""
    return {
        "ready": gettext("Ready"),
        "asleep": gettext("Asleep"),
        "starting": gettext("Starting"),
        "off": pgettext("model", "Not running"),
    }.get(value, value)


@register.filter
def model_tone(value: str) -> str:
    return {"ready": "good", "asleep": "warn", "starting": "busy"}.get(value, "")


@register.filter
def unlocalized(value: float | None) -> str:
    """A number as HTML's attributes take it."""
    return "" if value is None else f"{value:.4f}"


@register.filter
def hours(milliseconds: int) -> str:
    """5400000 -> "1.5 h"."""
    return gettext("%(n)s h") % {"n": f"{milliseconds / 3_600_000:,.1f}"}
