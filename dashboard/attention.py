"""The overview's list of what to look at first: each finding as a sentence with a link to where it is seen to."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final
from urllib.parse import quote

from django.urls import reverse
from django.utils.functional import Promise
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy, ngettext

from dashboard.policies.attention import Finding, Kind, Level
from dashboard.templatetags.gatehouse import duration_text
from tenants.reads.request_log import FAULT

LEVELS: Final[dict[Level, tuple[str, str | Promise]]] = {
    Level.NOW: ("bad", gettext_lazy("Now")),
    Level.SOON: ("warn", gettext_lazy("Soon")),
    Level.LOOK: ("busy", gettext_lazy("Waits")),
}
_PLACES: Final[dict[Kind, tuple[str, str]]] = {
    Kind.SCHEMA_BEHIND: ("console-health", ""),
    Kind.VALKEY_AWAY: ("console-health", ""),
    Kind.COUNTERS_LOST: ("console-health", ""),
    Kind.CONTROLLER_AWAY: ("console-health", ""),
    Kind.LEASES_AWAY: ("console-health", ""),
    Kind.LEDGER_BEHIND: ("console-health", ""),
    Kind.VALKEY_FULL: ("console-health", ""),
    Kind.SPOOL_FULL: ("console-health", ""),
    Kind.DEAD_LETTERS: ("console-health", ""),
    Kind.BATCH_SILENT: ("console-health", ""),
    Kind.BATCH_UNHEARD: ("console-health", ""),
    Kind.PARTITION_MISSING: ("console-health", ""),
    Kind.PLUGIN_BROKEN: ("console-engines", ""),
    Kind.ENGINE_OFF: ("console-engines", ""),
    Kind.ENGINE_KEY_MISSING: ("console-instances", ""),
    Kind.REQUESTS_FAIL: ("console-requests", f"?range=15m&outcome={FAULT}"),
    Kind.MODEL_UNSERVED: ("console-routing", ""),
    Kind.ALERT: ("console-slo", ""),
    Kind.NODE_UNREACHABLE: ("console-nodes", "?state=unreachable"),
    Kind.NODE_IN_MAINTENANCE: ("console-nodes", "?service=maintenance"),
    Kind.INSTANCE_FAILED: ("console-instances", "?state=failed"),
    Kind.INSTANCE_UNKNOWN: ("console-instances", "?state=unknown"),
    Kind.INSTANCE_WAITS: ("console-instances", "?state=requested"),
    Kind.BREAKER_OPEN: ("console-instances", "?state=ready"),
    Kind.DEVICE_FAILED: ("console-nodes", ""),
    Kind.DEVICE_ISOLATED: ("console-nodes", ""),
    Kind.BUDGET_SPENT: ("console-quotas", ""),
    Kind.BUDGET_NEAR: ("console-quotas", ""),
    Kind.APPROVAL_WAITS: ("console-approvals", ""),
    Kind.WEBHOOK_DISABLED: ("console-settings", "#webhooks"),
}
_PLACES_OF_ONE: Final[dict[Kind, str]] = {
    Kind.MODEL_UNSERVED: "console-model",
    Kind.ALERT: "console-slo-objective",
    Kind.NODE_UNREACHABLE: "console-node",
    Kind.NODE_IN_MAINTENANCE: "console-node",
    Kind.INSTANCE_FAILED: "console-instance",
    Kind.INSTANCE_UNKNOWN: "console-instance",
    Kind.INSTANCE_WAITS: "console-instance",
    Kind.BREAKER_OPEN: "console-instance",
    Kind.DEVICE_FAILED: "console-node",
    Kind.DEVICE_ISOLATED: "console-node",
    Kind.APPROVAL_WAITS: "console-approval",
    Kind.WEBHOOK_DISABLED: "console-setting-webhook",
}
"""Where it is seen to when it is one, by what the finding has as its target."""

_BY_MODEL: Final = (
    Kind.REQUESTS_FAIL, Kind.INSTANCE_FAILED, Kind.INSTANCE_UNKNOWN, Kind.INSTANCE_WAITS, Kind.BREAKER_OPEN,
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Item:
    """One line of the list."""

    tone: str
    level: str | Promise
    kind: str
    text: str
    href: str


def items_of(ranked: Sequence[tuple[Level, Finding]]) -> list[Item]:
    """In the reader's language."""
    return [
        Item(*LEVELS[level], kind=finding.kind.value, text=_sentence(finding), href=_place(finding))
        for level, finding in ranked
    ]


