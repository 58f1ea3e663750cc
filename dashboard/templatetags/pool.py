"""Words and bars of the pool's pages."""

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Final

from django import template
from django.urls import reverse
from django.utils.formats import date_format
from django.utils.functional import Promise
from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString
from django.utils.timezone import localtime
from django.utils.translation import gettext, gettext_lazy, pgettext_lazy

from dashboard import labels
from dashboard.fault_sentences import fault_said
from dashboard.templatetags.gatehouse import bytes_text, duration_text, percent
from dashboard.version_steps import VersionStep
from gpupool.models import DeviceEvent, InstanceEvent, ModelVersion
from gpupool.policies.healing_world import Rules
from gpupool.policies.xid import rule_for
from gpupool.selectors import EngineOverview

register = template.Library()

SEGMENTS: Final[dict[str, str | Promise]] = {
    "weights": gettext_lazy("Weights"),
    "kv": gettext_lazy("KV cache"),
    "kv_used": gettext_lazy("KV cache in use"),
    "kv_free": gettext_lazy("KV cache free"),
    "compute": gettext_lazy("Activations and buffers"),
    "adapters": gettext_lazy("Adapters"),
    "rest": pgettext_lazy("memory", "Other use"),
    "unused": gettext_lazy("Claimed, not in use"),
}
_WIDTH: Final = 1000


@register.simple_tag
def memory_bar(parts: Sequence[tuple[str, int]]) -> SafeString:
    """Segments of memory as one bar, with a legend that says the same in words and sizes."""
    total = sum(size for _, size in parts) or 1
    bars, at = [], 0.0
    for name, size in parts:
        width = _WIDTH * size / total
        bars.append((name, f"{at:.2f}", f"{max(width - 2, 1):.2f}"))
        at += width
    rects = format_html_join("", '<rect class="seg-{}" x="{}" width="{}" y="0" height="16"></rect>', bars)
    legend = format_html_join(
        "",
        '<li><svg viewBox="0 0 10 10" aria-hidden="true">'
        '<rect class="seg-{}" width="10" height="10" rx="2"></rect></svg>'
        "<span>{}</span><strong>{}</strong></li>",
        ((name, SEGMENTS.get(name, name), bytes_text(size)) for name, size in parts),
    )
    return format_html(
        '<svg class="memory-bar" viewBox="0 0 {} 16" preserveAspectRatio="none" aria-hidden="true">{}</svg>'
        '<ul class="memory-legend">{}</ul>',
        _WIDTH,
        rects,
        legend,
    )


@register.filter
def step_tone(event: InstanceEvent) -> str:
    """The tone of a step's dot."""
    return "wish" if event.kind == "wish" else labels.TONES.get(event.value, "idle")


@register.filter
def span(seconds: float) -> str:
    """How long something took."""
    return duration_text(seconds) if seconds >= 1 else gettext("under 1 s")


@register.filter
def to_the_second(value: datetime) -> str:
    """Date and time to the second, in the page's zone."""
    # Translators: a date format in Django's letters, day and time to the second.
    return date_format(localtime(value), gettext("j M, H:i:s"))


@register.filter
def before_colon(text: str) -> str:
    return text.replace("：", ":").partition(":")[0]


@register.filter
def after_colon(text: str) -> str:
    return text.replace("：", ":").partition(":")[2].strip()


@register.filter
def unlocal(value: float) -> str:
    """A number as attributes have it, whatever the language."""
    return f"{value:.4f}"


@register.simple_tag
def version_address(step: VersionStep, version: ModelVersion) -> str:
    """Where an action on a version's page leads."""
    if step.act is not None:
        return reverse(step.url, args=[version.pk, step.name])
    return reverse(step.url, args=[version.pk])


@register.filter
def share_text(value: object) -> str:
    """A share from a card: a number, or what somebody wrote."""
    try:
        return percent(float(str(value)))
    except (ValueError, OverflowError):
        return str(value or "–")


@register.simple_tag
def lookup(mapping: Mapping[object, object], key: object) -> object:
    """What stands under a key; None where nothing does."""
    return mapping.get(key)


@register.filter
def code_meaning(event: DeviceEvent) -> str:
    """What an event's error code means in the catalogues; "" for one that they do not know, or of another kind."""
    rule = rule_for(event.code, {}) if event.kind in ("xid", "code") and event.code is not None else None
    return "" if rule is None else fault_said(rule.meaning)


@register.filter
def bounds_told(bounds: Rules) -> list[tuple[str, str, str]]:
    """How much healing may do, as figures: label, value, note."""
    hour = gettext("in %(time)s, of one node") % {"time": duration_text(bounds.window)}
    return [
        (gettext("Restarts and rebuilds"), str(bounds.soft_budget), hour),
        (gettext("Resets"), str(bounds.reset_budget), hour),
        (gettext("Reboots"), str(bounds.reboot_budget), hour),
        (
            gettext("Brake"),
            percent(bounds.brake_share),
            gettext("of the nodes in trouble within %(time)s: nothing more is done")
            % {"time": duration_text(bounds.brake_window)},
        ),
        (
            gettext("Probation"),
            duration_text(bounds.probation),
            gettext("without a new error before a device is given back, %(n)s times a day at most")
            % {"n": bounds.returns},
        ),
    ]


@register.filter
def ways(engine: EngineOverview) -> tuple[bool | None, ...]:
    """The marks of the second matrix of engines, in the order of its columns."""
    return (engine.counts_tokens, engine.tells_memory, engine.tells_context, engine.logprobs)
