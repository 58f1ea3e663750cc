"""Console: how the installation itself is, part by part; what cannot be told is unknown."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from django.conf import settings
from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.utils import timezone
from django.utils.translation import gettext as _

from dashboard.access import console_page
from dashboard.policies import health as policy
from dashboard.policies.health import PartState
from dashboard.reads import health
from dashboard.templatetags.gatehouse import bytes_text, count, duration_text, moment
from gpupool.engines.registry import broken_plugins
from gpupool.selectors import list_engines

LEADERS: Final = ("controller", "live")


@dataclass(frozen=True, slots=True)
class Part:
    """One card: `said` is a sentence on its state, `facts` what is known of it."""

    name: str
    icon: str
    state: PartState
    said: str
    facts: Sequence[tuple[str, str]]


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
        _ledger(health.read_ledger(now)),
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
    state = policy.worst(
        [
            policy.partitions_state(told.months_ahead),
            policy.connections_state(told.connections, told.most_connections),
            PartState.BROKEN if told.unapplied else PartState.FINE,
            PartState.WARNING if told.default_rows else PartState.FINE,
        ]
    )
    said = _("It answers, and its schema is this version's.")
    if told.unapplied:
        said = _("This version's migrations are not all applied: run `manage.py migrate`.")
    elif told.months_ahead < 1:
        said = _("The ledger has no partition for the next month: does beat run?")
    elif told.default_rows:
        said = _("The ledger's default partition holds rows: some came before their month's partition.")
    elif state is PartState.WARNING:
        said = _("Few connections are left: raise max_connections, or pool them.")
    ahead = _("not even this month's") if told.months_ahead < 0 else str(told.months_ahead)
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
            (_("Migrations"), ", ".join(told.unapplied[:5]) or _("all applied")),
        ],
    )


def _valkey(told: health.Valkey) -> Part:
    name = f"Valkey · {told.role}"
    if not told.configured:
        said = _("There is none: counters, streams and live pages work within one process only.")
        return Part(name, "bolt", PartState.WARNING, said, [])
    if told.error:
        said = _("It does not answer. Limited requests spend what their process holds, then get 503.")
        return Part(name, "bolt", PartState.BROKEN, said, [(_("Error"), told.error)])
    evicts = told.role == "state" and told.policy not in ("noeviction", "")
    said = _("It answers.")
    if evicts:
        said = _("It may evict counters and usage rows: set maxmemory-policy to noeviction.")
    return Part(
        name,
        "bolt",
        PartState.WARNING if evicts else PartState.FINE,
        said,
        [
            (_("Version"), told.version or _("unknown")),
            (_("Memory"), bytes_text(told.used_bytes)),
            (_("When full"), told.policy or _("unknown")),
            (
                _("Append-only file"),
                _("unknown") if told.persistent is None else _("on") if told.persistent else _("off"),
            ),
        ],
    )


def _ledger(told: health.Ledger) -> Part:
    state = policy.ledger_state(told.lag_seconds, told.dead_letters)
    match state:
        case PartState.UNKNOWN:
            said = _("How far behind it is cannot be told while Valkey is away; rows wait in spools.")
        case PartState.FINE:
            said = _("Usage is in it within seconds.")
        case _ if told.dead_letters and (told.lag_seconds or 0) < policy.LAG_WARNING_SECONDS:
            said = _("Some entries could not become rows, and are kept whole: look at the back office's dead letters.")
        case _:
            said = _("It is behind: rows wait in the stream. Does the drain run, and does PostgreSQL keep up?")
    letters = count(told.dead_letters) + ("+" if told.dead_letters == health.MOST_LETTERS else "")
    if told.newest_letter:
        letters = f"{letters} ({moment(told.newest_letter)})"
    spools = _("unknown")
    if told.spools is not None:
        spools = f"{told.spools} · {bytes_text(told.spool_bytes)} / {bytes_text(told.spool_cap_bytes)}"
    lag = _("unknown") if told.lag_seconds is None else duration_text(told.lag_seconds)
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
    facts = [(_("Store"), told.kind), (_("Revision"), count(told.revision))]
    for leader in told.leaders:
        label = _("Controller") if leader.name == "controller" else _("Publisher of live pages")
        facts.append((label, _("unknown") if leader.holder is None else leader.holder or _("nobody")))
    if told.error:
        facts.append((_("Error"), told.error))
    return Part(_("Controller and leases"), "server-2", state, said, facts)


def _processes(told: health.Processes) -> list[Part]:
    if told.doors is None:
        state, said = PartState.UNKNOWN, _("Which processes take requests cannot be told while Valkey is away.")
    elif told.counters != "ready":
        state, said = PartState.WARNING, _("Counters of limits are being rebuilt: limited requests wait for that.")
    else:
        state, said = PartState.FINE, _("They tell Valkey that they live, each half second.")
    if told.serves:
        state, said = PartState.BROKEN, told.serves
    here = _("unknown") if told.serves is None else told.serves or _("ready")
    doors = Part(
        _("Relay and web"),
        "route",
        state,
        said,
        [
            (_("Processes at the doors"), count(told.doors)),
            (_("Counters of limits"), told.counters or _("unknown")),
            (_("This process"), here),
        ],
    )
    batch = policy.batch_state(told.batch_age_seconds)
    match batch:
        case PartState.FINE:
            said = _("Beat sends and a worker works.")
        case PartState.UNKNOWN:
            said = _("Neither beat nor a worker has left word: they may have just begun, or not run at all.")
        case _:
            said = _("No batch work was done lately: look at beat and the workers. Requests do not need them.")
    age = _("unknown")
    if told.batch_age_seconds is not None:
        age = _("%(age)s ago") % {"age": duration_text(told.batch_age_seconds)}
    parts = [doors, Part(_("Worker and beat"), "calendar-time", batch, said, [(_("Last word"), age)])]
    if told.local is not None:
        down = [one for one in told.local if not one.alive]
        said = _("All that `up` started on this machine run.")
        if down:
            said = _("Some of what `up` started on this machine do not run.")
        facts = [
            (
                one.name,
                (_("runs") if one.alive else _("is down"))
                + (_(", ended %(n)s times lately") % {"n": one.failures} if one.failures else ""),
            )
            for one in told.local
        ]
        state = PartState.BROKEN if down else PartState.FINE
        parts.append(Part(_("Processes of this machine"), "cpu", state, said, facts))
    return parts
