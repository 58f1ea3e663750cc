"""Objectives: made, changed, deleted, and those that every SLA tier has from the beginning."""

import unicodedata
from collections.abc import Mapping
from copy import copy
from datetime import datetime
from itertools import count
from typing import Any, Final
from uuid import UUID

from django.db import connection, transaction

from gateway.models import Objective
from gateway.policies.slo import MOST_WINDOW_DAYS, BadThreshold, Kind, bound_of, presets
from gateway.services.objective_alerts import end_alerts, person_of
from gateway.services.objective_tallies import forget_tallies
from tenants.actor import Actor
from tenants.models import SlaTier, Tenant
from tenants.services.audit import record_audit
from tenants.services.errors import Conflict, InvalidInput

MOST_OBJECTIVES: Final = 500
"""That the platform made: each is counted anew several times a minute. Tenants' own are bounded by tenant."""

MOST_OF_A_TENANT: Final = 20
"""That it made itself."""

_LONGEST_NAME: Final = 120
_NO_LINE: Final = ("Cc", "Cs", "Zl", "Zp")  # control characters, halves of characters, ends of lines
_LOCK: Final = 6_103_515_626  # in the database: of names and of how many there are

_COUNTED: Final = ("kind", "threshold_seconds", "model", "tier", "version_id")
"""What changes what is counted: the window is counted anew then."""


@transaction.atomic
def create_objective(
    *,
    name: str,
    kind: str,
    target: float,
    actor: Actor,
    threshold_seconds: float | None = None,
    window_days: int = 30,
    model: str = "",
    tenant: Tenant | None = None,
    tier: str = "",
    version_id: UUID | None = None,
    tenants_own: bool = False,
    enabled: bool = True,
    preset: str = "",
) -> Objective:
    """`name` is nobody else's of the same owner: the platform, or with `tenants_own` the tenant.

    Raises InvalidInput naming the field, and Conflict beyond the most that there may be.
    """
    objective = Objective(
        name=name.strip(),
        kind=kind,
        target=target,
        threshold_seconds=threshold_seconds,
        window_days=window_days,
        model=model.strip(),
        tenant=tenant,
        tier=tier,
        version_id=version_id,
        tenants_own=tenants_own,
        enabled=enabled,
        preset=preset,
        created_by=person_of(actor),
    )
    _check(objective)
    _lock()
    _check_name(objective)
    if tenants_own and Objective.objects.filter(tenant=tenant, tenants_own=True).count() >= MOST_OF_A_TENANT:
        raise Conflict(f"There are {MOST_OF_A_TENANT} objectives of this tenant's own already: delete one first.")
    if not tenants_own and Objective.objects.filter(tenants_own=False).count() >= MOST_OBJECTIVES:
        raise Conflict(f"There are {MOST_OBJECTIVES} objectives already: delete one first.")
    objective.save()
    _tell("objective.created", objective, actor, after=_values(objective))
    return objective


def lock_objective(objective_id: UUID) -> Objective:
    """The objective, its row locked until the transaction ends. Raises Objective.DoesNotExist."""
    return Objective.objects.select_for_update(of=("self",)).select_related("tenant").get(pk=objective_id)


@transaction.atomic
def change_objective(objective_id: UUID, *, actor: Actor, now: datetime, **values: Any) -> Objective:
    """`values`: what changes, of name, kind, target, threshold_seconds, window_days, model, tier, version_id, enabled.

    Where it counts something else from now on, its window is counted anew, and alerts that are open end.
    Raises Objective.DoesNotExist, InvalidInput.
    """
    objective = lock_objective(objective_id)
    was, before = copy(objective), _values(objective)
    for field, value in values.items():
        if field not in before or field in ("tenant", "tenants_own"):
            raise InvalidInput(field, "This cannot be changed: make another objective.")
        setattr(objective, field, value.strip() if isinstance(value, str) else value)
    _check(objective)
    after = _values(objective)
    if after == before:
        return objective
    if after["name"] != before["name"]:
        _lock()
        _check_name(objective)
    recounted = any(before[field] != after[field] for field in _COUNTED)
    longer = after["window_days"] > before["window_days"]
    if recounted or longer or (after["enabled"] and not before["enabled"]):
        forget_tallies(objective)
    if recounted or before["target"] != after["target"] or not objective.enabled:
        end_alerts(was, actor=actor, by="changed" if objective.enabled else "disabled", now=now)
    objective.save()
    changed = [field for field in after if after[field] != before[field]]
    _tell(
        "objective.changed",
        objective,
        actor,
        before={field: before[field] for field in changed},
        after={field: after[field] for field in changed},
    )
    return objective


