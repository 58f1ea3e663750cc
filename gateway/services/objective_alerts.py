"""Alerts about objectives: opened and closed at each look, told by webhook and mail, acknowledged, held back.

Who is told: of an objective of the platform's those who operate it, and the tenant whose requests it is about; of one
that a tenant set up for itself that tenant alone. Each telling has a key of its own: looking twice tells once.
"""

from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, Final, Literal
from uuid import UUID

from django.db import OperationalError, connection, transaction
from psycopg.errors import QueryCanceled

from gateway.models import Objective, ObjectiveAlert, Silence
from gateway.policies.slo import PAIRS
from gateway.policies.slo_alerts import Alert, AlertState, NotAllowed, Severity, Step, moved, step
from gateway.reads import slo
from gateway.reads.slo import PairStanding, Standing, holds, read_standings
from gateway.services.objective_tallies import NEW_AT_ONCE, tally_objectives
from tenants.actor import SYSTEM, Actor
from tenants.models import Tenant, User
from tenants.policies.notices import NoticeKind
from tenants.services.audit import record_audit
from tenants.services.errors import Conflict, InvalidInput
from tenants.services.notices import raise_notice

LONGEST_SILENCE: Final = timedelta(days=30)
EndedBy = Literal["changed", "disabled", "deleted"]
AT_ONCE: Final = 100
_LOCK: Final = 6_103_515_625  # of a look, in the database: whoever comes second lets the first one do it
LOCK_NEW: Final = 6_103_515_624  # of new ones: while their windows are counted, the next look is at known ones


def evaluate_objectives(*, now: datetime) -> int:
    """Count, look at every pair of windows, and tell; returns how many alerts were told of. Safe to run twice.

    AT_ONCE objectives in one transaction, so that who changes one waits for few others, and what takes too long for one
    is late for few: it has its turn in the next look. Raises the first such OperationalError, after all had their turn.
    """
    told, late = 0, None
    for ids, lock in _turns():
        try:
            found = _evaluate(ids, lock=lock, now=now)
        except OperationalError as error:
            late = late or error
            if isinstance(error.__cause__, QueryCanceled):
                _put_off(ids, now=now)
            continue
        if found is None:
            break
        told += found
    if late is not None:
        raise late
    return told


def _turns() -> Iterator[tuple[list[UUID], int]]:
    """Who is looked at together, and by which lock: known ones, the longest waiting first, however long new ones take.

    Then new ones, each by itself, as its whole window is counted; of those that took too long before no more than one.
    """
    enabled = Objective.objects.filter(enabled=True)
    known = list(enabled.exclude(tallied_at=None).order_by("tallied_at", "pk").values_list("pk", flat=True))
    new = slo.in_turn(enabled.filter(tallied_at=None)).values_list("pk", flat=True)
    for place in range(0, len(known), AT_ONCE):
        yield known[place : place + AT_ONCE], _LOCK
    for pk in list(new.filter(count_failed_at=None)[:NEW_AT_ONCE]) or list(new[:1]):
        yield [pk], LOCK_NEW


@transaction.atomic
def _put_off(ids: Sequence[UUID], *, now: datetime) -> None:
    """Where counting a new one takes too long, all other new ones have their turn before it has its next."""
    new = Objective.objects.select_for_update(skip_locked=True).filter(pk__in=ids, tallied_at=None)
    Objective.objects.filter(pk__in=list(new.values_list("pk", flat=True))).update(count_failed_at=now)


