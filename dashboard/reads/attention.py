"""What is found when the whole platform is looked over for what a person should do: a constant number of queries."""

import os
from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta
from fnmatch import fnmatchcase
from itertools import islice
from typing import Any, Final
from uuid import UUID

from django.conf import settings
from django.db import ProgrammingError
from django.db.models import Count, Exists, Min, OuterRef, Q

from core.ids import uuid7_from
from dashboard.policies import health as health_policy
from dashboard.policies.attention import Finding, Kind, Level, fails
from dashboard.policies.health import PartState
from dashboard.reads import health
from dashboard.reads.models import allowing_patterns, takes_requests
from gateway.models import ObjectiveAlert, Silence
from gateway.reads.breakers import OpenBreakers, read_breakers
from gateway.relay.breaker_board import LASTING_SECONDS
from gateway.relay.limiting.layout import READY
from gateway.services.objective_alerts import is_silenced
from gpupool.engines.registry import broken_plugins
from gpupool.models import (
    Device,
    Instance,
    InstanceDesire,
    InstanceState,
    Model,
    ModelVersion,
    Node,
    NodeState,
    VersionState,
)
from gpupool.selectors import switched_off_engines
from tenants.models import AccessRequest, Limit, Notice, Webhook
from tenants.policies.notices import NoticeKind
from tenants.policies.requests import RequestState
from tenants.reads.forecasts import amount_in_force
from tenants.reads.latency import latency_by_model
from tenants.services.webhooks import BY_HAND, host_of

NAMED: Final = 3
"""Names told of each finding; the rest is a number."""

_BUDGET_KINDS: Final = (NoticeKind.BUDGET_SHARE.value, NoticeKind.BUDGET_REFUSING.value)
_NEAR_SHARE: Final = 80
_LONGEST_PERIOD: Final = timedelta(days=32)
_MOST_NOTICES: Final = 500
_MOST_ROWS: Final = 200
_WILD: Final = frozenset("*?[")
FAILING_SPAN: Final = timedelta(minutes=5)
_PLACED_WITHIN: Final = timedelta(minutes=1)
"""What has had no place for longer does not get one by itself soon."""

_LEFT_ALONE: Final = timedelta(seconds=LASTING_SECONDS)
_LONGEST_LOAD: Final = timedelta(minutes=15)
_COMING: Final = (InstanceState.PLACING, InstanceState.STAGING, InstanceState.LOADING, InstanceState.WARMING)


def find_all(now: datetime) -> list[Finding]:
    """Everything, in no order (see dashboard.policies.attention.rank).

    Where the database lacks what this code asks it for, that alone.
    """
    schema = health.read_schema(now)
    behind = _named(Kind.SCHEMA_BEHIND, schema.unapplied)
    try:
        return [
            behind,
            *_platform(now, schema),
            *_ledger(now),
            *_batch(now),
            *_models(now),
            *_failing(now),
            *_nodes(),
            *_devices(),
            *_instances(now),
            *_breakers(now),
            *_engines(),
            *_alerts(now),
            *_budgets(now),
            *_requests(now),
            *_webhooks(),
        ]
    except ProgrammingError:
        if not behind.count:
            raise
        return [behind]


def _platform(now: datetime, schema: health.Schema) -> Iterable[Finding]:
    urls = {"state": settings.GATEHOUSE.valkey_state_url, "scratch": settings.GATEHOUSE.valkey_scratch_url}
    told = [health.read_valkey(role, url) for role, url in urls.items() if url]
    yield _named(Kind.VALKEY_AWAY, [one.role for one in told if one.error])
    full = [one for one in told if health_policy.takes_nothing_soon(one.used_bytes, one.most_bytes, one.policy)]
    yield _named(Kind.VALKEY_FULL, [one.role for one in full])
    _doors, counters = health.read_counters(now)
    if counters not in (None, READY):
        yield Finding(kind=Kind.COUNTERS_LOST)
    store = health.read_lease_store(["controller"])
    if store.leaders and store.leaders[0].holder is None:
        yield Finding(kind=Kind.LEASES_AWAY)
    elif store.leaders and store.leaders[0].holder == "":
        yield Finding(kind=Kind.CONTROLLER_AWAY)
    if health_policy.partitions_state(schema.months_ahead) is not PartState.FINE:
        yield Finding(kind=Kind.PARTITION_MISSING)


