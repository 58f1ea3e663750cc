"""Requests for more: asked, withdrawn, decided. Approval and what is approved are one transaction."""

from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any, Final
from uuid import UUID

from django.db import transaction
from django.db.models import Q
from django.utils import timezone

from tenants.actor import SYSTEM, Actor
from tenants.models import (
    AccessRequest,
    ApiKey,
    Grant,
    GrantEffect,
    Installation,
    Limit,
    PrincipalKind,
    RequestKind,
    Tenant,
    User,
)
from tenants.policies.notices import NoticeKind
from tenants.policies.quota import Scope, amount_fault, scope_fault
from tenants.policies.rbac import ACTIONS
from tenants.policies.requests import OPEN_SECONDS, RequestState, is_over, may_become
from tenants.policies.roles import MAY, PLATFORM_ROLES, Action, Object
from tenants.services.audit import record_audit
from tenants.services.errors import Conflict, InvalidInput
from tenants.services.grants import grant_model
from tenants.services.limits import LONGEST_BOOST, boost_limit, change_limit, create_limit, lock_limit
from tenants.services.notices import raise_notice

MOST_OPEN: Final = 50
"""Requests of one tenant that nobody decided yet."""

_TEXT_LENGTH: Final = 2000


@transaction.atomic
def request_model(
    tenant: Tenant,
    *,
    model: str,
    reason: str,
    actor: Actor,
    actions: tuple[str, ...] = ("infer", "embed"),
    until: datetime | None = None,
) -> AccessRequest:
    """Ask for a model (or what a pattern names), for a time or for good. Raises InvalidInput, Conflict."""
    if not 0 < len(model) <= 200 or not model.isprintable():
        raise InvalidInput("model", "A model's name or pattern has 1 to 200 characters.")
    if not actions or set(actions) - ACTIONS:
        raise InvalidInput("actions", f"Actions are some of {', '.join(sorted(ACTIONS))}.")
    return _open(tenant, RequestKind.MODEL, {"model": model, "actions": sorted(set(actions))}, reason, until, actor)


@transaction.atomic
def request_limit(
    tenant: Tenant,
    *,
    metric: str,
    window: str,
    amount: int,
    reason: str,
    actor: Actor,
    model: str = "",
    key: ApiKey | None = None,
    subtree: bool = False,
    until: datetime | None = None,
) -> AccessRequest:
    """Ask for a limit of `amount`: more than the one of the same scope allows, or one of its own.

    For a time (`until`) only a limit that is there can be raised. Raises InvalidInput, Conflict.
    """
    for fault in (scope_fault(Scope(True, subtree, key is not None, model), metric, window), amount_fault(amount)):
        if fault is not None:
            raise InvalidInput(fault.field, fault.message)
    if key is not None and key.tenant_id != tenant.pk:
        raise InvalidInput("key", "The key belongs to another tenant.")
    what = {
        "metric": metric,
        "window": window,
        "amount": amount,
        "model": model,
        "key": str(key.pk) if key else None,
        "subtree": subtree,
    }
    limit = find_limit(tenant.pk, what)
    if limit is None and until is not None:
        raise InvalidInput("until", "There is no such limit yet: only one that is there can be raised for a time.")
    if limit is None and window == "bucket":
        raise InvalidInput("window", "There is no such bucket yet, and its refill is not asked for here.")
    if limit is not None and amount <= limit.amount:
        raise InvalidInput("amount", f"The limit allows {limit.amount} anyhow.")
    return _open(tenant, RequestKind.LIMIT, what, reason, until, actor)


def lock_request(request_id: UUID) -> AccessRequest:
    """The request, its row locked until the transaction ends. Raises AccessRequest.DoesNotExist."""
    return AccessRequest.objects.select_for_update(of=("self",)).select_related("tenant").get(pk=request_id)


@transaction.atomic
def withdraw_request(request_id: UUID, *, actor: Actor) -> AccessRequest:
    """Take back what nobody decided yet. Raises AccessRequest.DoesNotExist, Conflict."""
    request = lock_request(request_id)
    _become(request, RequestState.WITHDRAWN, actor)
    return request


