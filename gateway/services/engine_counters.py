"""Compares the ledger with what engines themselves have counted, endpoint by endpoint.

Every few minutes each ready engine's token counters are read; the difference to the reading before stands beside the
ledger's rows that ended on that instance in the same time. Rows come later than readings (a spool of a machine that was
off, hours later), so the ledger's side is summed again for as long as REVISED says.

What the engines count is not quite what is billed: see each room's `parse_token_counters` and EngineDrift.
"""

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final
from uuid import UUID

import structlog
from django.conf import settings
from django.db import connection, transaction
from django.utils import timezone

from core.tls import engine_context
from gateway.models import EngineDrift, EngineReading
from gateway.policies.counted import Reading, growth
from gateway.relay.estimate import UNSEEN_TOKENS_PER_SECOND
from gateway.services.limit_sums import first_id
from gpupool.agent.probe import ProbeFailed, ask
from gpupool.engines.base import TokenCounters, WireRequest
from gpupool.engines.registry import UnknownEngine, get_engine
from gpupool.selectors import ReadyEndpoint, list_ready_endpoints

logger = structlog.get_logger(__name__)

REVISED: Final = timedelta(hours=1)
KEPT: Final = timedelta(days=90)
LONGEST_WINDOW: Final = timedelta(hours=1)
"""Readings further apart are not compared: the engine was not reached, or nobody asked."""

_DEADLINE_SECONDS: Final = 4.0
_AT_ONCE: Final = 32
_EDGE_SECONDS: Final = 0.5
"""Engines bring their counters up to date a little later than they answer."""

_LONGEST_REQUEST_SECONDS: Final = 3_600.0


@dataclass(frozen=True, slots=True)
class Answered:
    """One engine's counters, and when they were asked for."""

    endpoint: ReadyEndpoint
    at: datetime
    counters: TokenCounters


def reconcile_engines(*, now: datetime | None = None) -> int:
    """Read every ready engine, add a row for each that was read before, bring recent rows up to date.

    Returns how many rows were added. Safe to run twice. Engines that cannot be read are left out, and told in the log.
    """
    answers = asyncio.run(_read_all(list_ready_endpoints()))
    added = 0
    for answer in answers:
        added += _note(answer)
    now = now or timezone.now()
    revise_ledger(EngineDrift.objects.filter(until__gte=now - REVISED))
    EngineDrift.objects.filter(until__lt=now - KEPT).delete()
    EngineReading.objects.filter(at__lt=now - KEPT).delete()
    return added


@transaction.atomic
def _note(answer: Answered) -> bool:
    """Keep the reading; whether there is a window since the one before."""
    endpoint, said = answer.endpoint, answer.counters
    last = EngineReading.objects.select_for_update().filter(pk=endpoint.instance_id).first()
    if last is not None and last.at >= answer.at:
        return False
    EngineReading.objects.update_or_create(
        pk=endpoint.instance_id,
        defaults={
            "engine": endpoint.engine,
            "at": answer.at,
            "process_started": said.started_at,
            "input_tokens": said.input_tokens,
            "output_tokens": said.output_tokens,
            "cached_tokens": said.cached_tokens,
        },
    )
    if last is None or answer.at - last.at > LONGEST_WINDOW:
        return False
    grown = growth(
        Reading(last.input_tokens, last.output_tokens, last.cached_tokens, last.process_started),
        Reading(said.input_tokens, said.output_tokens, said.cached_tokens, said.started_at),
    )
    EngineDrift.objects.create(
        instance_id=endpoint.instance_id,
        engine=endpoint.engine,
        model=endpoint.model,
        since=last.at,
        until=answer.at,
        restarted=grown.restarted,
        without_cached=said.input_without_cached,
        engine_input=grown.input_tokens,
        engine_output=grown.output_tokens,
        engine_cached=grown.cached_tokens,
    )
    return True


_SUMS: Final = """
    SELECT part.id,
           count(*) FILTER (WHERE ends.inside),
           coalesce(sum(spent.input_tokens) FILTER (WHERE ends.inside), 0)::bigint,
           coalesce(sum(spent.cached_tokens) FILTER (WHERE ends.inside), 0)::bigint,
           coalesce(sum(spent.output_tokens) FILTER (WHERE ends.inside), 0)::bigint,
           coalesce(sum(spent.output_tokens) FILTER (WHERE ends.inside AND spent.usage_source <> 'engine'), 0)::bigint,
           coalesce(sum(spent.input_tokens) FILTER (WHERE ends.across), 0)::bigint,
           coalesce(sum(spent.output_tokens) FILTER (WHERE ends.across), 0)::bigint
               + coalesce(sum(unseen.output) FILTER (WHERE ends.inside), 0)::bigint
    FROM unnest(%(ids)s::uuid[], %(instances)s::uuid[], %(since)s::timestamptz[], %(until)s::timestamptz[])
        AS part(id, instance_id, since, until)
    JOIN tenants_usagerecord AS spent ON spent.instance_id = part.instance_id
    CROSS JOIN LATERAL (
        SELECT spent.started_at + make_interval(secs => coalesce(spent.duration_ms, 0) / 1000.0) AS at,
               make_interval(secs => %(edge)s) AS edge
    ) AS ended
    CROSS JOIN LATERAL (
        SELECT ended.at >= part.since AND ended.at < part.until AS inside,
               (spent.started_at - ended.edge <= part.since AND ended.at + ended.edge >= part.since)
               OR (spent.started_at - ended.edge <= part.until AND ended.at + ended.edge >= part.until) AS across
    ) AS ends
    CROSS JOIN LATERAL (  -- of clients that left before they were told anything: nobody knows what was made for them
        SELECT CASE WHEN spent.usage_source = 'estimated' AND spent.output_tokens IS NULL THEN
            coalesce(spent.reserved_output, ceil(spent.duration_ms / 1000.0 * %(unseen_speed)s))
        END AS output
    ) AS unseen
    WHERE spent.id BETWEEN %(first_id)s AND %(last_id)s
    GROUP BY part.id
"""

