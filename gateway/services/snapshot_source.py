"""Reads the relay's snapshot from the database. Blocking; called on one thread of its own."""

import contextlib
import os
import socket
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Final
from uuid import UUID

import msgspec
from django.db import DatabaseError, InterfaceError, connection, transaction
from django.db.models import Q

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
from tenants.models import Grant, GrantEffect, LedgerMark, Limit, Price, Tenant, TenantState, TokenIssuer
from tenants.policies.pricing import PriceTag
from tenants.policies.rbac import GrantRule

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
            return LoadedKeys(current_epoch(Section.KEYS), _key_rows("digest = ANY(%s)", digests))

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
    return _key_rows("id = ANY(%s::uuid[])", ids or ())


def _key_rows(condition: str, values: Sequence[UUID] | Sequence[str]) -> list[KeyRow]:
    """Keys of the condition, which is ours.

    In one JSON text each, built by the database: a fifth of what model instances cost, and there may be a hundred
    thousand to read when a process starts. What many keys have alike is kept once.
    """
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT json_build_array(id, digest, tenant_id, scopes, allowed_models, rpm_limit, "  # noqa: S608
            "extract(epoch FROM expires_at), revoked_at IS NOT NULL, keep_alive, lineage, store_conversations)::text "
            f"FROM tenants_apikey WHERE {condition}",
            [list(values)],
        )
        rows = [_key_decoder.decode(text) for (text,) in cursor.fetchall()]
    return [
        KeyRow(key_id, digest, _shared_id(tenant_id), _scopes(bytes(scopes)), _models(bytes(models)), *others)
        for key_id, digest, tenant_id, scopes, models, *others in rows
    ]


_key_decoder: Final = msgspec.json.Decoder(
    tuple[UUID, str, UUID, msgspec.Raw, msgspec.Raw, int | None, float | None, bool, bool, UUID | None, bool]
)


@lru_cache(maxsize=1024)
def _scopes(text: bytes) -> frozenset[str]:
    return frozenset(msgspec.json.decode(text, type=list[str]))


@lru_cache(maxsize=1024)
def _models(text: bytes) -> tuple[str, ...]:
    return tuple(msgspec.json.decode(text, type=list[str]))


@lru_cache(maxsize=16_384)
def _shared_id(tenant_id: UUID) -> UUID:
    return tenant_id


def _tenant_rows(ids: Sequence[UUID] | None) -> list[Row]:
    chosen = Q() if ids is None else Q(pk__in=ids)
    rules: dict[UUID, list[GrantRule]] = {}
    for grant in Grant.objects.filter(Q() if ids is None else Q(tenant__in=ids)):
        rules.setdefault(grant.tenant_id, []).append(
            GrantRule(
                principal_kind=grant.principal_kind,
                principal_id=str(grant.principal_id),
                model_pattern=grant.model_pattern,
                actions=frozenset(grant.actions),
                allow=grant.effect == GrantEffect.ALLOW,
                expires_at=grant.expires_at.timestamp() if grant.expires_at else None,
            )
        )
    return [
        TenantRow(
            id=tenant.pk,
            slug=tenant.slug,
            active=tenant.state == TenantState.ACTIVE,
            rules=tuple(rules.get(tenant.pk, ())),
            response_retention_days=tenant.response_retention_days,
            conversation_retention_days=tenant.conversation_retention_days,
            parent_id=tenant.parent_id,
            time_zone=tenant.time_zone,
            sla_tier=tenant.sla_tier,
        )
        for tenant in Tenant.objects.filter(chosen)
    ]


def limit_rows(ids: Sequence[UUID] | None) -> list[LimitRow]:
    """Limits as the relay knows them, all of them where `ids` is None. Reads within the caller's transaction."""
    chosen = Limit.objects.all() if ids is None else Limit.objects.filter(pk__in=ids)
    return [
        LimitRow(
            id=limit.pk,
            tenant_id=limit.tenant_id,
            subtree=limit.subtree,
            key_id=limit.key.limits_id if limit.key else None,
            model=limit.model,
            metric=limit.metric,
            window=limit.window,
            amount=limit.amount,
            refill_per_second=limit.refill_per_second,
            boost_amount=limit.boost_amount,
            boost_until=limit.boost_until.timestamp() if limit.boost_until else None,
            counts_from=limit.counts_from.timestamp(),
            time_zone=limit.tenant.time_zone if limit.tenant else "UTC",
            tenant_slug=limit.tenant.slug if limit.tenant else "",
        )
        for limit in chosen.select_related("tenant", "key")
    ]


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
        ),
    )
