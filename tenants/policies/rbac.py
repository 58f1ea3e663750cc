"""May this principal do that with this model? Deny wins; what no grant allows is denied."""

from collections.abc import Iterable
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Final

ACTIONS: Final = frozenset({"infer", "embed", "train", "deploy", "manage"})


@dataclass(frozen=True, slots=True)
class GrantRule:
    """One grant as the decision needs it; `expires_at` in seconds since the epoch."""

    principal_kind: str  # tenant, key, subject
    principal_id: str
    model_pattern: str
    actions: frozenset[str]  # "*" stands for every action
    allow: bool
    expires_at: float | None = None


def is_allowed(
    rules: Iterable[GrantRule],
    *,
    tenant_id: str,
    key_id: str,
    subject_id: str = "",
    scopes: frozenset[str],
    allowed_models: tuple[str, ...],
    model: str,
    action: str,
    now: float,
) -> bool:
    """True when the key's own scopes and models and at least one grant allow it, and no grant denies it.

    `key_id` is empty for a token's subject, `subject_id` for a key. `now` is seconds since the epoch.
    Patterns are shell-style and case-sensitive.
    """
    if action not in scopes:
        return False
    if allowed_models and not any(fnmatchcase(model, pattern) for pattern in allowed_models):
        return False
    allowed = False
    owners = {"tenant": tenant_id, "key": key_id, "subject": subject_id}
    for rule in rules:
        if rule.principal_id != owners.get(rule.principal_kind):
            continue
        if rule.expires_at is not None and rule.expires_at <= now:
            continue
        if action not in rule.actions and "*" not in rule.actions:
            continue
        if fnmatchcase(model, rule.model_pattern):
            if not rule.allow:
                return False
            allowed = True
    return allowed
