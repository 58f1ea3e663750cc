"""A request's time as bars: shapes of SVG, because no style may be written into a page."""

from collections.abc import Sequence
from datetime import datetime
from typing import Final

from django import template
from django.utils import timezone
from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString
from django.utils.translation import gettext

from dashboard import labels
from dashboard.error_words import CODES
from dashboard.reads.requests import Stage
from dashboard.request_side import Side

register = template.Library()

_WIDTH: Final = 1000.0
_THINNEST: Final = 3.0  # of a stage that took some time at all
_ROW: Final = 34
_PERCENT_PER_LETTER: Final = 0.64  # of a flame's width on a screen of 1440 pixels; a Chinese one takes two
_FIRST_TOKEN: Final = frozenset({"tokenise", "queue", "connect", "prefill"})


@register.filter
def precise(ms: float | None) -> str:
    """0.42 -> "0.42 ms", 12.3 -> "12.3 ms", 2345 -> "2.35 s"; None -> a dash: not measured."""
    if ms is None:
        return "–"
    if ms >= 1000:
        return f"{ms / 1000:,.2f} s"
    return f"{ms:,.2f} ms" if ms < 10 else f"{ms:,.1f} ms" if ms < 100 else f"{ms:,.0f} ms"


@register.filter
def error_words(code: str) -> str:
    """What an error code means; "" for one without words."""
    return str(CODES.get(code, ""))


@register.filter
def arrived(value: datetime) -> str:
    """A moment of these days to the millisecond, in the page's zone: 11-30 09:44:00.123."""
    local = timezone.localtime(value)
    return f"{local:%m-%d %H:%M:%S}.{local.microsecond // 1000:03d}"


@register.simple_tag
def stage_bar(stages: Sequence[Stage], whole: float) -> SafeString:
    """The stages one after the other, `whole` milliseconds wide."""
    told = gettext(", ").join(f"{labels.word('stage', stage.name)} {precise(stage.ms)}" for stage in stages)
    rects = format_html_join(
        "",
        '<rect class="stage-{}" x="{}" width="{}" y="0" height="10"></rect>',
        ((stage.name, *_placed(stage, whole)) for stage in stages),
    )
    return format_html(
        '<svg class="stage-bar" viewBox="0 0 1000 10" preserveAspectRatio="none" role="img" aria-label="{}">{}</svg>',
        told or gettext("not measured"),
        rects,
    )


@register.simple_tag
def one_stage(stage: Stage, whole: float) -> SafeString:
    """One stage where it lies in the whole."""
    return stage_bar([stage], whole)


@register.simple_tag(takes_context=True)
def without_name(context: template.Context, name: str) -> str:
    """The address's query without one of its names, from the newest request on."""
    query = context["request"].GET.copy()
    for dropped in (name, "before", "after", "count"):
        query.pop(dropped, None)
    return str(query.urlencode())


def _placed(stage: Stage, whole: float) -> tuple[str, str]:
    width = max(_THINNEST, stage.ms / whole * _WIDTH)
    return f"{min(stage.start / whole * _WIDTH, _WIDTH - width):.2f}", f"{width:.2f}"


@register.simple_tag
def latency_flame(parts: Sequence[tuple[str, float]], widest: float) -> SafeString:
    """Mean stages as a flame of three rows: all of it, until the first token and after it, each stage."""
    whole = sum(ms for _name, ms in parts) or 1.0
    first = sum(ms for name, ms in parts if name in _FIRST_TOKEN)
    rows: list[tuple[int, str, str, float, float]] = [(0, "whole", gettext("Request"), 0.0, whole)]
    rows.append((1, "first", gettext("First token"), 0.0, first))
    rows.append((1, "rest", gettext("The rest"), first, whole - first))
    at = 0.0
    for name, ms in parts:
        rows.append((2, name, labels.word("stage", name), at, ms))
        at += ms
    scale = 100.0 / max(widest, whole)

    def written(label: str, ms: float) -> str:
        """What stands in a box; nothing where that would be cut off on a usual screen."""
        text = f"{label} {precise(ms)}"
        letters = sum(1 if letter.isascii() else 2 for letter in text)
        return text if ms * scale > _PERCENT_PER_LETTER * letters else ""

    boxes = format_html_join(
        "",
        '<svg x="{}%" y="{}" width="{}%" height="{}"><title>{}</title>'
        '<rect class="stage-{}" width="100%" height="{}" rx="3"></rect><text x="8" y="21">{}</text></svg>',
        (
            (
                f"{start * scale:.3f}",
                row * _ROW,
                f"{ms * scale:.3f}",
                _ROW,
                f"{label}: {precise(ms)}",
                name,
                _ROW - 3,
                written(label, ms),
            )
            for row, name, label, start, ms in rows
            if ms > 0
        ),
    )
    told = gettext(", ").join(f"{labels.word('stage', name)} {precise(ms)}" for name, ms in parts)
    return format_html(
        '<svg class="latency-flame" width="100%" height="{}" role="img" aria-label="{}">{}</svg>', 3 * _ROW, told, boxes
    )


@register.filter
def total_ms(parts: Sequence[tuple[str, float]]) -> float:
    return sum(ms for _name, ms in parts)


@register.simple_tag
def side_url(side: Side, name: str, *args: object) -> str:
    """The address of a page of requests on this side."""
    return side.address(name, *args)