def _ledger(now: datetime) -> Iterable[Finding]:
    ledger = health.read_ledger(now)
    if ledger.lag_seconds is not None and ledger.lag_seconds >= health_policy.LAG_WARNING_SECONDS:
        yield Finding(kind=Kind.LEDGER_BEHIND, count=ledger.waiting or 1, seconds=ledger.lag_seconds)
    yield Finding(kind=Kind.DEAD_LETTERS, count=ledger.dead_letters)
    if health_policy.fill_state(ledger.fullest_spool_bytes, ledger.spool_cap_bytes) is not PartState.FINE:
        yield Finding(kind=Kind.SPOOL_FULL)


def _batch(now: datetime) -> Iterable[Finding]:
    word = health.read_batch_word(now)
    if health_policy.batch_state(word.age_seconds) in (PartState.WARNING, PartState.BROKEN):
        yield Finding(kind=Kind.BATCH_SILENT, seconds=word.age_seconds)
    elif word.never and settings.GATEHOUSE.valkey_scratch_url:  # without one no process hears of another's word
        unheard = health.read_run_seconds(now) >= health_policy.UNHEARD_SECONDS
        yield Finding(kind=Kind.BATCH_UNHEARD, count=int(unheard))


def _models(now: datetime) -> Iterable[Finding]:
    """Models that are there for everybody and whose requests are refused, as nothing of them takes any or soon will.

    Only where instances are wished to serve: those that people put to sleep, and versions whose instances tenants
    acquire, are as they should be.
    """
    serving = ModelVersion.objects.filter(model=OuterRef("pk"), state=VersionState.SERVING, tenant_id=None)
    of_it = Instance.objects.filter(
        version__model=OuterRef("pk"), version__state=VersionState.SERVING, version__tenant_id=None, tenant_id=None
    ).exclude(state=InstanceState.STOPPED)
    wished = of_it.filter(desire=InstanceDesire.RUNNING)
    asleep = of_it.filter(desire=InstanceDesire.ASLEEP, pooled=False)
    taking = of_it.filter(takes_requests()).exclude(engine__in=switched_off_engines())
    coming = of_it.filter(state__in=_COMING, attached=False, state_changed_at__gt=now - _LONGEST_LOAD)
    rows = Model.objects.filter(
        Exists(wished) | Exists(serving.filter(replicas__gt=0)) & ~Exists(asleep),
        ~Exists(taking),
        ~Exists(coming.exclude(desire=InstanceDesire.STOPPED)),
        tenant_id=None,
    )
    patterns = {pattern for pattern, _number in allowing_patterns()}
    wide = [pattern for pattern in patterns if _WILD.intersection(pattern)]  # of many tenants most name one model
    if not wide:
        rows = rows.filter(name__in=patterns)
    called = (
        (pk, name)
        for pk, name in rows.order_by("name").values_list("pk", "name").iterator()
        if name in patterns or any(fnmatchcase(name, pattern) for pattern in wide)
    )
    found = list(islice(called, _MOST_ROWS))
    yield _named(Kind.MODEL_UNSERVED, [name for _pk, name in found], targets=[pk for pk, _name in found])


def _failing(now: datetime) -> Iterable[Finding]:
    """Models of whose requests many have just failed, whether an objective promises anything of them or not."""
    sums = latency_by_model(since=now - FAILING_SPAN, until=now, of=())
    found = [(one, level) for one in sums if (level := fails(one.requests, one.faults)) is not None]
    names = [one.model for one, _level in found]
    yield Finding(
        kind=Kind.REQUESTS_FAIL,
        count=sum(one.faults for one, _level in found),
        names=names[:NAMED],
        page=any(level is Level.NOW for _one, level in found),
        target=_only(names),
    )


def _nodes() -> Iterable[Finding]:
    rows = Node.objects.filter(Q(state=NodeState.UNREACHABLE) | Q(maintenance=True)).order_by("name")
    found = list(rows.values_list("pk", "name", "state", "maintenance"))
    away = [(pk, name) for pk, name, state, _maintenance in found if state == NodeState.UNREACHABLE]
    kept_out = [(pk, name) for pk, name, _state, maintenance in found if maintenance]
    for kind, those in ((Kind.NODE_UNREACHABLE, away), (Kind.NODE_IN_MAINTENANCE, kept_out)):
        yield _named(kind, [name for _pk, name in those], targets=[pk for pk, _name in those])


