"""Console: how the installation itself is, part by part; what cannot be told is unknown."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from django.conf import settings
from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.urls import reverse
from django.utils import timezone
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy, ngettext

from dashboard.access import console_page, signed_in
from dashboard.policies import health as policy
from dashboard.policies.health import PartState
from dashboard.reads import health
from dashboard.templatetags.gatehouse import bytes_text, count, duration_text, moment
from gpupool.engines.registry import broken_plugins
from gpupool.selectors import list_engines

LEADERS: Final = ("controller", "live")
_UNREADY: Final = {
    "starting": gettext_lazy("it is starting"),
    "the configuration was not loaded yet": gettext_lazy("the configuration was not loaded yet"),
    "the configuration store is away for too long": gettext_lazy("the configuration store is away for too long"),
}
"""Why a process takes no requests, as it says itself."""

_COUNTERS: Final = {
    "ready": gettext_lazy("counted"),
    "rebuilding": gettext_lazy("being built anew"),
    "lost": gettext_lazy("lost"),
}


_AWAY: Final = {
    "state": gettext_lazy("It does not answer. Limited requests spend what their process holds, then get 503."),
    "scratch": gettext_lazy("It does not answer. Tasks wait, and live pages stand still; requests do not need it."),
}
_NEARLY_FULL: Final = {
    "state": gettext_lazy(
        "Its memory is nearly full: once it is, it takes nothing more, and limited requests get 503."
    ),
    "scratch": gettext_lazy(
        "Its memory is nearly full: once it is, it takes no task and no live frame, and caches nothing."
    ),
}
"""Of each server, by its role: limits are counted on that of the state alone."""


@dataclass(frozen=True, slots=True)
class Part:
    """One card: `said` is a sentence on its state, `facts` what is known of it."""

    name: str
    icon: str
    state: PartState
    said: str
    facts: Sequence[tuple[str, str]]
    links: Sequence[tuple[str, str]] = ()  # label, address: where it is seen to


@console_page
def page(request: HttpRequest) -> HttpResponse:
    now = timezone.now()
    parts = [
        _postgres(health.read_postgres(now)),
        *(
            _valkey(health.read_valkey(role, url))
            for role, url in (
                ("state", settings.GATEHOUSE.valkey_state_url),
                ("scratch", settings.GATEHOUSE.valkey_scratch_url),
            )
        ),
        _ledger(health.read_ledger(now), superuser=signed_in(request).is_superuser),
        _leases(health.read_lease_store(LEADERS)),
        *_processes(health.read_processes(now)),
    ]
    return render(
        request,
        "console/health.html",
        {
            "parts": parts,
            "worst": policy.worst(part.state for part in parts).value,
            "versions": health.read_versions(),
            "engines": list_engines(),
            "broken": broken_plugins(),
            "now": now,
            "zone": str(timezone.get_current_timezone()),
        },
    )


def _postgres(told: health.Postgres) -> Part:
    schema = told.schema
    state = policy.worst(
        [
            policy.partitions_state(schema.months_ahead),
            policy.connections_state(told.connections, told.most_connections),
            PartState.BROKEN if schema.unapplied else PartState.FINE,
            PartState.WARNING if schema.default_rows else PartState.FINE,
        ]
    )
    said = _("It answers, and its schema is this version's.")
    if schema.unapplied:
        said = _("This version's migrations are not all applied: run `manage.py migrate`.")
    elif schema.months_ahead < 1:
        said = _("The ledger has no partition for the next month: does beat run?")
    elif schema.default_rows:
        said = _("The ledger's default partition holds rows: some came before their month's partition.")
    elif state is PartState.WARNING:
        said = _("Few connections are left: raise max_connections, or pool them.")
    ahead = _("not even this month's") if schema.months_ahead < 0 else str(schema.months_ahead)
    return Part(
        "PostgreSQL",
        "database",
        state,
        said,
        [
            (_("Version"), told.version),
            (_("Size"), bytes_text(told.size_bytes)),
            (_("Connections"), f"{told.connections} / {told.most_connections}"),
            (_("Ledger partitions ahead"), ahead),
            (_("Migrations"), ", ".join(schema.unapplied[:5]) or _("all applied")),
        ],
    )


def _valkey(told: health.Valkey) -> Part:
    name = f"Valkey · {told.role}"
    if not told.configured:
        said = _("There is none: counters, streams and live pages work within one process only.")
        return Part(name, "bolt", PartState.WARNING, said, [])
    if told.error:
        return Part(name, "bolt", PartState.BROKEN, str(_AWAY[told.role]), [(_("Error"), told.error)])
    said = ""
    if policy.takes_nothing_soon(told.used_bytes, told.most_bytes, told.policy):
        said = str(_NEARLY_FULL[told.role])
    elif told.role == "state" and told.policy not in ("noeviction", ""):
        said = _("It may evict counters and usage rows: set maxmemory-policy to noeviction.")
    elif told.role == "scratch" and told.policy.startswith("allkeys"):
        said = _("It may evict tasks that wait for a worker: set maxmemory-policy to volatile-lru.")
    elif told.role == "state" and told.persistent is False:
        said = _("It keeps no append-only file: when it restarts, counters are built anew, and limited requests wait.")
    memory = bytes_text(told.used_bytes)
    if told.most_bytes is not None:
        memory = f"{memory} / {bytes_text(told.most_bytes)}"
    return Part(
        name,
        "bolt",
        PartState.WARNING if said else PartState.FINE,
        said or _("It answers."),
        [
            (_("Version"), told.version or _("unknown")),
            (_("Memory"), memory),
            (_("When full"), told.policy or _("unknown")),
            (
                _("Append-only file"),
                _("unknown") if told.persistent is None else _("on") if told.persistent else _("off"),
            ),
        ],
    )


def _ledger(told: health.Ledger, *, superuser: bool) -> Part:
    behind = policy.ledger_state(told.lag_seconds, 0)
    full = policy.fill_state(told.fullest_spool_bytes, told.spool_cap_bytes)
    undrained = PartState.WARNING if told.readers == 0 else PartState.FINE
    state = policy.worst([behind, full, undrained, policy.ledger_state(told.lag_seconds, told.dead_letters)])
    said = _("Usage is in it within seconds.")
    if behind is PartState.UNKNOWN:
        said = _("How far behind it is cannot be told while Valkey is away; rows wait in spools.")
    elif undrained is not PartState.FINE:
        said = _("No drain reads the stream: usage waits there. Start one with `manage.py drain`.")
    elif behind is not PartState.FINE:
        said = _("It is behind: rows wait in the stream. Does the drain run, and does PostgreSQL keep up?")
    elif full is not PartState.FINE:
        said = _("A usage spool of this machine is nearly full: once it is, limited requests get 503.")
    elif told.dead_letters:
        said = _("Some entries could not become rows, and are kept whole: look at the back office's dead letters.")
    letters = count(told.dead_letters) + ("+" if told.dead_letters == health.MOST_LETTERS else "")
    if told.newest_letter:
        letters = f"{letters} ({moment(told.newest_letter)})"
    spools = _("unknown")
    if told.spools is not None:
        spools = _("%(n)s, the fullest %(size)s of %(most)s") % {
            "n": count(told.spools),
            "size": bytes_text(told.fullest_spool_bytes),
            "most": bytes_text(told.spool_cap_bytes),
        }
    lag = _("unknown") if told.lag_seconds is None else duration_text(told.lag_seconds)
    links = []
    if told.dead_letters and superuser:
        links.append((_("Dead letters"), reverse("admin:tenants_deadletter_changelist")))
    return Part(
        _("Ledger"),
        "receipt",
        state,
        said,
        [
            (_("Behind by"), lag),
            (_("Rows waiting"), count(told.waiting)),
            (_("Readers"), count(told.readers)),
            (_("Dead letters"), letters),
            (_("Spools on this machine"), spools),
        ],
        links,
    )


def _leases(told: health.LeaseStore) -> Part:
    leads = next((leader for leader in told.leaders if leader.name == "controller"), None)
    if leads is None or leads.holder is None:
        state, said = PartState.UNKNOWN, _("The lease store does not answer: nothing new starts, engines keep serving.")
    elif not leads.holder:
        state = PartState.BROKEN
        said = _("No controller leads: nothing is placed, woken or healed. Engines keep serving.")
    else:
        state, said = PartState.FINE, _("A controller leads.")
    facts = [(_("Store"), told.kind), (_("Revision"), count(told.revision)), *map(_led, told.leaders)]
    if told.error:
        facts.append((_("Error"), told.error))
    return Part(_("Controller and leases"), "server-2", state, said, facts)


def _led(leader: health.Leader) -> tuple[str, str]:
    holder = _("unknown") if leader.holder is None else leader.holder or _("nobody")
    if leader.name == "controller":
        return _("Controller"), holder
    if not settings.GATEHOUSE.valkey_scratch_url:
        holder = _("each web process for its own")
    elif leader.holder == "":
        holder = _("nobody: one begins when a page watches")
    return _("Publisher of live pages"), holder


def _processes(told: health.Processes) -> list[Part]:
    if told.doors is None:
        state, said = PartState.UNKNOWN, _("Which processes take requests cannot be told while Valkey is away.")
    elif told.counters == "lost":
        state, said = (
            PartState.BROKEN,
            _("Counters of limits are lost, and nobody builds them anew: does the drain run?"),
        )
    elif told.counters != "ready":
        state, said = PartState.WARNING, _("Counters of limits are being rebuilt: limited requests wait for that.")
    elif not told.doors:
        state, said = PartState.BROKEN, _("No relay and no web process says that it lives: nobody takes requests.")
    else:
        state, said = PartState.FINE, _("They tell Valkey that they live, each half second.")
    here = _("unknown") if told.serves is None else _("ready")
    if told.serves:
        here = str(_UNREADY.get(told.serves, told.serves))
        state, said = PartState.BROKEN, _("This process takes no requests: %(why)s.") % {"why": here}
    doors = Part(
        _("Relay and web"),
        "route",
        state,
        said,
        [
            (_("Processes at the doors"), count(told.doors)),
            (_("Counters of limits"), str(_COUNTERS.get(told.counters or "", _("unknown")))),
            (_("This process"), here),
        ],
    )
    batch = policy.batch_state(told.batch.age_seconds)
    match batch:
        case PartState.FINE:
            said = _("Beat sends and a worker works.")
        case PartState.UNKNOWN if not told.batch.never:
            said = _("What beat and the workers said last cannot be read while Valkey is away.")
        case PartState.UNKNOWN:
            said = _("Neither beat nor a worker has left word: they may have just begun, or not run at all.")
        case _:
            said = _("No batch work was done lately: look at beat and the workers. Requests do not need them.")
    age = _("unknown")
    if told.batch.age_seconds is not None:
        age = _("%(age)s ago") % {"age": duration_text(told.batch.age_seconds)}
    parts = [doors, Part(_("Worker and beat"), "calendar-time", batch, said, [(_("Last word"), age)])]
    if told.local is not None:
        down = [one for one in told.local if not one.alive]
        said = _("Everything that “up” started on this machine runs.")
        if down:
            said = _("Some of what “up” started on this machine does not run.")
        facts = [
            (
                one.name,
                (_("runs") if one.alive else _("is down"))
                + (
                    ngettext(", ended %(n)s time lately", ", ended %(n)s times lately", one.failures)
                    % {"n": one.failures}
                    if one.failures
                    else ""
                ),
            )
            for one in told.local
        ]
        state = PartState.BROKEN if down else PartState.FINE
        parts.append(Part(_("Processes of this machine"), "cpu", state, said, facts))
    return parts
