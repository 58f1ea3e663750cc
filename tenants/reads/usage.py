"""What was used, out of sums by day, hour and minute: a month of a busy tenant is hundreds of rows, not millions."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final
from uuid import UUID

from django.db import connection

from tenants.policies.tiling import tile

_SUMMED: Final = (
    "requests", "failures", "input_tokens", "cached_tokens", "output_tokens", "ttft_ms", "ttft_count", "cost_micros",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class UsageSums:
    """Sums over rollups. Tokens as the engines reported them; times in milliseconds, money in millionths."""

    requests: int
    failures: int
    input_tokens: int
    cached_tokens: int
    output_tokens: int
    mean_ttft_ms: float | None  # None: nothing was streamed
    cost_micros: int = 0

    @property
    def tokens(self) -> int:
        return self.input_tokens + self.output_tokens

    @property
    def cached_share(self) -> float | None:
        """Of the input tokens, 0 to 1; None without any."""
        return self.cached_tokens / self.input_tokens if self.input_tokens else None

    @property
    def failed_share(self) -> float | None:
        """Of the requests, 0 to 1; None without any."""
        return self.failures / self.requests if self.requests else None


@dataclass(frozen=True, slots=True)
class UsagePoint:
    """Tokens and requests of one model in one bucket; `bucket` is an index into the starts asked for."""

    bucket: int
    model: str
    requests: int
    input_tokens: int
    output_tokens: int
    cost_micros: int = 0


@dataclass(frozen=True, slots=True)
class Only:
    """What sums are taken of: one model, and one key or those whose names hold some letters; empty: of all."""

    model: str = ""
    key_id: UUID | None = None
    key_name: str = ""

    def condition(self, tenant_ids: Sequence[UUID]) -> tuple[str, list[Any]]:
        """SQL about rows `u`, and its values."""
        said: list[str] = []
        values: list[Any] = []
        if self.model:
            said.append("AND u.model = %s")
            values.append(self.model)
        if self.key_id is not None:
            said.append("AND u.key_id = %s")
            values.append(self.key_id)
        if self.key_name:
            said.append("AND u.key_id IN (SELECT id FROM tenants_apikey WHERE tenant_id = ANY(%s::uuid[])")
            said.append("AND strpos(lower(name), lower(%s)) > 0)")
            values += [list(tenant_ids), self.key_name]
        return " ".join(said), values

    @property
    def of_keys(self) -> bool:
        """Whether it takes some keys alone."""
        return self.key_id is not None or bool(self.key_name)


EVERYTHING: Final = Only()

_MAKERS: Final = (
    "LEFT JOIN (SELECT id AS made_id, created_by_id AS member_id FROM tenants_apikey) AS maker "
    "ON maker.made_id = used.key_id"
)


def sum_usage(
    tenant_ids: Sequence[UUID],
    *,
    starts: Sequence[datetime],
    until: datetime,
    by: Sequence[str],
    sums: Sequence[str] = _SUMMED,
    tail: str = "",
    key_ids: Sequence[UUID | None] | None = None,
    only: Only = EVERYTHING,
) -> list[dict[str, Any]]:
    """Sums (`sums`, columns of tenants.models.UsageSums) by bucket, tenant_id, key_id, model, or whatever `by` names.

    `member_id` is who made the key. Bucket i reaches from starts[i] to the next start, the last one to `until`; only
    whole minutes. `tail` is SQL of the caller's own (ORDER BY, LIMIT), `key_ids` leaves out other keys.
    """
    keyless = key_ids is None and not only.of_keys and not {"key_id", "member_id"} & set(by)
    pieces = tile([start.timestamp() for start in starts], until.timestamp())
    parts: list[str] = []
    values: list[Any] = []
    asked, asked_values = only.condition(tenant_ids)
    for unit in dict.fromkeys(piece.unit for piece in pieces):
        of_unit = [piece for piece in pieces if piece.unit == unit]
        keys = asked
        if key_ids is not None:
            some = "u.key_id = ANY(%s::uuid[])"  # alone it is looked up by key: in an OR it never is
            keys += f" AND ({some} OR u.key_id IS NULL)" if None in key_ids else f" AND {some}"
        # Hours and days are also summed whatever the key: a tenant with thousands has thousands of rows an hour else.
        summed = keyless and unit in ("hour", "day")
        table = f"tenants_tenant{unit}" if summed else f"tenants_usage{unit}"
        whose = ["tenant_id", *(() if keyless else ("key_id",)), "model"]
        sinces = [datetime.fromtimestamp(piece.since, UTC) for piece in of_unit]  # pieces follow each other
        untils = [datetime.fromtimestamp(piece.until, UTC) for piece in of_unit]
        buckets = [piece.bucket for piece in of_unit]
        if key_ids is not None:
            parts.append(_of_some_keys(table, unit, [*whose, *sums], keys))
            values += [buckets, untils, sinces, list(tenant_ids), sinces[0], untils[-1], *asked_values]
            values.append([key_id for key_id in key_ids if key_id is not None])
            continue
        # OFFSET 0: each piece is looked up in the index. As a join the planner would read the table for all of them.
        parts.append(
            "SELECT piece.bucket, used.* "  # noqa: S608  # names of our own
            "FROM unnest(%s::timestamptz[], %s::timestamptz[], %s::int[]) AS piece(since, until, bucket), "
            f"LATERAL (SELECT {', '.join([*whose, *sums])} FROM {table} AS u "
            f"WHERE u.tenant_id = ANY(%s::uuid[]) AND u.{unit} >= piece.since AND u.{unit} < piece.until {keys} "
            "OFFSET 0) AS used"
        )
        values += [sinces, untils, buckets, list(tenant_ids), *asked_values]
    if not parts:
        return []
    group = f"GROUP BY {', '.join(by)}" if by else "HAVING count(*) > 0"
    names = [*by, *sums]
    columns = ", ".join([*by, *(f"sum({name}) AS {name}" for name in sums)])
    makers = _MAKERS if "member_id" in by else ""
    with connection.cursor() as cursor:
        cursor.execute(f"SELECT {columns} FROM ({' UNION ALL '.join(parts)}) AS used {makers} {group} {tail}", values)  # noqa: S608
        whole = set(sums) - {"ttft_ms"}  # sums of whole numbers come as decimals
        return [
            {name: int(value) if name in whole else value for name, value in zip(names, row, strict=True)}
            for row in cursor.fetchall()
        ]


def _of_some_keys(table: str, unit: str, columns: Sequence[str], keys: str) -> str:
    """SQL of a part that is looked up by key: rows of all pieces at once, each told by its moment which it is of.

    Piece by piece the planner would look for moments, and read what thousands of other keys used.
    """
    return (
        "SELECT (place.buckets)[u.piece] AS bucket, "  # noqa: S608  # names of our own
        f"{', '.join(f'u.{name}' for name in columns)} "
        "FROM (SELECT %s::int[] AS buckets, %s::timestamptz[] AS untils, %s::timestamptz[] AS sinces) AS place, "
        f"LATERAL (SELECT u.*, width_bucket(u.{unit}, place.sinces) AS piece FROM {table} AS u "
        f"WHERE u.tenant_id = ANY(%s::uuid[]) AND u.{unit} >= %s AND u.{unit} < %s {keys}) AS u "
        f"WHERE u.{unit} < (place.untils)[u.piece]"
    )


_LINES: Final = """
SELECT count(*) FROM (
    SELECT DISTINCT key_id, model FROM tenants_usageday
    WHERE tenant_id = %s AND day >= %s AND day < %s ORDER BY key_id, model LIMIT %s
) AS lines
"""


def has_more_lines(tenant_id: UUID, *, since: datetime, until: datetime, than: int) -> bool:
    """Whether the range's whole days (UTC) alone have more keys by models than that.

    Found in the order of an index, and so without a look at those beyond: to sum them all takes many times as long.
    """
    days = [piece for piece in tile([since.timestamp()], until.timestamp()) if piece.unit == "day"]
    if not days:
        return False
    (whole,) = days
    begin, end = (datetime.fromtimestamp(moment, UTC) for moment in (whole.since, whole.until))
    with connection.cursor() as cursor:
        cursor.execute(_LINES, [tenant_id, begin, end, than + 1])
        return int(cursor.fetchone()[0]) > than


def sums_of(row: Mapping[str, Any]) -> UsageSums:
    """Of a row that has all of the default sums."""
    return UsageSums(
        requests=row["requests"],
        failures=row["failures"],
        input_tokens=row["input_tokens"],
        cached_tokens=row["cached_tokens"],
        output_tokens=row["output_tokens"],
        mean_ttft_ms=row["ttft_ms"] / row["ttft_count"] if row["ttft_count"] else None,
        cost_micros=row["cost_micros"],
    )


_NOTHING: Final = UsageSums(0, 0, 0, 0, 0, None)


def usage_totals(tenant_id: UUID, *, since: datetime, until: datetime) -> UsageSums:
    """What the tenant used in [since, until), whole minutes."""
    rows = sum_usage([tenant_id], starts=[since], until=until, by=[])
    return sums_of(rows[0]) if rows else _NOTHING


def usage_series(tenant_id: UUID, *, starts: Sequence[datetime], until: datetime) -> list[UsagePoint]:
    """Usage by bucket and model; bucket i reaches from starts[i] to the next start, the last one to `until`."""
    rows = sum_usage(
        [tenant_id],
        starts=starts,
        until=until,
        by=["bucket", "model"],
        sums=["requests", "input_tokens", "output_tokens", "cost_micros"],
        tail="ORDER BY bucket, model",
    )
    return [UsagePoint(**row) for row in rows]


def usage_by_tenant(tenant_ids: Sequence[UUID], *, since: datetime, until: datetime) -> dict[UUID, UsageSums]:
    """What each of these tenants used in [since, until); tenants without usage are absent."""
    rows = sum_usage(tenant_ids, starts=[since], until=until, by=["tenant_id"])
    return {row["tenant_id"]: sums_of(row) for row in rows}