def _devices() -> Iterable[Finding]:
    rows = Device.objects.filter(present=True, allocatable=True).filter(
        Q(health="failed") | Q(isolated_at__isnull=False)
    )
    columns = ("node_id", "node__name", "index", "isolated_at")
    found = list(rows.order_by("node__name", "index").values_list(*columns))
    for kind, wanted in ((Kind.DEVICE_FAILED, False), (Kind.DEVICE_ISOLATED, True)):
        those = [(node_id, f"{node} #{index}") for node_id, node, index, at in found if (at is not None) is wanted]
        yield _named(kind, [name for _node, name in those], targets=[node_id for node_id, _name in those])


def _instances(now: datetime) -> Iterable[Finding]:
    kinds = {
        InstanceState.FAILED: Kind.INSTANCE_FAILED,
        InstanceState.UNKNOWN: Kind.INSTANCE_UNKNOWN,
        InstanceState.REQUESTED: Kind.INSTANCE_WAITS,
    }
    waits = Q(state=InstanceState.REQUESTED, desire=InstanceDesire.RUNNING, state_changed_at__lt=now - _PLACED_WITHIN)
    rows = Instance.objects.filter(Q(state__in=(InstanceState.FAILED, InstanceState.UNKNOWN)) | waits)
    found = list(rows.order_by("-state_changed_at").values_list("pk", "state", "version__model__name")[:_MOST_ROWS])
    totals = dict(rows.order_by().values_list("state").annotate(number=Count("pk")))
    for state, kind in kinds.items():
        those = [(pk, model) for pk, of, model in found if of == state]
        names, total = list(dict.fromkeys(model for _pk, model in those)), totals.get(state, 0)
        target = _only([pk for pk, _model in those]) if total == 1 else ""
        yield Finding(kind=kind, count=total, names=names[:NAMED], target=target)


def _breakers(now: datetime) -> Iterable[Finding]:
    """Ready instances that at least one relay process with requests for them leaves alone; not while they restart.

    Other processes may well reach them: what is broken may be the network of one relay's host. Where a trial has been
    due for a while, no request has come that could be one.
    """
    lately = now - _LEFT_ALONE
    told = read_breakers()
    those = {one.instance_id for one in told.left_alone if one.since < lately and not one.is_unasked(now)}
    rows = Instance.objects.filter(pk__in=those, state=InstanceState.READY).order_by("version__model__name", "pk")
    found = list(rows.values_list("pk", "version__model__name")[:_MOST_ROWS]) if those else []
    count = len(found) if len(found) < _MOST_ROWS else rows.count()
    names = list(dict.fromkeys(model for _pk, model in found))
    more = _named_by_nobody(told)
    target = "" if more else _only([pk for pk, _model in found])
    yield Finding(kind=Kind.BREAKER_OPEN, count=count, more=more, names=names[:NAMED], target=target)


def _named_by_nobody(told: OpenBreakers) -> int:
    """At least so many are left alone and not named: those of one process that others may name are left out."""
    named: dict[str, set[UUID]] = {}
    for one in told.left_alone:
        named.setdefault(one.process, set()).add(one.instance_id)
    of_all = set().union(*named.values())
    return max([0, *(one.asked - len(of_all - named.get(one.process, set())) for one in told.untold)])


def _engines() -> Iterable[Finding]:
    running = Instance.objects.exclude(state=InstanceState.STOPPED).annotate(off=Q(engine__in=switched_off_engines()))
    rows = running.filter(Q(off=True) | ~Q(credential_variable="")).order_by("engine", "credential_variable")
    told = list(rows.values_list("engine", "off", "credential_variable").distinct())
    yield _named(Kind.ENGINE_OFF, list(dict.fromkeys(engine for engine, off, _variable in told if off)))
    yield _named(Kind.PLUGIN_BROKEN, sorted({plugin.package for plugin in broken_plugins()}))
    # Of this process alone; the relay's environment is usually the same.
    wanted = sorted({variable for _engine, _off, variable in told if variable})
    yield _named(Kind.ENGINE_KEY_MISSING, [name for name in wanted if not os.environ.get(name)])