@transaction.atomic
def decide_request(
    request_id: UUID,
    *,
    approved: bool,
    actor: Actor,
    answer: str = "",
    amount: int | None = None,
    until: datetime | None = None,
) -> AccessRequest:
    """Decide an open request; what is approved is granted here. `amount` and `until` replace what was asked for.

    Of two who decide at once the second gets Conflict, and so does who approves what they asked for themselves while
    somebody else could. Raises AccessRequest.DoesNotExist; InvalidInput for what the grant or the limit cannot be.
    """
    request = lock_request(request_id)
    if not may_become(RequestState(request.state), RequestState.APPROVED):
        raise Conflict(f"It is {request.state} already.")
    if len(answer) > _TEXT_LENGTH or "\x00" in answer:
        raise InvalidInput("answer", f"An answer has at most {_TEXT_LENGTH} characters.")
    request.answer = answer
    request.decided_by_id = actor.id if actor.kind == "user" else None
    request.decided_at = timezone.now()
    if approved:
        _check_approver(request, actor)
        if until is not None:
            request.until = until
        _check_until(request.until)
        if amount is not None:
            if request.kind != RequestKind.LIMIT:
                raise InvalidInput("amount", "Only a limit has an amount.")
            request.what = {**request.what, "amount": amount}
        if request.kind == RequestKind.MODEL:
            request.grant_id = _grant(request, actor).pk
        else:
            request.limit_id = _limit(request, actor).pk
    elif amount is not None or until is not None:
        raise InvalidInput("amount" if amount is not None else "until", "Nothing is granted when it is declined.")
    _become(request, RequestState.APPROVED if approved else RequestState.DECLINED, actor)
    raise_notice(
        NoticeKind.REQUEST_DECIDED,
        tenant=request.tenant,
        payload=_payload(request) | {"state": request.state},
        dedupe_key=f"request-decided:{request.pk}",
        actor=actor,
        person=request.requested_by_id,
    )
    return request


def expire_requests(*, now: datetime) -> int:
    """End requests that nobody decided in time, and those whose grant is over; returns how many. Safe to run twice."""
    ended = Q(state__in=[RequestState.OPEN.value, RequestState.APPROVED.value], until__lte=now)
    forgotten = Q(state=RequestState.OPEN.value, created_at__lte=now - timedelta(seconds=OPEN_SECONDS))
    # What was approved for good stays so for years: it is not read again and again.
    living = AccessRequest.objects.filter(ended | forgotten)
    over = [row.pk for row in living.order_by("id").iterator() if _is_over(row, now)]
    return sum(_expire(request_id, now) for request_id in over)


def find_limit(tenant_id: UUID, what: Mapping[str, Any]) -> Limit | None:
    """The limit that a request is about, if there is one."""
    return Limit.objects.filter(
        tenant_id=tenant_id,
        subtree=what["subtree"],
        key_id=what["key"],
        model=what["model"],
        metric=what["metric"],
        window=what["window"],
    ).first()


def _open(
    tenant: Tenant, kind: RequestKind, what: dict[str, Any], reason: str, until: datetime | None, actor: Actor
) -> AccessRequest:
    reason = reason.strip()
    if not 0 < len(reason) <= _TEXT_LENGTH or "\x00" in reason:
        raise InvalidInput("reason", f"A reason has 1 to {_TEXT_LENGTH} characters.")
    _check_until(until)
    Tenant.objects.select_for_update(no_key=True).get(pk=tenant.pk)  # or two at once would both be the last one
    waiting = AccessRequest.objects.filter(tenant=tenant, state=RequestState.OPEN.value)
    if waiting.filter(kind=kind, what=what).exists():
        raise Conflict("The same was asked for already, and nobody decided yet.")
    if waiting.count() >= MOST_OPEN:
        raise Conflict(f"{MOST_OPEN} requests wait for a decision already.")
    request = AccessRequest.objects.create(
        tenant=tenant,
        kind=kind,
        what=what,
        reason=reason,
        until=until,
        requested_by_id=actor.id if actor.kind == "user" else None,
    )
    _tell("request.opened", request, actor)
    raise_notice(
        NoticeKind.REQUEST_OPENED,
        tenant=None,
        payload=_payload(request),
        dedupe_key=f"request-opened:{request.pk}",
        actor=actor,
    )
    return request


def _check_approver(request: AccessRequest, actor: Actor) -> None:
    """Who is alone on the platform decides alone; the audit log shows it."""
    if actor.kind != "user" or actor.id is None or actor.id != request.requested_by_id:
        return
    deciding = MAY[Object.DECISION, Action.CREATE] & PLATFORM_ROLES
    if User.objects.filter(is_active=True, platform_role__in=deciding).exclude(pk=actor.id).exists():
        raise Conflict("You asked for it yourself: another operator approves it.")


