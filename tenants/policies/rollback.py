"""What it takes to bring configuration back to how it was, and what is never brought back.

A revocation stays: keys stay revoked and expired, grants ended, what is denied denied, tenants suspended, signing keys
out, and what a tenant no longer wants stored is not stored. What was made since is taken away where that opens nothing
(grants, limits, issuers), and left where something living would end (keys, tenants).
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final

Row = Mapping[str, Any]
"""A table's row as JSON values."""

TENANT: Final = "tenants_tenant"
GRANT: Final = "tenants_grant"
LIMIT: Final = "tenants_limit"
PRICE: Final = "tenants_price"
KEY: Final = "tenants_apikey"
ISSUER: Final = "tenants_tokenissuer"

RESTORED_OF_TENANT: Final = frozenset({"name", "parent_id", "sla_tier", "time_zone"})  # and all its retentions
RESTORED_OF_KEY: Final = frozenset(
    {"name", "scopes", "allowed_models", "rpm_limit", "keep_alive", "store_conversations", "expires_at"}
)
_DENY: Final = "deny"
_DENIES: Final = "It denies: what was denied since stays so. Remove the grant by hand, if it is not to hold."
_NEVER: Final = frozenset({"id", "created_at"})
_PRICES: Final = ("input_micros", "cached_input_micros", "output_micros", "request_micros", "gpu_second_micros")


@dataclass(frozen=True, slots=True)
class Step:
    """One write: `insert` and `delete` of a row, `update` of the fields that `after` has."""

    verb: str
    table: str
    object_id: str
    before: Row = field(default_factory=dict)
    after: Row = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Kept:
    """What stays as it is, though it was otherwise then, and why."""

    table: str
    object_id: str
    reason: str


def plan_object(table: str, object_id: str, *, then: Row | None, now: Row | None, at: datetime) -> list[Step | Kept]:
    """How one object gets from `now` back to `then` (None: there was or is no such row); `at` is the present moment.

    Prices are another matter: see `plan_prices`.
    """
    if now is None:
        return [] if then is None else [_bring_back(table, object_id, then, at)]
    if then is None:
        return [_take_away(table, object_id, now)]
    if table == KEY and now.get("revoked_at") is not None:
        differs = any(then.get(name) != now.get(name) for name in RESTORED_OF_KEY)
        return [Kept(table, object_id, "The key is revoked.")] if differs else []
    if table == GRANT and now.get("effect") == _DENY and not _denies_as_much(then, now):
        return [Kept(table, object_id, _DENIES)]
    changed = {name: value for name, value in then.items() if _differs(table, name, value, now)}
    kept = [Kept(table, object_id, reason) for name in list(changed) if (reason := _stays(table, name, changed, now))]
    steps: list[Step | Kept] = [*kept]
    if table == TENANT and then.get("state") != now.get("state"):
        steps.append(Kept(table, object_id, f"It is {now.get('state')}: suspend and resume by hand."))
    if changed:
        steps.append(Step("update", table, object_id, {name: now[name] for name in changed}, changed))
    return steps


def _bring_back(table: str, object_id: str, then: Row, at: datetime) -> Step | Kept:
    if table == KEY:
        return Kept(table, object_id, "The key was deleted, and its secret with it.")
    if table == TENANT:
        return Kept(table, object_id, "The tenant was erased.")
    if table == ISSUER:
        return Kept(table, object_id, "The issuer was removed; whether it is to be believed again is for a person.")
    expires = then.get("expires_at")
    if table == GRANT and expires is not None and datetime.fromisoformat(expires) <= at:
        return Kept(table, object_id, "The grant has expired since.")
    return Step("insert", table, object_id, {}, then)


def _take_away(table: str, object_id: str, now: Row) -> Step | Kept:
    if table == KEY:
        return Kept(table, object_id, "The key was made since: revoke it, if it is not to be used.")
    if table == TENANT:
        return Kept(table, object_id, "The tenant was made since: suspend it, if it is not to be used.")
    if table == GRANT and now.get("effect") == _DENY:
        return Kept(table, object_id, _DENIES)
    return Step("delete", table, object_id, now, {})


