"""Figures of objectives in templates."""

from math import floor

from django import template

from dashboard.slo_words import burn_text, seconds_text

register = template.Library()


@register.filter
def burn_rate(value: float | None) -> str:
    """18.62 as 18.6 and a multiplication sign; None as a dash."""
    return burn_text(value)


@register.filter
def hundredths(value: float) -> str:
    """0.3141 -> "31.4"."""
    return f"{value * 100:,.1f}"


@register.filter
def exact_percent(value: float | None) -> str:
    """0.99318 -> "99.31 %", rounded down: no target looks attained that was not; None -> a dash."""
    if value is None:
        return "–"
    if value == 1:
        return "100 %"
    digits = 2 if value < 0.9995 else 3
    scale = 10**digits
    return f"{floor(round(value * 100 * scale, 6)) / scale:.{digits}f} %"


@register.filter
def seconds_word(value: float | None) -> str:
    """0.8123 -> "812 ms"; None -> a dash."""
    return "–" if value is None else seconds_text(float(f"{value:.3g}"))
