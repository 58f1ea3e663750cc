"""What a process knows of the configuration: looked up on the hot path, without I/O.

The follower (gateway.relay.follower) keeps it up to date. Tenants, models and endpoints are held whole;
keys are a least-recently-used cache of those that were asked for, with a bounded memory of unknown ones.
"""

import hashlib
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple
from uuid import UUID

from gateway.relay.plan import Endpoint
from gateway.relay.rows import (
    ENDPOINTS,
    GRANTS,
    ISSUERS,
    KEYS,
    LIMITS,
    MODELS,
    PRICES,
    EndpointRow,
    IssuerRow,
    KeyRow,
    LimitRow,
    ModelRow,
    PriceRow,
    Row,
    TenantRow,
)

KEY_CAPACITY: Final = 150_000  # about 50 MB
UNKNOWN_CAPACITY: Final = 10_000


def digest_credential(credential: str) -> str:
    """The name under which a key is stored: the hex SHA-256 of its secret."""
    return hashlib.sha256(credential.encode("utf-8", "surrogatepass")).hexdigest()


class _Ready(NamedTuple):
    """The ready endpoints of a model: one value, replaced whole, as the DRF door looks from other threads."""

    endpoints: tuple[Endpoint, ...] = ()
    bound: bool = False  # some take one tenant's requests alone


_NONE_READY: Final = _Ready()


