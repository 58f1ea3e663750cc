"""What is found when the whole platform is looked over for what a person should do: a constant number of queries."""

import os
from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta
from typing import Any, Final
from uuid import UUID

from django.conf import settings
from django.db.models import Count, Min, Q

from core.ids import uuid7_from
from dashboard.policies import health as health_policy
from dashboard.policies.attention import Finding, Kind
from dashboard.policies.health import PartState
from dashboard.reads import health
from gateway.models import ObjectiveAlert
from gpupool.engines.registry import broken_plugins
from gpupool.models import Device, Instance, InstanceState, Node, NodeState
from gpupool.selectors import switched_off_engines
from tenants.models import AccessRequest, Limit, Notice, Webhook
from tenants.policies.notices import NoticeKind
from tenants.policies.requests import RequestState
from tenants.reads.forecasts import amount_in_force

NAMED: Final = 3
"""Names told of each finding; the rest is a number."""

_BUDGET_KINDS: Final = (NoticeKind.BUDGET_SHARE.value, NoticeKind.BUDGET_REFUSING.value)
_NEAR_SHARE: Final = 80
_LONGEST_PERIOD: Final = timedelta(days=32)
_MOST_NOTICES: Final = 500
_MOST_ROWS: Final = 200


def find_all(now: datetime) -> list[Finding]:
    """Everything, in no order (see dashboard.policies.attention.rank)."""
    return [
        *_platform(now),
        *_nodes(),
        *_devices(),
        *_instances(),
        *_engines(),
        *_alerts(),
        *_budgets(now),
        *_requests(now),
        *_webhooks(),
    ]


def _platform(now: datetime) -> Iterable[Finding]:
    urls = {"state": settings.GATEHOUSE.valkey_state_url, "scratch": settings.GATEHOUSE.valkey_scratch_url}
    away = [role for role, url in urls.items() if url and health.read_valkey(role, url).error]
    yield Finding(kind=Kind.VALKEY_AWAY, count=len(away), names=away)
    store = health.read_lease_store(["controller"])
    if store.leaders and store.leaders[0].holder == "":
        yield Finding(kind=Kind.CONTROLLER_AWAY)
    ledger = health.read_ledger(now)
    if ledger.lag_seconds is not None and ledger.lag_seconds >= health_policy.LAG_WARNING_SECONDS:
        yield Finding(kind=Kind.LEDGER_BEHIND, count=ledger.waiting or 1, seconds=ledger.lag_seconds)
    yield Finding(kind=Kind.DEAD_LETTERS, count=ledger.dead_letters)
    age = health.read_batch_age(now)
    if health_policy.batch_state(age) in (PartState.WARNING, PartState.BROKEN):
        yield Finding(kind=Kind.BATCH_SILENT, seconds=age)


def _nodes() -> Iterable[Finding]:
    names = Node.objects.order_by("name").values_list("name", flat=True)
    yield _named(Kind.NODE_UNREACHABLE, list(names.filter(state=NodeState.UNREACHABLE)))
    yield _named(Kind.NODE_IN_MAINTENANCE, list(names.filter(maintenance=True)))


def _devices() -> Iterable[Finding]:
    rows = Device.objects.filter(present=True, allocatable=True).filter(
        Q(health="failed") | Q(isolated_at__isnull=False)
    )
    found = list(rows.order_by("node__name", "index").values_list("node__name", "index", "isolated_at"))
    yield _named(Kind.DEVICE_FAILED, [f"{node} #{index}" for node, index, isolated in found if isolated is None])
    isolated = [f"{node} #{index}" for node, index, isolated in found if isolated is not None]
    yield _named(Kind.DEVICE_ISOLATED, isolated)


def _instances() -> Iterable[Finding]:
    states = (InstanceState.FAILED, InstanceState.UNKNOWN)
    rows = Instance.objects.filter(state__in=states).select_related("version__model")
    found = list(rows.only("state", "version__model__name").order_by("-state_changed_at")[:_MOST_ROWS])
    totals = dict(rows.order_by().values_list("state").annotate(number=Count("pk")))
    for state, kind in zip(states, (Kind.INSTANCE_FAILED, Kind.INSTANCE_UNKNOWN), strict=True):
        names = list(dict.fromkeys(one.version.model.name for one in found if one.state == state))
        yield Finding(kind=kind, count=totals.get(state, 0), names=names[:NAMED])


def _engines() -> Iterable[Finding]:
    running = Instance.objects.exclude(state=InstanceState.STOPPED)
    off = running.filter(engine__in=switched_off_engines()).order_by("engine")
    yield _named(Kind.ENGINE_OFF, list(off.values_list("engine", flat=True).distinct()))
    yield _named(Kind.PLUGIN_BROKEN, sorted({plugin.package for plugin in broken_plugins()}))
    # Of this process alone; the relay's environment is usually the same.
    variables = running.exclude(credential_variable="").order_by("credential_variable")
    wanted = variables.values_list("credential_variable", flat=True).distinct()
    yield _named(Kind.ENGINE_KEY_MISSING, [name for name in wanted if not os.environ.get(name)])


def _alerts() -> Iterable[Finding]:
    """One for each of the platform's objectives whose budget burns and that nobody has acknowledged."""
    firing = ObjectiveAlert.objects.filter(
        resolved_at__isnull=True, acknowledged_at__isnull=True, objective__tenants_own=False
    )
    worst: dict[UUID, ObjectiveAlert] = {}  # an objective may burn by all of its pairs at once
    for alert in firing.select_related("objective").order_by("-opened_at")[:_MOST_ROWS]:
        if alert.severity == "page" or alert.objective_id not in worst:
            worst[alert.objective_id] = alert
    for objective_id, alert in worst.items():
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
    yield _named(Kind.BUDGET_SPENT, [str(one.payload.get("scope", "")) for one in spent])
    yield _named(Kind.BUDGET_NEAR, [str(one.payload.get("scope", "")) for one in near])


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
    names = waiting.order_by("pk").values_list("tenant__name", flat=True)[:_MOST_ROWS] if told["number"] else ()
    yield Finding(
        kind=Kind.APPROVAL_WAITS,
        count=told["number"],
        names=list(dict.fromkeys(names))[:NAMED],
        seconds=(now - told["oldest"]).total_seconds() if told["oldest"] else None,
    )


def _webhooks() -> Iterable[Finding]:
    """Only the platform's own: tenants are told of theirs."""
    off = Webhook.objects.filter(tenant__isnull=True, enabled=False).exclude(disabled_reason="")
    yield Finding(kind=Kind.WEBHOOK_DISABLED, count=off[:_MOST_ROWS].count())


def _named(kind: Kind, names: Sequence[str]) -> Finding:
    return Finding(kind=kind, count=len(names), names=names[:NAMED])
