"""What pages say of objectives, in the reader's language."""

from collections.abc import Mapping
from typing import Final

from django.utils.functional import Promise
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy, pgettext, pgettext_lazy

from dashboard.labels import SLA_TIERS
from gateway.models import Objective, Silence
from gateway.policies.slo import DAY, HOUR, MINUTE, PAIRS, Pair

KINDS: Final[Mapping[str, str | Promise]] = {
    "availability": gettext_lazy("Availability"),
    "ttft": gettext_lazy("Time to first token"),
    "tpot": gettext_lazy("Time per output token"),
    "queue_wait": gettext_lazy("Queue wait"),
}
SEVERITIES: Final[Mapping[str, str | Promise]] = {
    "page": pgettext_lazy("alert", "Page"),
    "ticket": pgettext_lazy("alert", "Ticket"),
}
ALERT_STATES: Final[Mapping[str, str | Promise]] = {
    "firing": pgettext_lazy("alert", "Firing"),
    "acknowledged": pgettext_lazy("alert", "Acknowledged"),
    "resolved": pgettext_lazy("alert", "Resolved"),
}


def seconds_text(seconds: float) -> str:
    """0.8 -> "800 ms", 2.5 -> "2.5 s"."""
    return f"{seconds * 1000:g} ms" if seconds < 1 else f"{seconds:g} s"


def share_text(share: float) -> str:
    """0.99 -> "99 %", 0.9995 -> "99.95 %"; as exact as it was said."""
    return f"{round(share * 100, 6):g} %"


def burn_text(burn: float | None) -> str:
    """18.62 as 18.6 and a multiplication sign; None as a dash."""
    if burn is None:
        return "–"
    return f"{burn:,.1f}×" if burn < 100 else f"{burn:,.0f}×"


def window_text(seconds: int) -> str:
    """300 -> "5 m", as field tools write it."""
    if seconds % DAY == 0:
        return _("%(n)s d") % {"n": seconds // DAY}
    if seconds % HOUR == 0:
        return _("%(n)s h") % {"n": seconds // HOUR}
    return pgettext("window", "%(n)s m") % {"n": seconds // MINUTE}


def pair_text(pair: Pair) -> str:
    return _("%(long)s & %(short)s > %(burn)s") % {
        "long": window_text(pair.long_seconds),
        "short": window_text(pair.short_seconds),
        "burn": f"{pair.burn:g}×",
    }


def windows_text(name: str) -> str:
    """The windows of a pair by its name: "1 h & 5 m"; the name itself where there is no such pair any more."""
    pair = next((one for one in PAIRS if one.name == name), None)
    return name if pair is None else f"{window_text(pair.long_seconds)} & {window_text(pair.short_seconds)}"


def silenced_text(silence: Silence, *, portal: bool) -> str:
    """Of what nobody is told. `portal`: the reader is the tenant that a tenant's silence is of."""
    if silence.objective_id is not None:
        return _("This objective")
    if silence.tenant is None:
        return _("Every objective of the platform")
    if portal:
        return _("Every objective of your own")
    return _("Every objective that %(tenant)s set up itself") % {"tenant": silence.tenant.name}


def aim_text(objective: Objective) -> str:
    """In few words: "99 % < 800 ms"."""
    if objective.threshold_seconds is None:
        return _("%(share)s ok") % {"share": share_text(objective.target)}
    return f"{share_text(objective.target)} < {seconds_text(objective.threshold_seconds)}"


def sentence(objective: Objective) -> str:
    """What is promised, as a whole sentence."""
    values = {
        "share": share_text(objective.target),
        "time": "" if objective.threshold_seconds is None else seconds_text(objective.threshold_seconds),
        "days": objective.window_days,
    }
    match objective.kind:
        case "ttft":
            return (
                _("%(share)s of streamed answers get their first token within %(time)s, over a rolling %(days)s days.")
                % values
            )
        case "tpot":
            return (
                _("%(share)s of streamed answers take at most %(time)s per output token, over a rolling %(days)s days.")
                % values
            )
        case "queue_wait":
            return _("%(share)s of requests wait at most %(time)s, over a rolling %(days)s days.") % values
        case _:
            return (
                _("%(share)s of requests do not fail for the platform's reasons, over a rolling %(days)s days.")
                % values
            )


def scope_text(objective: Objective, *, release: str = "") -> str:
    """Whose requests are counted."""
    parts = [objective.model or _("all models")]
    if release:
        parts.append(_("release %(name)s") % {"name": release})
    if objective.tenant is not None:
        parts.append(objective.tenant.name)
    elif objective.tier:
        parts.append(_("%(tier)s tenants") % {"tier": SLA_TIERS[objective.tier]})
    else:
        parts.append(_("all tenants"))
    return " · ".join(parts)


def left_text(seconds: float) -> str:
    """How long until then, in its largest unit."""
    if seconds >= 2 * DAY:
        return _("in %(n)s d") % {"n": round(seconds / DAY)}
    if seconds >= 2 * HOUR:
        return _("in %(n)s h") % {"n": round(seconds / HOUR)}
    return _("in %(n)s min") % {"n": max(1, round(seconds / MINUTE))}