def _alerts(now: datetime) -> Iterable[Finding]:
    """One for each of the platform's objectives whose budget burns, that nobody has acknowledged or silenced."""
    firing = ObjectiveAlert.objects.filter(
        resolved_at__isnull=True, acknowledged_at__isnull=True, objective__tenants_own=False
    )
    worst: dict[UUID, ObjectiveAlert] = {}  # an objective may burn by all of its pairs at once
    for alert in firing.select_related("objective").order_by("-opened_at")[:_MOST_ROWS]:
        if alert.severity == "page" or alert.objective_id not in worst:
            worst[alert.objective_id] = alert
    silences = list(Silence.objects.filter(starts_at__lte=now, ends_at__gt=now)) if worst else []
    for objective_id, alert in worst.items():
        if is_silenced(alert.objective, silences):
            continue
        yield Finding(
            kind=Kind.ALERT, names=[alert.objective.name], page=alert.severity == "page", target=str(objective_id)
        )


def _budgets(now: datetime) -> Iterable[Finding]:
    """Calendar budgets that are near their end or over, as tenants were told in the period that runs.

    A notice counts while its limit is there and allows what it did then: of another amount people are told anew.
    """
    since = uuid7_from(int((now - _LONGEST_PERIOD).timestamp() * 1000))
    notices = Notice.objects.filter(kind__in=_BUDGET_KINDS, pk__gte=since).select_related("tenant").order_by("-pk")
    told = [notice for notice in notices[:_MOST_NOTICES] if _runs(notice.payload, now)]
    limits = Limit.objects.filter(pk__in={notice.payload.get("limit") for notice in told}) if told else ()
    amounts = {str(limit.pk): amount_in_force(limit, now) for limit in limits}
    newest: dict[str, Notice] = {}
    for notice in told:
        limit = str(notice.payload.get("limit", ""))
        if limit in amounts and amounts[limit] == notice.payload.get("amount"):
            newest.setdefault(limit, notice)
    running = list(newest.values())
    spent = [one for one in running if _share(one) >= 100 or one.kind == NoticeKind.BUDGET_REFUSING.value]
    near = [one for one in running if one not in spent and _share(one) >= _NEAR_SHARE]
    for kind, those in ((Kind.BUDGET_SPENT, spent), (Kind.BUDGET_NEAR, near)):
        owners = [one.tenant.slug if one.tenant is not None else "" for one in those]
        yield _named(kind, [str(one.payload.get("scope", "")) for one in those], targets=owners)


def _runs(payload: dict[str, Any], now: datetime) -> bool:
    try:
        return datetime.fromisoformat(payload["period_end"]) > now
    except (KeyError, TypeError, ValueError):
        return False


def _share(notice: Notice) -> int:
    share = notice.payload.get("share", 0)
    return share if isinstance(share, int) else 0


def _requests(now: datetime) -> Iterable[Finding]:
    waiting = AccessRequest.objects.filter(state=RequestState.OPEN.value)
    told = waiting.aggregate(number=Count("pk"), oldest=Min("created_at"))
    rows = waiting.order_by("pk").values_list("pk", "tenant__name")[:_MOST_ROWS] if told["number"] else ()
    found = list(rows)
    yield Finding(
        kind=Kind.APPROVAL_WAITS,
        count=told["number"],
        names=list(dict.fromkeys(name for _pk, name in found))[:NAMED],
        seconds=(now - told["oldest"]).total_seconds() if told["oldest"] else None,
        target=_only([pk for pk, _name in found]),
    )


def _webhooks() -> Iterable[Finding]:
    """Only the platform's own, by host, since an address may have a token in it: tenants are told of theirs.

    What somebody switched off by hand needs nobody.
    """
    off = Webhook.objects.filter(tenant__isnull=True, enabled=False).exclude(disabled_reason__in=("", BY_HAND))
    found = list(off.order_by("pk").values_list("pk", "url")[:_MOST_ROWS])
    hosts = [host_of(url) for _pk, url in found]
    yield _named(Kind.WEBHOOK_DISABLED, hosts, targets=[pk for pk, _url in found])


def _named(kind: Kind, names: Sequence[str], *, targets: Sequence[object] = ()) -> Finding:
    return Finding(kind=kind, count=len(names), names=names[:NAMED], target=_only(targets))


def _only(targets: Sequence[object]) -> str:
    """The one that all of them are; "" of several."""
    found = {str(target) for target in targets}
    return found.pop() if len(found) == 1 else ""
