"""Reads the ledger in order and puts it through a limit that is thought about. Nothing is written."""

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final
from uuid import UUID

from django.db import connection, transaction

from core.ids import uuid7_from
from tenants.models import ApiKey, Tenant
from tenants.policies.quota import Scope, amount_fault, refill_fault, scope_fault
from tenants.policies.replay import Outcome, Rule, Use, first_of, replay
from tenants.reads.consumption import family_of
from tenants.reads.keys import keys_of_lineages
from tenants.services.errors import InvalidInput
from tenants.services.rollups import ID_MARGIN

MOST_REQUESTS: Final = 500_000
LONGEST: Final = timedelta(days=92)
_BATCH: Final = 5_000

_AMOUNT: Final = {
    "requests": "1",
    "tokens": "coalesce(input_tokens, 0) + coalesce(reserved_input, 0) + coalesce(output_tokens, 0) "
    "+ coalesce(reserved_output, 0)",
    "input_tokens": "coalesce(input_tokens, 0) + coalesce(reserved_input, 0)",
    "output_tokens": "coalesce(output_tokens, 0) + coalesce(reserved_output, 0)",
    "money": "cost_micros + coalesce(reserved_micros, 0)",
    "concurrency": "1",
}
"""What limits count of a row; `reserved_*` stand where nobody knows what was used: see tenants.usage.UsageRow."""


@dataclass(frozen=True, slots=True)
class Question:
    """A limit, and the time that it is tried on. Without `tenant`, everybody's requests."""

    metric: str
    window: str
    amount: int
    since: datetime
    until: datetime
    tenant: Tenant | None = None
    key: ApiKey | None = None
    subtree: bool = False
    model: str = ""
    refill_per_second: float | None = None


@dataclass(frozen=True, slots=True)
class Answer:
    """`through` is how far it was read when there were more than MOST_REQUESTS, None when all were."""

    outcome: Outcome
    through: datetime | None


def replay_limit(question: Question) -> Answer:
    """What the limit would have blocked of what the ledger holds. Takes some seconds at most, and little memory.

    Raises InvalidInput for a limit that cannot be (tenants.policies.quota), one that the ledger does not show (held
    requests, GPUs), and a range that is empty or longer than LONGEST.
    """
    _check(question)
    rule = Rule(
        window=question.window,
        amount=question.amount,
        zone=question.tenant.time_zone if question.tenant else "UTC",
        refill_per_second=question.refill_per_second or 0.0,
    )
    with transaction.atomic():  # a cursor on the server lives in one
        outcome = replay(rule, first_of(_uses(question), MOST_REQUESTS))
    if outcome.requests < MOST_REQUESTS or outcome.last is None:
        return Answer(outcome, None)
    return Answer(outcome, datetime.fromtimestamp(outcome.last, question.since.tzinfo))


def _check(question: Question) -> None:
    scope = Scope(question.tenant is not None, question.subtree, question.key is not None, question.model)
    fault = (
        scope_fault(scope, question.metric, question.window)
        or amount_fault(question.amount)
        or refill_fault(question.window, question.refill_per_second)
    )
    if fault is not None:
        raise InvalidInput(fault.field, fault.message)
    if question.metric not in _AMOUNT:
        raise InvalidInput("metric", f"The ledger does not show it; it shows {', '.join(_AMOUNT)}.")
    if question.key is not None and question.tenant is not None and question.key.tenant_id != question.tenant.pk:
        raise InvalidInput("key", "The key belongs to another tenant.")
    if not question.since < question.until:
        raise InvalidInput("until", "The end comes after the beginning.")
    if question.until - question.since > LONGEST:
        raise InvalidInput("since", f"At most {LONGEST.days} days are replayed.")


def _uses(question: Question) -> Iterator[Use]:
    """The requests in the order of their ids, that is of their arrival."""
    wanted = ["id >= %s", "id < %s", "started_at >= %s", "started_at < %s"]
    values: list[Any] = [
        _first_id(question.since - ID_MARGIN),
        _first_id(question.until + ID_MARGIN),
        question.since,
        question.until,
    ]
    if question.key is not None:
        wanted.append("key_id = ANY(%s::uuid[])")  # rotated keys share their limits
        values.append([question.key.limits_id, *keys_of_lineages([question.key.limits_id])])
    elif question.tenant is not None:
        wanted.append("tenant_id = ANY(%s::uuid[])" if question.subtree else "tenant_id = %s")
        values.append(family_of(question.tenant.pk) if question.subtree else question.tenant.pk)
    if question.model:
        wanted.append("model = %s")
        values.append(question.model)
    amount = _AMOUNT[question.metric]
    with connection.chunked_cursor() as cursor:
        cursor.execute(
            f"SELECT extract(epoch FROM started_at)::float8, {amount}, coalesce(duration_ms, 0) / 1000 "  # noqa: S608
            f"FROM tenants_usagerecord WHERE {' AND '.join(wanted)} ORDER BY id LIMIT {MOST_REQUESTS}",
            values,
        )
        while rows := cursor.fetchmany(_BATCH):
            for row in rows:
                yield Use(row[0], row[1], row[2])


def _first_id(moment: datetime) -> UUID:
    return uuid7_from(max(int(moment.timestamp() * 1000), 0))
