"""Reads the relay's snapshot from the database. Blocking; called on one thread of its own."""

import contextlib
import os
import socket
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any, Final, TypeVar
from uuid import UUID

import msgspec
from django.db import DatabaseError, InterfaceError, connection, transaction

from core.epochs import Section, current_epoch, read_changes, read_epochs
from gateway.relay.plan import Endpoint
from gateway.relay.rows import (
    ENDPOINTS,
    GRANTS,
    ISSUERS,
    LIMITS,
    MODELS,
    PRICES,
    ChangedRow,
    EndpointRow,
    IssuerRow,
    KeyRow,
    LimitRow,
    Loaded,
    LoadedKeys,
    ModelRow,
    PriceRow,
    Row,
    SourceUnavailable,
    TenantRow,
)
from gpupool.selectors import ReadyEndpoint, get_endpoints, get_models, list_models, list_ready_endpoints
from tenants.models import GrantEffect, LedgerMark, Price, TenantState, TokenIssuer
from tenants.policies.pricing import PriceTag
from tenants.policies.rbac import GrantRule

T = TypeVar("T")

STATEMENT_TIMEOUT_MS = 5_000
_CONTEXT_BLOCK = 256


class DatabaseSnapshotSource:
    """The SnapshotSource over Django's connection of the calling thread."""

    def __init__(self, *, statement_timeout_ms: int = STATEMENT_TIMEOUT_MS) -> None:
        self._begin = (
            "SET TRANSACTION ISOLATION LEVEL REPEATABLE READ READ ONLY; "
            f"SET LOCAL statement_timeout = {int(statement_timeout_ms)}"
        )
        self._socket: int | None = None

    def read_epochs(self) -> Mapping[str, int]:
        with self._reading():
            return read_epochs()

    def read_changes(self, section: str, *, after: int, limit: int) -> Sequence[ChangedRow] | None:
        with self._reading():
            changes = read_changes(Section(section), after=after, limit=limit)
        return None if changes is None else [ChangedRow(c.epoch, c.object_id) for c in changes]

    def load_section(self, section: str) -> Loaded:
        with self._reading():
            return Loaded(current_epoch(Section(section)), _rows(section, None))

    def load_objects(self, section: str, ids: Sequence[UUID]) -> Loaded:
        with self._reading():
            return Loaded(current_epoch(Section(section)), _rows(section, ids))

    def find_keys(self, digests: Sequence[str]) -> LoadedKeys:
        with self._reading():
            return LoadedKeys(
                current_epoch(Section.KEYS), _key_rows("digest = ANY(string_to_array(%(wanted)s, ','))", digests)
            )

    def read_mark(self, process_id: UUID) -> int:
        with self._reading():
            return LedgerMark.objects.filter(pk=process_id).values_list("sequence", flat=True).first() or 0

    def close(self) -> None:
        self._socket = None
        connection.close()

    def interrupt(self) -> None:
        # A frozen server never answers and its kernel keeps the connection alive: only this ends the wait.
        descriptor = self._socket
        if descriptor is None:
            return
        with contextlib.suppress(OSError), socket.socket(fileno=os.dup(descriptor)) as duplicate:
            duplicate.shutdown(socket.SHUT_RDWR)

    @contextlib.contextmanager
    def _reading(self) -> Iterator[None]:
        """One read-only database snapshot; a lost connection is given up, so that the next read makes a new one."""
        try:
            connection.ensure_connection()
            self._socket = connection.connection.pgconn.socket
            with transaction.atomic():
                with connection.cursor() as cursor:
                    cursor.execute(self._begin)
                yield
        except (DatabaseError, InterfaceError) as error:
            self.close()
            raise SourceUnavailable(str(error).strip() or type(error).__name__) from error


def _rows(section: str, ids: Sequence[UUID] | None) -> Sequence[Row]:
    """Rows of a section, all of them where `ids` is None."""
    if section == GRANTS:
        return _tenant_rows(ids)
    if section == LIMITS:
        return limit_rows(ids)
    if section == PRICES:
        return _price_rows(ids)
    if section == ISSUERS:
        return _issuer_rows(ids)
    if section == MODELS:
        return _model_rows(ids)
    if section == ENDPOINTS:
        return _endpoint_rows(ids)
    return _key_rows("id = ANY(string_to_array(%(wanted)s, ',')::uuid[])", ids) if ids else []