@transaction.atomic
def _evaluate(ids: Sequence[UUID], *, lock: int, now: datetime) -> int | None:
    """How many alerts of those objectives were told of; None where another look is on its way."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_try_advisory_xact_lock(%s)", [lock])
        if not cursor.fetchone()[0]:
            return None
    tally_objectives(now=now, among=ids)
    objectives = list(Objective.objects.filter(pk__in=ids, enabled=True).select_related("tenant"))
    standings = read_standings(objectives, now=now, sparks=False)
    _keep_remaining(objectives, standings)
    opened = ObjectiveAlert.objects.select_for_update(of=("self",)).filter(objective__in=objectives)
    known = {(alert.objective_id, alert.pair): alert for alert in opened.exclude(state=AlertState.RESOLVED.value)}
    silences = list(Silence.objects.filter(starts_at__lte=now, ends_at__gt=now))
    told = 0
    for objective in objectives:
        silenced = is_silenced(objective, silences)
        standing = standings[objective.pk]
        for pair in standing.pairs:
            alert = known.get((objective.pk, pair.pair.name))
            told += _look(objective, standing, pair, alert, silenced=silenced, now=now)
    return told


def _keep_remaining(objectives: Sequence[Objective], standings: Mapping[UUID, Standing]) -> None:
    """What lists are sorted by; the rows are locked since they were counted. Most have changed by less than is said."""
    changed = []
    for one in objectives:
        left = _rounded(standings[one.pk].budget.remaining)
        if left != one.budget_remaining:
            one.budget_remaining = left
            changed.append(one)
    Objective.objects.bulk_update(changed, ["budget_remaining"])


def _rounded(remaining: float | None) -> float | None:
    """As it is kept and told: a little that is left is not nothing, nor is a little too much."""
    return remaining if remaining is None else round(remaining, 4) or remaining


def is_silenced(objective: Objective, silences: Sequence[Silence]) -> bool:
    """Whether any of those, that hold now, holds its alerts back."""
    return any(holds(silence, objective) for silence in silences)


@transaction.atomic
def acknowledge_alert(alert_id: UUID, *, actor: Actor, now: datetime) -> ObjectiveAlert:
    """Somebody is at it: it is told no more. Raises ObjectiveAlert.DoesNotExist, and Conflict once it is not firing."""
    rows = ObjectiveAlert.objects.select_for_update(of=("self",)).select_related("objective")
    alert = rows.get(pk=alert_id)
    try:
        alert.state = moved(AlertState(alert.state), AlertState.ACKNOWLEDGED).value
    except NotAllowed as error:
        raise Conflict(f"The alert is {alert.state} already.") from error
    alert.acknowledged_at = now
    alert.acknowledged_by = person_of(actor)
    alert.save(update_fields=["state", "acknowledged_at", "acknowledged_by"])
    _tell("objective_alert.acknowledged", alert, actor, after={"pair": alert.pair})
    return alert


def end_alerts(objective: Objective, *, actor: Actor, by: EndedBy, now: datetime) -> None:
    """What they told of is no longer what the objective says. In the caller's transaction.

    `objective` as it was when they told: who was told that it burns is told that this is over, by the name that they
    know. What they opened for it elsewhere would stay open for ever.
    """
    silenced = is_silenced(objective, list(Silence.objects.filter(starts_at__lte=now, ends_at__gt=now)))
    for alert in objective.alerts.select_for_update().exclude(state=AlertState.RESOLVED.value):
        tell = alert.told > 0 and not silenced
        alert.state, alert.resolved_at, alert.told = AlertState.RESOLVED.value, now, alert.told + tell
        alert.save(update_fields=["state", "resolved_at", "told"])
        _tell("objective_alert.resolved", alert, actor, after={"pair": alert.pair})
        if tell:
            _raise(objective, NoticeKind.OBJECTIVE_RECOVERED, alert, ended_by=by)


@transaction.atomic
def create_silence(
    *,
    ends_at: datetime,
    reason: str,
    actor: Actor,
    now: datetime,
    objective: Objective | None = None,
    tenant: Tenant | None = None,
    starts_at: datetime | None = None,
) -> Silence:
    """Tell of nothing until `ends_at`: of `objective`, or of all; `tenant`: of those that it set up for itself.

    Raises InvalidInput naming the field.
    """
    begins = starts_at or now
    if not reason.strip():
        raise InvalidInput("reason", "Say why nobody is to be told.")
    if ends_at <= max(begins, now):
        raise InvalidInput("ends_at", "A silence ends later than it begins, and not in the past.")
    if ends_at - begins > LONGEST_SILENCE:
        raise InvalidInput("ends_at", f"A silence lasts {LONGEST_SILENCE.days} days at most.")
    owner = objective.tenant_id if objective is not None and objective.tenants_own else None
    if objective is not None and owner != (tenant.pk if tenant is not None else None):
        raise InvalidInput("objective", "This objective is not theirs who would silence it.")
    silence = Silence.objects.create(
        objective=objective,
        tenant=tenant,
        reason=reason.strip()[:200],
        starts_at=begins,
        ends_at=ends_at,
        created_by=person_of(actor),
    )
    record_audit(
        "silence.created",
        subject=silence,
        actor=actor,
        tenant_id=silence.tenant_id,
        after={
            "objective": str(objective.pk) if objective else None,
            "starts_at": begins.isoformat(),
            "ends_at": ends_at.isoformat(),
        },
    )
    return silence


@transaction.atomic
def end_silence(silence_id: UUID, *, actor: Actor, now: datetime) -> Silence:
    """From now on people are told again. Raises Silence.DoesNotExist, and Conflict when it has ended."""
    silence = Silence.objects.select_for_update(of=("self",)).get(pk=silence_id)
    if silence.ends_at <= now:
        raise Conflict("The silence has ended already.")
    silence.ends_at = now
    silence.save(update_fields=["ends_at"])
    record_audit("silence.ended", subject=silence, actor=actor, tenant_id=silence.tenant_id)
    return silence


def person_of(actor: Actor) -> User | None:
    """Whom a row names as having done it; None where that is no person."""
    return User.objects.filter(pk=actor.id).first() if actor.kind == "user" and actor.id is not None else None


def _look(
    objective: Objective,
    standing: Standing,
    found: PairStanding,
    row: ObjectiveAlert | None,
    *,
    silenced: bool,
    now: datetime,
) -> int:
    """One pair of one objective; returns whether it was told."""
    pair, before = found.pair, None if row is None else _alert(row)
    after = step(before, burns=found.burning, severity=pair.severity, silenced=silenced, now=now.timestamp())
    if after.alert is None:
        return 0
    if row is None:
        row = ObjectiveAlert(objective=objective, pair=pair.name, severity=pair.severity.value, opened_at=now)
        row.long_burn, row.short_burn = found.long or 0.0, found.short or 0.0
        _write(row, after, now)
        row.save(force_insert=True)
        _tell("objective_alert.opened", row, SYSTEM, after={"pair": pair.name, "severity": pair.severity.value})
    elif after.alert != before or found.burning:
        if found.burning:
            row.long_burn, row.short_burn = found.long or 0.0, found.short or 0.0
        _write(row, after, now)
        row.save()
        if after.over:
            _tell("objective_alert.resolved", row, SYSTEM, after={"pair": pair.name})
    if not after.tell:
        return 0
    _raise(
        objective,
        NoticeKind.OBJECTIVE_RECOVERED if after.over else NoticeKind.OBJECTIVE_BURNING,
        row,
        budget_remaining=_rounded(standing.budget.remaining),
    )
    return 1


def _alert(row: ObjectiveAlert) -> Alert:
    return Alert(
        Severity(row.severity),
        AlertState(row.state),
        calm_since=row.calm_since.timestamp() if row.calm_since else None,
        told_at=row.told_at.timestamp() if row.told_at else None,
        told=row.told > 0,
    )


def _write(row: ObjectiveAlert, after: Step, now: datetime) -> None:
    alert = after.alert
    assert alert is not None
    row.told += after.tell
    row.state = alert.state.value
    row.calm_since = None if alert.calm_since is None else datetime.fromtimestamp(alert.calm_since, UTC)
    row.told_at = None if alert.told_at is None else datetime.fromtimestamp(alert.told_at, UTC)
    row.resolved_at = now if alert.state is AlertState.RESOLVED else None


def _raise(objective: Objective, kind: NoticeKind, row: ObjectiveAlert, **more: Any) -> None:
    pair = next((one for one in PAIRS if one.name == row.pair), None)
    payload: dict[str, Any] = {
        "objective": str(objective.pk),
        "alert": str(row.pk),
        "name": objective.name,
        "indicator": objective.kind,
        "target": objective.target,
        "threshold_seconds": objective.threshold_seconds,
        "window_days": objective.window_days,
        "model": objective.model,
        "tenant_id": None if objective.tenant_id is None else str(objective.tenant_id),
        "severity": row.severity,
        "pair": row.pair,
        "burn_threshold": None if pair is None else pair.burn,
        "long_burn": round(row.long_burn, 2),
        "short_burn": round(row.short_burn, 2),
        "budget_remaining": None,
        "opened_at": row.opened_at.isoformat(timespec="seconds"),
        "time_zone": "UTC",
        **more,
    }
    audience: list[Tenant | None] = [] if objective.tenants_own else [None]
    audience += [objective.tenant] if objective.tenant is not None else []
    for tenant in audience:
        raise_notice(
            kind,
            tenant=tenant,
            payload=payload,
            dedupe_key=f"objective:{row.pk}:{row.told}:{tenant.pk if tenant else 'platform'}",
            actor=SYSTEM,
        )


def _tell(action: str, alert: ObjectiveAlert, actor: Actor, *, after: dict[str, Any]) -> None:
    told = {"objective": str(alert.objective_id), **after}
    record_audit(action, subject=alert, actor=actor, tenant_id=alert.objective.tenant_id, after=told)