def _place(finding: Finding) -> str:
    of_one = _PLACES_OF_ONE.get(finding.kind)
    if of_one and finding.target:
        return reverse(of_one, args=[finding.target])
    name, query = _PLACES[finding.kind]
    if finding.kind in (Kind.BUDGET_SPENT, Kind.BUDGET_NEAR) and finding.target:
        query = f"?tenant={finding.target}"
    if finding.kind is Kind.REQUESTS_FAIL and finding.target:
        query += f"&model={quote(finding.target)}"
    return reverse(name) + query


def _sentence(finding: Finding) -> str:
    count, names = finding.count, _listed(finding)
    age = duration_text(finding.seconds) if finding.seconds is not None else ""
    told = {"n": count, "names": names, "age": age, "more": finding.more}
    match finding.kind:
        case Kind.VALKEY_AWAY if "state" not in finding.names:
            text = _("Valkey does not answer (%(names)s): tasks wait, and live pages stand still; requests go on.")
        case Kind.VALKEY_AWAY:
            text = _("Valkey does not answer (%(names)s): limited requests spend what is held, then get 503.")
        case Kind.CONTROLLER_AWAY:
            text = _("No controller leads: nothing is placed, woken or healed. Engines keep serving.")
        case Kind.LEASES_AWAY:
            text = _("The lease store does not answer: nothing new starts, engines keep serving.")
        case Kind.COUNTERS_LOST:
            text = _("The counters of limits are lost: limited requests get 503 until the drain has built them anew.")
        case Kind.SCHEMA_BEHIND:
            text = ngettext(
                "%(n)s migration of this version is not applied: %(names)s. Run `manage.py migrate`.",
                "%(n)s migrations of this version are not applied: %(names)s. Run `manage.py migrate`.",
                count,
            )
        case Kind.REQUESTS_FAIL:
            text = _("%(n)s requests of the last 5 minutes failed, for no fault of their callers: %(names)s.")
        case Kind.MODEL_UNSERVED:
            text = ngettext(
                "No instance takes requests for %(n)s model, which are refused: %(names)s.",
                "No instance takes requests for %(n)s models, which are refused: %(names)s.",
                count,
            )
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
        case Kind.BATCH_UNHEARD:
            text = _("Neither beat nor a worker has left word: rollups, notices and retention may stand still.")
        case Kind.PARTITION_MISSING:
            text = _("The ledger has no partition for the next month: does beat run?")
        case Kind.VALKEY_FULL:
            text = _("The memory of Valkey is nearly full (%(names)s): once it is, it takes nothing more.")
        case Kind.SPOOL_FULL:
            text = _("A usage spool of this machine is nearly full: once it is, limited requests get 503.")
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
        case Kind.INSTANCE_WAITS:
            text = ngettext(
                "%(n)s instance waits for a place: %(names)s.", "%(n)s instances wait for a place: %(names)s.", count
            )
        case Kind.BREAKER_OPEN:
            text = ngettext(
                "%(n)s ready instance gets no requests from at least one relay process, whose own failed there: "
                "%(names)s.",
                "%(n)s ready instances get no requests from at least one relay process each, whose own failed there: "
                "%(names)s.",
                count,
            )
            if finding.more:
                text += " " + ngettext(
                    "At least %(more)s more instance is left alone, which no process names.",
                    "At least %(more)s more instances are left alone, which no process names.",
                    finding.more,
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
                "%(n)s of the platform's webhooks was disabled, since nothing could be delivered: %(names)s.",
                "%(n)s of the platform's webhooks were disabled, since nothing could be delivered: %(names)s.",
                count,
            )
    return text % told


def _listed(finding: Finding) -> str:
    names = ", ".join(finding.names)
    rest = finding.count - len(finding.names)
    if not finding.names or rest <= 0 or finding.kind in _BY_MODEL:
        return names  # instances are named by their models, of which there are fewer
    return _("%(names)s and %(n)s more") % {"names": names, "n": rest}
