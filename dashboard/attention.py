"""The overview's list of what to look at first: each finding as a sentence with a link to where it is seen to."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from django.urls import NoReverseMatch, reverse
from django.utils.functional import Promise
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy, ngettext

from dashboard.policies.attention import Finding, Kind, Level
from dashboard.templatetags.gatehouse import duration_text

LEVELS: Final[dict[Level, tuple[str, str | Promise]]] = {
    Level.NOW: ("bad", gettext_lazy("Now")),
    Level.SOON: ("warn", gettext_lazy("Soon")),
    Level.LOOK: ("busy", gettext_lazy("Waits")),
}
_PLACES: Final[dict[Kind, tuple[str, str]]] = {
    Kind.VALKEY_AWAY: ("console-health", ""),
    Kind.CONTROLLER_AWAY: ("console-health", ""),
    Kind.LEDGER_BEHIND: ("console-health", ""),
    Kind.DEAD_LETTERS: ("console-health", ""),
    Kind.BATCH_SILENT: ("console-health", ""),
    Kind.PLUGIN_BROKEN: ("console-engines", ""),
    Kind.ENGINE_OFF: ("console-engines", ""),
    Kind.ENGINE_KEY_MISSING: ("console-instances", ""),
    Kind.ALERT: ("console-slo", ""),
    Kind.NODE_UNREACHABLE: ("console-nodes", "?state=unreachable"),
    Kind.NODE_IN_MAINTENANCE: ("console-nodes", ""),
    Kind.INSTANCE_FAILED: ("console-instances", "?state=failed"),
    Kind.INSTANCE_UNKNOWN: ("console-instances", "?state=unknown"),
    Kind.DEVICE_FAILED: ("console-nodes", ""),
    Kind.DEVICE_ISOLATED: ("console-nodes", ""),
    Kind.BUDGET_SPENT: ("console-quotas", "?scope=tenant"),
    Kind.BUDGET_NEAR: ("console-quotas", "?scope=tenant"),
    Kind.APPROVAL_WAITS: ("console-approvals", ""),
    Kind.WEBHOOK_DISABLED: ("", ""),  # the platform's own are seen by the control API alone
}


@dataclass(frozen=True, slots=True)
class Item:
    """One line of the list."""

    tone: str
    level: str | Promise
    kind: str
    text: str
    href: str  # "" where there is no such page


def items_of(ranked: Sequence[tuple[Level, Finding]]) -> list[Item]:
    """In the reader's language."""
    return [
        Item(*LEVELS[level], kind=finding.kind.value, text=_sentence(finding), href=_place(finding))
        for level, finding in ranked
    ]


def _place(finding: Finding) -> str:
    if finding.kind is Kind.ALERT and finding.target:
        try:
            return reverse("console-slo-objective", args=[finding.target])
        except NoReverseMatch:
            pass
    name, query = _PLACES[finding.kind]
    try:
        return reverse(name) + query
    except NoReverseMatch:
        return ""


def _sentence(finding: Finding) -> str:
    count, names = finding.count, _listed(finding)
    age = duration_text(finding.seconds) if finding.seconds is not None else ""
    told = {"n": count, "names": names, "age": age}
    match finding.kind:
        case Kind.VALKEY_AWAY:
            text = _("Valkey does not answer (%(names)s): limited requests spend what is held, then get 503.")
        case Kind.CONTROLLER_AWAY:
            text = _("No controller leads: nothing is placed, woken or healed. Engines keep serving.")
        case Kind.LEDGER_BEHIND:
            text = _("The ledger is %(age)s behind: usage and budgets are old by that much.")
        case Kind.DEAD_LETTERS:
            text = ngettext(
                "%(n)s usage row could not be stored and is billed to nobody.",
                "%(n)s usage rows could not be stored and are billed to nobody.",
                count,
            )
        case Kind.BATCH_SILENT:
            text = _("No batch work was done for %(age)s: rollups, notices and retention stand still.")
        case Kind.ALERT:
            text = _("The error budget of “%(names)s” burns too fast.")
        case Kind.NODE_UNREACHABLE:
            text = ngettext(
                "%(n)s node is unreachable: %(names)s. What runs there may still serve.",
                "%(n)s nodes are unreachable: %(names)s. What runs there may still serve.",
                count,
            )
        case Kind.NODE_IN_MAINTENANCE:
            text = ngettext(
                "%(n)s node is in maintenance: %(names)s.", "%(n)s nodes are in maintenance: %(names)s.", count
            )
        case Kind.INSTANCE_FAILED:
            text = ngettext("%(n)s instance failed: %(names)s.", "%(n)s instances failed: %(names)s.", count)
        case Kind.INSTANCE_UNKNOWN:
            text = ngettext(
                "%(n)s instance is in a state that nobody knows: %(names)s.",
                "%(n)s instances are in a state that nobody knows: %(names)s.",
                count,
            )
        case Kind.DEVICE_FAILED:
            text = ngettext("%(n)s device failed: %(names)s.", "%(n)s devices failed: %(names)s.", count)
        case Kind.DEVICE_ISOLATED:
            text = ngettext(
                "%(n)s device is taken out until it is given back: %(names)s.",
                "%(n)s devices are taken out until they are given back: %(names)s.",
                count,
            )
        case Kind.BUDGET_SPENT:
            text = ngettext(
                "%(n)s budget is used up, and requests are refused until its period ends: %(names)s.",
                "%(n)s budgets are used up, and requests are refused until their periods end: %(names)s.",
                count,
            )
        case Kind.BUDGET_NEAR:
            text = ngettext(
                "%(n)s budget is near its end: %(names)s.", "%(n)s budgets are near their end: %(names)s.", count
            )
        case Kind.ENGINE_OFF:
            text = ngettext(
                "%(n)s engine is switched off and has instances: %(names)s.",
                "%(n)s engines are switched off and have instances: %(names)s.",
                count,
            )
        case Kind.PLUGIN_BROKEN:
            text = ngettext(
                "%(n)s plugin cannot be used: %(names)s.", "%(n)s plugins cannot be used: %(names)s.", count
            )
        case Kind.ENGINE_KEY_MISSING:
            text = ngettext(
                "%(n)s variable with an engine's key is not set: %(names)s. Its engine answers 401.",
                "%(n)s variables with engines' keys are not set: %(names)s. Those engines answer 401.",
                count,
            )
        case Kind.APPROVAL_WAITS:
            text = ngettext(
                "%(n)s request waits for a decision, for %(age)s: %(names)s.",
                "%(n)s requests wait for a decision, the oldest for %(age)s: %(names)s.",
                count,
            )
        case Kind.WEBHOOK_DISABLED:
            text = ngettext(
                "%(n)s of the platform's webhooks was disabled, since nothing could be delivered.",
                "%(n)s of the platform's webhooks were disabled, since nothing could be delivered.",
                count,
            )
    return text % told


def _listed(finding: Finding) -> str:
    names = ", ".join(finding.names)
    rest = finding.count - len(finding.names)
    if not finding.names or rest <= 0 or finding.kind in (Kind.INSTANCE_FAILED, Kind.INSTANCE_UNKNOWN):
        return names  # instances are named by their models, of which there are fewer
    return _("%(names)s and %(n)s more") % {"names": names, "n": rest}