def _read(select: str, values: Mapping[str, Any], decoder: "msgspec.json.Decoder[list[T]]") -> list[T]:
    """What a query finds, as one JSON text that the database builds and the decoder takes apart.

    A fifth of what model instances cost: there may be tens of thousands to read when a process starts.
    `select` gives one JSON value `r` a row, and is ours.
    """
    with connection.cursor() as cursor:
        cursor.execute(f"SELECT coalesce(json_agg(r), '[]')::text FROM ({select}) AS found", values)  # noqa: S608
        (text,) = cursor.fetchone()
    return decoder.decode(text)


def _key_rows(condition: str, values: Sequence[UUID] | Sequence[str]) -> list[KeyRow]:
    """Keys of the condition, which is ours. What many keys have alike is kept once."""
    rows = _read(
        "SELECT json_build_array(id, digest, tenant_id, scopes, allowed_models, rpm_limit, "  # noqa: S608
        "extract(epoch FROM expires_at), revoked_at IS NOT NULL, keep_alive, lineage, store_conversations) AS r "
        f"FROM tenants_apikey WHERE {condition}",
        {"wanted": _joined(values)},
        _keys,
    )
    return [
        KeyRow(row[0], row[1], _shared_id(row[2]), _names(bytes(row[3])), _patterns(bytes(row[4])), *row[5:])
        for row in rows
    ]


def _joined(values: Sequence[UUID] | Sequence[str]) -> str:
    """For `string_to_array`: one value is sooner quoted than a thousand."""
    return ",".join(map(str, values))


_keys: Final = msgspec.json.Decoder(
    list[tuple[UUID, str, UUID, msgspec.Raw, msgspec.Raw, int | None, float | None, bool, bool, UUID | None, bool]]
)


@lru_cache(maxsize=1024)
def _names(text: bytes) -> frozenset[str]:
    return frozenset(msgspec.json.decode(text, type=list[str]))


@lru_cache(maxsize=1024)
def _patterns(text: bytes) -> tuple[str, ...]:
    return tuple(msgspec.json.decode(text, type=list[str]))


@lru_cache(maxsize=16_384)
def _shared_id(tenant_id: UUID) -> UUID:
    return tenant_id


def _tenant_rows(ids: Sequence[UUID] | None) -> list[Row]:
    chosen, values = _chosen("id", ids)
    grants_chosen, _ = _chosen("tenant_id", ids)
    rules: dict[UUID, list[GrantRule]] = {}
    for tenant_id, kind, principal_id, pattern, actions, allow, expires_at in _read(
        "SELECT json_build_array(tenant_id, principal_kind, principal_id, model_pattern, actions, effect = %(allow)s, "  # noqa: S608
        f"extract(epoch FROM expires_at)) AS r FROM tenants_grant WHERE {grants_chosen}",
        values | {"allow": GrantEffect.ALLOW},
        _grants,
    ):
        rule = GrantRule(kind, principal_id, pattern, _names(bytes(actions)), allow, expires_at)
        rules.setdefault(tenant_id, []).append(rule)
    tenants = _read(
        "SELECT json_build_object('id', id, 'slug', slug, 'active', state = %(active)s, 'rules', '[]'::json, "  # noqa: S608
        "'response_retention_days', response_retention_days, "
        "'conversation_retention_days', conversation_retention_days, 'parent_id', parent_id, "
        f"'time_zone', time_zone, 'sla_tier', sla_tier) AS r FROM tenants_tenant WHERE {chosen}",
        values | {"active": TenantState.ACTIVE},
        _tenants,
    )
    return [
        msgspec.structs.replace(tenant, rules=tuple(rules[tenant.id])) if tenant.id in rules else tenant
        for tenant in tenants
    ]


_grants: Final = msgspec.json.Decoder(list[tuple[UUID, str, str, str, msgspec.Raw, bool, float | None]])
_tenants: Final = msgspec.json.Decoder(list[TenantRow])


def _chosen(column: str, ids: Sequence[UUID] | None) -> tuple[str, dict[str, Any]]:
    """The condition that takes the wanted rows, all of them where `ids` is None, and its values."""
    if ids is None:
        return "true", {}
    return f"{column} = ANY(string_to_array(%(wanted)s, ',')::uuid[])", {"wanted": _joined(ids)}