def _differs(table: str, name: str, value: Any, now: Row) -> bool:
    if table == KEY and name not in RESTORED_OF_KEY:
        return False
    if table == TENANT and name not in RESTORED_OF_TENANT and not name.endswith("_retention_days"):
        return False
    # A column that is no more cannot be restored; one that came since keeps its value.
    return name not in _NEVER and name in now and not _same(value, now[name])


def _same(one: Any, other: Any) -> bool:
    if one == other:
        return True
    try:  # the same moment, told in two sessions' zones
        return datetime.fromisoformat(one) == datetime.fromisoformat(other)
    except (TypeError, ValueError):
        return False


def _denies_as_much(then: Row, now: Row) -> bool:
    """Whether a denial that goes back to `then` opens nothing."""
    same = all(then[name] == now[name] for name in ("effect", "principal_kind", "principal_id", "model_pattern"))
    actions = "*" in then["actions"] or set(now["actions"]) <= set(then["actions"])
    return same and actions and not _is_earlier(then["expires_at"], now["expires_at"])


def _is_earlier(one: str | None, other: str | None) -> bool:
    """Of two expiries, where None is never."""
    if one is None or other is None:
        return one is not None
    return datetime.fromisoformat(one) < datetime.fromisoformat(other)


def _stays(table: str, name: str, changed: dict[str, Any], now: Row) -> str | None:
    """Takes a field out of `changed` that must not go back, and says why."""
    reason = None
    if name == "store_conversations" and not now[name]:
        reason = "The key has its conversations stored no more: whether they are again is for its tenant."
    elif table == TENANT and name.endswith("_retention_days") and now[name] == 0:
        reason = "Nothing is stored any more: whether it is again is for the tenant."
    elif name == "expires_at" and _is_earlier(now[name], changed[name]):
        if table == KEY:
            reason = "The key expires earlier than it did: an expiry is never put off."
        elif table == GRANT and now["effect"] != _DENY:
            reason = "The grant ends earlier than it did: an end is never put off."
    elif table == ISSUER and name == "pinned_jwks":
        reason = "Its pinned keys are as they are now: a signing key that was taken out stays out."
    elif table == ISSUER and name in ("jwks_url", "allow_private"):
        reason = "The address of its keys is as it is now: one that was left is not believed again."
    if reason is not None:
        del changed[name]
    return reason


def plan_prices(*, then: Iterable[Row], now: Iterable[Row], at: datetime) -> list[Step]:
    """New rows from `at` on where another price is in effect than would be, and what was planned for later.

    `then` are all rows that were in the book, `now` all that are. A row that is in effect stays, because what was
    served under it was billed by it; one that is to come into effect later is taken out.
    """
    then, now = list(then), list(now)
    known, here = {row["id"] for row in then}, {row["id"] for row in now}
    steps = [Step("delete", PRICE, row["id"], row, {}) for row in now if row["id"] not in known and _from(row) > at]
    steps += [Step("insert", PRICE, row["id"], {}, row) for row in then if row["id"] not in here and _from(row) > at]
    before, after = _in_effect(now, at), _in_effect(then, at)
    for article in sorted(before.keys() | after.keys(), key=str):
        model, version = article
        # A version without a price of its own has its model's; without any it costs nothing.
        wanted = _amounts(after.get(article) or after.get((model, None)))
        found = _amounts(before.get(article) or before.get((model, None)))
        if wanted != found:
            row = {"model": model, "version_id": version, "effective_from": at.isoformat(), **wanted}
            steps.append(Step("insert", PRICE, "", found, row))
    return steps


def _amounts(row: Row | None) -> dict[str, int]:
    return {name: 0 if row is None else row[name] for name in _PRICES}


def _from(row: Row) -> datetime:
    return datetime.fromisoformat(row["effective_from"])


def _in_effect(rows: Iterable[Row], at: datetime) -> dict[tuple[str, str | None], Row]:
    """The newest row of each model and version that has begun."""
    found: dict[tuple[str, str | None], Row] = {}
    for row in sorted(rows, key=lambda row: (_from(row), row["id"])):
        if _from(row) <= at:
            found[row["model"], row["version_id"]] = row
    return found