def _check_until(until: datetime | None) -> None:
    now = timezone.now()
    if until is not None and not now < until <= now + LONGEST_BOOST:
        raise InvalidInput("until", "The end lies in the past, or more than a year ahead.")


def _grant(request: AccessRequest, actor: Actor) -> Grant:
    """Raises Conflict where one grant cannot say both what is there and what is asked for."""
    model, actions = request.what["model"], set(request.what["actions"])
    now = timezone.now()
    there = (
        Grant.objects.select_for_update()
        .filter(
            principal_kind=PrincipalKind.TENANT,
            principal_id=request.tenant_id,
            model_pattern=model,
            effect=GrantEffect.ALLOW,
        )
        .first()
    )
    if there is not None and (there.expires_at is None or there.expires_at > now):
        longer = there.expires_at is None or (request.until is not None and there.expires_at >= request.until)
        if longer and (actions <= set(there.actions) or "*" in there.actions):
            raise Conflict("The tenant has this grant already.")
        if there.expires_at != request.until and not set(there.actions) <= actions:
            raise Conflict("There is a grant of other actions until another time: change that one first.")
        if longer and there.expires_at != request.until:
            raise Conflict("There is a grant that lasts longer: end it first, or approve this one for good.")
        actions |= set(there.actions)
    return grant_model(
        request.tenant, model_pattern=model, actions=sorted(actions), expires_at=request.until, actor=actor
    )


def _raise_limit(limit: Limit, request: AccessRequest, actor: Actor) -> Limit:
    """Raises Conflict where what is there allows more, or for longer."""
    amount, until = request.what["amount"], request.until
    if until is None:
        if amount <= limit.amount:
            raise Conflict(f"The limit was raised since: it allows {limit.amount} anyhow.")
        return change_limit(limit.pk, amount=amount, actor=actor)
    boost, ends = limit.boost_amount or 0, limit.boost_until
    if ends is not None and ends > timezone.now() and (boost > amount or ends > until):
        raise Conflict(f"The limit is raised to {boost} until {ends.isoformat()}: end that first.")
    return boost_limit(limit.pk, amount=amount, until=until, actor=actor)


def _limit(request: AccessRequest, actor: Actor) -> Limit:
    what = request.what
    limit = find_limit(request.tenant_id, what)
    if limit is not None:
        return _raise_limit(lock_limit(limit.pk), request, actor)
    if request.until is not None:
        raise Conflict("The limit that was to be raised is gone.")
    key = None
    if what["key"] is not None:
        key = ApiKey.objects.filter(pk=what["key"], tenant=request.tenant_id).first()
        if key is None:
            raise Conflict("The key is gone.")
    return create_limit(
        metric=what["metric"],
        window=what["window"],
        amount=what["amount"],
        tenant=request.tenant,
        key=key,
        subtree=what["subtree"],
        model=what["model"],
        actor=actor,
    )


@transaction.atomic
def _expire(request_id: UUID, now: datetime) -> bool:
    request = AccessRequest.objects.select_for_update().filter(pk=request_id).first()
    if request is None or not _is_over(request, now):
        return False
    _become(request, RequestState.EXPIRED, SYSTEM)
    return True


def _is_over(request: AccessRequest, now: datetime) -> bool:
    return is_over(
        RequestState(request.state),
        created_at=request.created_at.timestamp(),
        until=request.until.timestamp() if request.until else None,
        now=now.timestamp(),
    )


def _become(request: AccessRequest, state: RequestState, actor: Actor) -> None:
    before = RequestState(request.state)
    if not may_become(before, state):
        raise Conflict(f"It is {before} already.")
    request.state = state.value
    request.save()
    _tell(f"request.{state}", request, actor, before={"state": before.value})


def _payload(request: AccessRequest) -> dict[str, Any]:
    return {
        "request": str(request.pk),
        "tenant_slug": request.tenant.slug,
        "tenant_name": request.tenant.name,
        "kind": request.kind,
        "until": request.until.isoformat() if request.until else None,
        "currency": Installation.objects.values_list("currency", flat=True).first() or "",
        **request.what,
    }


def _tell(action: str, request: AccessRequest, actor: Actor, before: dict[str, Any] | None = None) -> None:
    after = {"state": request.state, "kind": request.kind, "what": request.what}
    after["until"] = request.until.isoformat() if request.until else None
    record_audit(action, subject=request, actor=actor, tenant_id=request.tenant_id, before=before, after=after)