class Snapshot:
    """Rows by what they are looked up by. Only touched on the event loop."""

    def __init__(self, *, key_capacity: int = KEY_CAPACITY, unknown_capacity: int = UNKNOWN_CAPACITY) -> None:
        self.applied: dict[str, int] = {}
        """The epoch that each section stands at; a section that was never loaded is missing."""
        self.version = 0
        """Grows with every change of anything but endpoints: what was decided before may no longer hold."""
        self._key_capacity = key_capacity
        self._unknown_capacity = unknown_capacity
        self._keys: OrderedDict[str, KeyRow] = OrderedDict()
        self._digests: dict[UUID, str] = {}
        self._unknown: OrderedDict[str, None] = OrderedDict()
        self._tenants: dict[UUID, TenantRow] = {}
        self._slugs: dict[str, TenantRow] = {}
        self._limits: dict[UUID, LimitRow] = {}
        self._limits_of: dict[UUID | None, dict[UUID, LimitRow]] = {}  # by the key, else the tenant, they are about
        self._prices: dict[UUID, PriceRow] = {}
        self._prices_of: dict[str, tuple[PriceRow, ...]] = {}  # by model, newest first
        self._issuers: dict[UUID, IssuerRow] = {}
        self._issuer_names: dict[str, IssuerRow] = {}
        self._models: dict[UUID, ModelRow] = {}
        self._model_names: dict[str, ModelRow] = {}
        self._endpoints: dict[UUID, EndpointRow] = {}
        self._by_model: dict[UUID, _Ready] = {}

    # Lookups

    def knows(self, digest: str) -> bool:
        """Whether `key` can answer for this digest without a read."""
        return digest in self._keys or digest in self._unknown

    def key(self, digest: str) -> KeyRow | None:
        """The key of that digest, revoked and expired ones too; None when unknown or not resolved."""
        row = self._keys.get(digest)
        if row is not None:
            self._keys.move_to_end(digest)
        return row

    def tenant(self, tenant_id: UUID) -> TenantRow | None:
        return self._tenants.get(tenant_id)

    def tenant_named(self, name: UUID | str) -> TenantRow | None:
        """The tenant of that id or slug."""
        return self._tenants.get(name) if isinstance(name, UUID) else self._slugs.get(name)

    def response_retention_days(self, tenant_id: UUID) -> int:
        """How long the tenant's answers are kept, in days; 0 for not at all, and for an unknown tenant."""
        tenant = self._tenants.get(tenant_id)
        return 0 if tenant is None else tenant.response_retention_days

    def conversation_retention_days(self, tenant_id: UUID) -> int:
        """The same of conversations."""
        tenant = self._tenants.get(tenant_id)
        return 0 if tenant is None else tenant.conversation_retention_days

    def limits(self, tenant_id: UUID, key_id: UUID | None, model: str) -> tuple[LimitRow, ...]:
        """Every limit that takes in a request of that tenant, key and model."""
        found = [*self._limits_about(None, model)]
        if key_id is not None:
            found += self._limits_about(key_id, model)
        found += self._limits_about(tenant_id, model)
        seen = {tenant_id}
        tenant = self._tenants.get(tenant_id)
        while tenant is not None and tenant.parent_id is not None and tenant.parent_id not in seen:
            seen.add(tenant.parent_id)
            found += [limit for limit in self._limits_about(tenant.parent_id, model) if limit.subtree]
            tenant = self._tenants.get(tenant.parent_id)
        return tuple(found)

    def limits_about(self, tenant_id: UUID, key_id: UUID | None) -> list[LimitRow]:
        """Limits of the key, the tenant and the departments that it is part of, of whatever model."""
        found = [] if key_id is None else [*self._limits_of.get(key_id, {}).values()]
        found += self._limits_of.get(tenant_id, {}).values()
        seen, tenant = {tenant_id}, self._tenants.get(tenant_id)
        while tenant is not None and tenant.parent_id is not None and tenant.parent_id not in seen:
            seen.add(tenant.parent_id)
            found += [limit for limit in self._limits_of.get(tenant.parent_id, {}).values() if limit.subtree]
            tenant = self._tenants.get(tenant.parent_id)
        return found

    def price(self, model: str, version_id: UUID | None, now: float) -> PriceRow | None:
        """The prices in effect at `now` (seconds since the epoch): the version's own before the model's."""
        general = None
        for row in self._prices_of.get(model, ()):
            if row.effective_from <= now:
                if row.version_id is not None and row.version_id == version_id:
                    return row
                if row.version_id is None and general is None:
                    general = row
        return general

    def prices(self, model: str, now: float) -> list[PriceRow]:
        """The prices in effect at `now` of the model and of each of its versions that has its own."""
        newest: dict[UUID | None, PriceRow] = {}
        for row in self._prices_of.get(model, ()):
            if row.effective_from <= now:
                newest.setdefault(row.version_id, row)
        return [*newest.values()]

    def issuers(self) -> Iterable[IssuerRow]:
        return self._issuers.values()

    def issuer(self, name: str) -> IssuerRow | None:
        """Whose claim `iss` is that."""
        return self._issuer_names.get(name)

    def model(self, name: str) -> ModelRow | None:
        """The model of that name or alias."""
        return self._model_names.get(name)

    def models(self) -> Iterable[ModelRow]:
        """All models, in the order of their names."""
        return sorted(self._models.values(), key=lambda row: row.name)

    def endpoints(self, model_id: UUID, tenant_id: UUID | None = None) -> tuple[Endpoint, ...]:
        """The ready endpoints of a model that take this tenant's requests; None: those that take everybody's."""
        ready = self._by_model.get(model_id, _NONE_READY)
        if not ready.bound:
            return ready.endpoints
        return tuple(e for e in ready.endpoints if e.tenant_id is None or e.tenant_id == tenant_id)

    def endpoint_row(self, instance_id: UUID) -> EndpointRow | None:
        """That instance and whose model it is; None unless it is ready."""
        return self._endpoints.get(instance_id)

    def has_endpoint(self, instance_id: UUID) -> bool:
        """Whether that instance is ready, of whatever model."""
        return instance_id in self._endpoints

    # Updates

    def cached_key_ids(self, ids: Iterable[UUID]) -> list[UUID]:
        """Those of the keys that are held here; the others need no reload."""
        return [key_id for key_id in ids if key_id in self._digests]

    def key_ids(self) -> list[UUID]:
        """All keys that are held here, the longest unused first."""
        return [row.id for row in self._keys.values()]

    def add_resolved(self, digest: str, row: KeyRow | None) -> None:
        """Remember what a read of this digest found; the oldest ones make room."""
        if row is None:
            self._unknown[digest] = None
            if len(self._unknown) > self._unknown_capacity:
                self._unknown.popitem(last=False)
            return
        self._put_key(row)

    def begin_section(self, section: str) -> "Snapshot":
        """An empty snapshot to load a section into before `adopt_section` swaps it in."""
        return Snapshot(key_capacity=self._key_capacity, unknown_capacity=self._unknown_capacity)

    def adopt_section(self, section: str, loaded: "Snapshot", epoch: int) -> None:
        """Take over one section of another snapshot, whole."""
        if section == KEYS:
            self._keys, self._digests, self._unknown = loaded._keys, loaded._digests, loaded._unknown
        elif section == GRANTS:
            self._tenants, self._slugs = loaded._tenants, loaded._slugs
        elif section == LIMITS:
            self._limits, self._limits_of = loaded._limits, loaded._limits_of
        elif section == PRICES:
            self._prices, self._prices_of = loaded._prices, loaded._prices_of
        elif section == ISSUERS:
            self._issuers, self._issuer_names = loaded._issuers, loaded._issuer_names
        elif section == MODELS:
            self._models, self._model_names = loaded._models, loaded._model_names
        elif section == ENDPOINTS:
            self._endpoints, self._by_model = loaded._endpoints, loaded._by_model
        self.applied[section] = epoch
        self._changed(section)

    def apply(self, section: str, changed: Iterable[UUID], rows: Sequence[Row], *, through: int | None = None) -> None:
        """Replace the changed objects by their rows; those without a row vanish.

        `through`: the epoch that the section stands at after this.
        """
        if section == KEYS:
            self._unknown.clear()  # a new key may be one that was asked for before it was there
        for row in rows:
            self._put(row)
        # What comes before what goes: whoever looks from another thread meanwhile finds one of them.
        self.remove(section, set(changed).difference(row.id for row in rows))
        if through is not None:
            self.applied[section] = through
        self._changed(section)

    def remove(self, section: str, ids: Iterable[UUID]) -> None:
        for object_id in ids:
            if section == KEYS:
                digest = self._digests.pop(object_id, None)
                if digest is not None:
                    del self._keys[digest]
            elif section == GRANTS:
                self._forget_tenant(object_id)
            elif section == LIMITS:
                self._forget_limit(object_id)
            elif section == PRICES:
                self._forget_price(object_id)
            elif section == ISSUERS:
                self._forget_issuer(object_id)
            elif section == MODELS:
                self._forget_model(object_id)
            elif section == ENDPOINTS:
                self._forget_endpoint(object_id)

    def _changed(self, section: str) -> None:
        if section != ENDPOINTS:
            self.version += 1

    def _put(self, row: Row) -> None:
        """In its place at once, never gone before it is there again: the DRF door looks from other threads."""
        match row:
            case KeyRow():
                self._put_key(row)
            case TenantRow():
                tenant_before = self._tenants.get(row.id)
                self._tenants[row.id] = self._slugs[row.slug] = row
                if tenant_before is not None and self._slugs.get(tenant_before.slug) is tenant_before:
                    del self._slugs[tenant_before.slug]
            case LimitRow():
                self._put_limit(row)
            case PriceRow():
                price_before = self._prices.get(row.id)
                if price_before is not None and price_before.model != row.model:
                    self._forget_price(row.id)
                self._prices[row.id] = row
                others = [price for price in self._prices_of.get(row.model, ()) if price.id != row.id]
                self._prices_of[row.model] = tuple(
                    sorted((*others, row), key=lambda price: price.effective_from, reverse=True)
                )
            case IssuerRow():
                issuer_before = self._issuers.get(row.id)
                self._issuers[row.id] = self._issuer_names[row.issuer] = row
                if issuer_before is not None and self._issuer_names.get(issuer_before.issuer) is issuer_before:
                    del self._issuer_names[issuer_before.issuer]
            case ModelRow():
                model_before = self._models.get(row.id)
                self._models[row.id] = row
                for name in (row.name, *row.aliases):
                    self._model_names[name] = row
                if model_before is not None and model_before is not row:
                    self._forget_names(model_before)
            case EndpointRow():
                self._put_endpoint(row)

    def _put_key(self, row: KeyRow) -> None:
        previous = self._digests.get(row.id)
        if previous is not None and previous != row.digest:
            del self._keys[previous]
        self._unknown.pop(row.digest, None)
        self._digests[row.id] = row.digest
        self._keys[row.digest] = row
        self._keys.move_to_end(row.digest)
        if len(self._keys) > self._key_capacity:
            _, oldest = self._keys.popitem(last=False)
            del self._digests[oldest.id]

    def _put_limit(self, row: LimitRow) -> None:
        before, owner = self._limits.get(row.id), row.key_id or row.tenant_id
        if before is not None and (before.key_id or before.tenant_id) != owner:
            self._forget_limit(row.id)
        self._limits[row.id] = row
        self._limits_of[owner] = {**self._limits_of.get(owner, {}), row.id: row}  # another one: somebody may read this

    def _put_endpoint(self, row: EndpointRow) -> None:
        before = self._endpoints.get(row.id)
        if before is not None and before.model_id != row.model_id:
            self._forget_endpoint(row.id)
        self._endpoints[row.id] = row
        self._set_ready(row.model_id, (*self._ready_beside(row), row.endpoint))

    def _ready_beside(self, row: EndpointRow) -> list[Endpoint]:
        ready = self._by_model.get(row.model_id, _NONE_READY)
        return [e for e in ready.endpoints if e.instance_id != row.id]

    def _set_ready(self, model_id: UUID, endpoints: Sequence[Endpoint]) -> None:
        if endpoints:
            self._by_model[model_id] = _Ready(tuple(endpoints), any(e.tenant_id is not None for e in endpoints))
        else:
            self._by_model.pop(model_id, None)

    def _limits_about(self, owner: UUID | None, model: str) -> list[LimitRow]:
        rows = self._limits_of.get(owner)
        return [] if rows is None else [row for row in rows.values() if not row.model or row.model == model]

    def _forget_limit(self, limit_id: UUID) -> None:
        row = self._limits.pop(limit_id, None)
        if row is not None:
            owner = row.key_id or row.tenant_id
            left = {other: limit for other, limit in self._limits_of[owner].items() if other != limit_id}
            if left:
                self._limits_of[owner] = left
            else:
                del self._limits_of[owner]

    def _forget_price(self, price_id: UUID) -> None:
        row = self._prices.pop(price_id, None)
        if row is not None:
            left = tuple(price for price in self._prices_of[row.model] if price.id != price_id)
            if left:
                self._prices_of[row.model] = left
            else:
                del self._prices_of[row.model]

    def _forget_tenant(self, tenant_id: UUID) -> None:
        row = self._tenants.pop(tenant_id, None)
        if row is not None and self._slugs.get(row.slug) is row:
            del self._slugs[row.slug]

    def _forget_issuer(self, issuer_id: UUID) -> None:
        row = self._issuers.pop(issuer_id, None)
        if row is not None and self._issuer_names.get(row.issuer) is row:
            del self._issuer_names[row.issuer]

    def _forget_model(self, model_id: UUID) -> None:
        row = self._models.pop(model_id, None)
        if row is not None:
            self._forget_names(row)

    def _forget_names(self, row: ModelRow) -> None:
        """Those that are no other row's by now."""
        for name in (row.name, *row.aliases):
            if self._model_names.get(name) is row:
                del self._model_names[name]

    def _forget_endpoint(self, instance_id: UUID) -> None:
        row = self._endpoints.pop(instance_id, None)
        if row is not None:
            self._set_ready(row.model_id, self._ready_beside(row))