def limit_rows(ids: Sequence[UUID] | None) -> list[LimitRow]:
    """Limits as the relay knows them, all of them where `ids` is None. Reads within the caller's transaction."""
    chosen, values = _chosen("l.id", ids)
    return _read(
        "SELECT json_build_object('id', l.id, 'tenant_id', l.tenant_id, 'subtree', l.subtree, "  # noqa: S608
        "'key_id', coalesce(k.lineage, k.id), 'model', l.model, 'metric', l.metric, 'window', l.\"window\", "
        "'amount', l.amount, 'refill_per_second', l.refill_per_second, 'boost_amount', l.boost_amount, "
        "'boost_until', extract(epoch FROM l.boost_until), 'counts_from', extract(epoch FROM l.counts_from), "
        "'time_zone', coalesce(t.time_zone, 'UTC'), 'tenant_slug', coalesce(t.slug, '')) AS r "
        "FROM tenants_limit l LEFT JOIN tenants_tenant t ON t.id = l.tenant_id "
        f"LEFT JOIN tenants_apikey k ON k.id = l.key_id WHERE {chosen}",
        values,
        _limits,
    )


_limits: Final = msgspec.json.Decoder(list[LimitRow])


def _price_rows(ids: Sequence[UUID] | None) -> list[Row]:
    chosen = Price.objects.all() if ids is None else Price.objects.filter(pk__in=ids)
    return [
        PriceRow(
            id=price.pk,
            model=price.model,
            version_id=price.version_id,
            effective_from=price.effective_from.timestamp(),
            tag=PriceTag(
                input_micros=price.input_micros,
                cached_input_micros=price.cached_input_micros,
                output_micros=price.output_micros,
                request_micros=price.request_micros,
                gpu_second_micros=price.gpu_second_micros,
            ),
        )
        for price in chosen
    ]


def _issuer_rows(ids: Sequence[UUID] | None) -> list[Row]:
    chosen = TokenIssuer.objects.all() if ids is None else TokenIssuer.objects.filter(pk__in=ids)
    return [
        IssuerRow(
            id=issuer.pk,
            issuer=issuer.issuer,
            audiences=tuple(issuer.audiences),
            algorithms=tuple(issuer.algorithms),
            jwks_url=issuer.jwks_url,
            pinned_jwks=issuer.pinned_jwks,
            allow_private=issuer.allow_private,
            leeway_seconds=issuer.leeway_seconds,
            tenant_id=issuer.tenant_id,
            tenant_claim=issuer.tenant_claim,
            scope_claim=issuer.scope_claim,
            role_claim=issuer.role_claim,
            role_scopes=tuple((role, tuple(actions)) for role, actions in sorted(issuer.role_scopes.items())),
            default_scopes=tuple(issuer.default_scopes),
        )
        for issuer in chosen
    ]


def _model_rows(ids: Sequence[UUID] | None) -> list[Row]:
    """Models that a version serves: the others are gone from the door."""
    models = list_models() if ids is None else get_models(ids)
    return [
        ModelRow(
            id=m.id,
            name=m.name,
            tenant_id=m.tenant_id,
            created=int(m.created_at.timestamp()),
            context_tokens=m.shortest_context_tokens,
            longest_context_tokens=_whole_blocks(m.longest_context_tokens),
            own_contexts=tuple((one, shortest, _whole_blocks(longest)) for one, shortest, longest in m.own_contexts),
            aliases=m.aliases,
            only_tenants=m.only_tenants,
            simulated=m.simulated,
        )
        for m in models
    ]


def _whole_blocks(tokens: int | None) -> int | None:
    """Engines give a context in whole blocks, so that it may be a little longer than it was asked to be."""
    return None if tokens is None else -(-tokens // _CONTEXT_BLOCK) * _CONTEXT_BLOCK


def _endpoint_rows(ids: Sequence[UUID] | None) -> list[Row]:
    """Instances that requests may be sent to now."""
    return [_endpoint_row(ready) for ready in (list_ready_endpoints() if ids is None else get_endpoints(ids))]


def _endpoint_row(ready: ReadyEndpoint) -> EndpointRow:
    return EndpointRow(
        id=ready.instance_id,
        model_id=ready.model_id,
        endpoint=Endpoint(
            instance_id=ready.instance_id,
            version_id=ready.version_id,
            engine=ready.engine,
            host=ready.host,
            port=ready.port,
            base_path=ready.base_path,
            served_name=ready.served_name,
            authorization=ready.authorization,
            slots=ready.slots,
            tls=ready.tls,
            cap=ready.cap,
            cap_firm=ready.cap_firm,
            tenant_id=ready.tenant_id,
        ),
    )