@transaction.atomic
def delete_objective(objective_id: UUID, *, actor: Actor, now: datetime) -> None:
    """With what was counted for it and its alerts. Raises Objective.DoesNotExist."""
    objective = lock_objective(objective_id)
    end_alerts(objective, actor=actor, by="deleted", now=now)
    _tell("objective.deleted", objective, actor, before=_values(objective))
    objective.delete()


@transaction.atomic
def create_tier_objectives(*, actor: Actor) -> list[Objective]:
    """What each SLA tier promises, as objectives over its tenants' requests: those that are not there yet."""
    _lock()  # who asks at the same time finds them there
    there = set(Objective.objects.exclude(preset="").values_list("preset", flat=True))
    made = []
    for preset in presets():
        key = f"{preset.tier}:{preset.kind}"
        if key in there:
            continue
        word = "TTFT" if preset.kind is Kind.TTFT else "availability"
        made.append(
            create_objective(
                name=_free_name(f"{SlaTier(preset.tier).label} · {word}"),
                kind=preset.kind.value,
                target=preset.target,
                threshold_seconds=preset.threshold_seconds,
                tier=preset.tier,
                preset=key,
                actor=actor,
            )
        )
    return made


def _lock() -> None:
    """Until the transaction ends nobody else makes an objective, or gives one another name."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_advisory_xact_lock(%s)", [_LOCK])


def _check_name(objective: Objective) -> None:
    """Raises InvalidInput where it is no single line, or another one of the same owner has it.

    Only of names that are new: what is called otherwise from before can be changed and switched off.
    """
    unseen = any(unicodedata.category(character) in _NO_LINE for character in objective.name)
    if unseen or not 0 < len(objective.name) <= _LONGEST_NAME:
        raise InvalidInput("name", f"An objective needs a name of 1 to {_LONGEST_NAME} printable characters.")
    owners = Objective.objects.filter(tenants_own=objective.tenants_own, name=objective.name).exclude(pk=objective.pk)
    if (owners.filter(tenant=objective.tenant) if objective.tenants_own else owners).exists():
        raise InvalidInput("name", f"There is an objective {objective.name!r} already.")


def _free_name(name: str) -> str:
    """The name, or with a number where the platform has one of that name already."""
    taken = set(Objective.objects.filter(tenants_own=False, name__startswith=name).values_list("name", flat=True))
    return next(one for n in count(1) if (one := name if n == 1 else f"{name} ({n})") not in taken)


def _check(objective: Objective) -> None:
    """Raises InvalidInput naming the field."""
    if objective.kind not in {kind.value for kind in Kind}:
        raise InvalidInput("kind", f"A kind is one of {', '.join(kind.value for kind in Kind)}.")
    kind = Kind(objective.kind)
    if not 0.5 <= objective.target <= 0.99999:
        raise InvalidInput("target", "The target is a share of requests from 0.5 to 0.99999, for instance 0.99.")
    if not 1 <= objective.window_days <= MOST_WINDOW_DAYS:
        raise InvalidInput("window_days", f"The window is 1 to {MOST_WINDOW_DAYS} days.")
    if objective.tier and objective.tier not in SlaTier.values:
        raise InvalidInput("tier", f"A tier is one of {', '.join(SlaTier.values)}.")
    if objective.tier and objective.tenant is not None:
        raise InvalidInput("tier", "Choose a tenant or a tier: a tenant is of one tier.")
    if kind is Kind.AVAILABILITY:
        if objective.threshold_seconds is not None:
            raise InvalidInput("threshold_seconds", "Availability has no threshold: leave it empty.")
        return
    if objective.threshold_seconds is None:
        raise InvalidInput("threshold_seconds", "Say within how many seconds a request is good.")
    try:
        # Kept as the histogram has it: Prometheus finds a bucket by the very digits of its bound.
        objective.threshold_seconds = bound_of(kind, objective.threshold_seconds)
    except BadThreshold as error:
        raise InvalidInput("threshold_seconds", str(error)) from error


def _values(objective: Objective) -> dict[str, Any]:
    return {
        "name": objective.name,
        "kind": objective.kind,
        "target": objective.target,
        "threshold_seconds": objective.threshold_seconds,
        "window_days": objective.window_days,
        "model": objective.model,
        "tenant": objective.tenant.slug if objective.tenant else None,
        "tier": objective.tier,
        "version_id": objective.version_id,
        "tenants_own": objective.tenants_own,
        "enabled": objective.enabled,
    }


def _tell(
    action: str,
    objective: Objective,
    actor: Actor,
    *,
    before: Mapping[str, Any] | None = None,
    after: Mapping[str, Any] | None = None,
) -> None:
    record_audit(
        action,
        subject=objective,
        actor=actor,
        tenant_id=objective.tenant_id,
        before=_plain(before or {}),
        after=_plain(after or {}),
    )


def _plain(values: Mapping[str, Any]) -> dict[str, Any]:
    return {name: str(value) if isinstance(value, UUID) else value for name, value in values.items()}