_LOST: Final = """
    SELECT part.id, coalesce(sum(spent.reserved_input), 0)::bigint, coalesce(sum(spent.reserved_output), 0)::bigint
    FROM unnest(%(ids)s::uuid[], %(models)s::text[], %(since)s::timestamptz[], %(until)s::timestamptz[])
        AS part(id, model, since, until)
    JOIN tenants_usagerecord AS spent ON spent.model = part.model
    WHERE spent.id BETWEEN %(first_id)s AND %(last_id)s AND spent.outcome = 'lost'
        AND spent.started_at >= part.since - make_interval(secs => 600) AND spent.started_at < part.until
    GROUP BY part.id
"""


def revise_ledger(windows: Iterable[EngineDrift]) -> None:
    """Sum the ledger's side of these windows anew, all in two reads."""
    rows = [*windows]
    if not rows:
        return
    since = min(row.since for row in rows).timestamp()
    values: dict[str, Any] = {
        "ids": [row.pk for row in rows],
        "instances": [row.instance_id for row in rows],
        "models": [row.model for row in rows],
        "since": [row.since for row in rows],
        "until": [row.until for row in rows],
        "edge": _EDGE_SECONDS,
        "unseen_speed": UNSEEN_TOKENS_PER_SECOND,
        "first_id": first_id(since - _LONGEST_REQUEST_SECONDS),
        "last_id": first_id(max(row.until for row in rows).timestamp() + 2 * _LONGEST_REQUEST_SECONDS),
    }
    by_id = {row.pk: row for row in rows}
    for row in rows:
        row.tolerance_input = row.tolerance_output = 0
    for row_id, sums in _query(_SUMS, values):
        row = by_id[row_id]
        row.requests, row.ledger_input, row.ledger_cached, row.ledger_output = sums[:4]
        row.estimated_output, row.tolerance_input, row.tolerance_output = sums[4:]
    for row_id, (lost_input, lost_output) in _query(_LOST, values):
        by_id[row_id].tolerance_input += lost_input
        by_id[row_id].tolerance_output += lost_output
    fields = ["requests", "ledger_input", "ledger_cached", "ledger_output", "estimated_output"]
    EngineDrift.objects.bulk_update(rows, [*fields, "tolerance_input", "tolerance_output"], batch_size=500)


def _query(text: str, values: Mapping[str, Any]) -> list[tuple[UUID, list[int]]]:
    """Each window's id, and the other columns."""
    with connection.cursor() as cursor:
        cursor.execute(text, values)
        return [(row_id, sums) for row_id, *sums in cursor.fetchall()]


async def _read_all(endpoints: Sequence[ReadyEndpoint]) -> list[Answered]:
    gate = asyncio.Semaphore(_AT_ONCE)

    async def one(endpoint: ReadyEndpoint) -> Answered | None:
        async with gate:
            return await _read(endpoint)

    answers = await asyncio.gather(*(one(endpoint) for endpoint in endpoints))
    return [answer for answer in answers if answer is not None]


async def _read(endpoint: ReadyEndpoint) -> Answered | None:
    """None where the engine has no counters, or does not answer."""
    try:
        engine = get_engine(endpoint.engine)
        request = engine.wire.metrics()
        if engine.counters is None or request is None:
            return None
        at = timezone.now()
        answer = await ask(
            endpoint.port,
            WireRequest(request.method, endpoint.base_path + request.path, request.body),
            deadline_seconds=_DEADLINE_SECONDS,
            host=endpoint.host,
            authorization=endpoint.authorization,
            tls=engine_context(settings.GATEHOUSE.engine_ca_file) if endpoint.tls else None,
        )
        if answer.status != 200:
            raise ProbeFailed(f"{request.path} is answered with {answer.status}")
        counters = engine.counters(answer.body.decode("utf-8", "replace"))
    except (ProbeFailed, UnknownEngine) as error:
        logger.info("engine_counters_not_read", instance=str(endpoint.instance_id), reason=str(error))
        return None
    except Exception as error:  # noqa: BLE001  # a defect of one engine's room must not hide all others' counters
        logger.warning("engine_counters_not_read", instance=str(endpoint.instance_id), reason=repr(error))
        return None
    if counters.input_tokens is None and counters.output_tokens is None:
        return None
    return Answered(endpoint, at, counters)
