"""What a person should look at first: each finding gets a level, and findings are put worst first."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum, StrEnum
from typing import Final


class Level(IntEnum):
    """How soon: the lower, the sooner."""

    NOW = 0  # requests fail, or soon will
    SOON = 1  # something is lost or held up that nobody notices yet
    LOOK = 2  # waits for a person


class Kind(StrEnum):
    """In the order in which findings of one level stand."""

    SCHEMA_BEHIND = "schema_behind"
    VALKEY_AWAY = "valkey_away"
    COUNTERS_LOST = "counters_lost"
    REQUESTS_FAIL = "requests_fail"
    MODEL_UNSERVED = "model_unserved"
    CONTROLLER_AWAY = "controller_away"
    LEASES_AWAY = "leases_away"
    LEDGER_BEHIND = "ledger_behind"
    ALERT = "alert"
    NODE_UNREACHABLE = "node_unreachable"
    INSTANCE_FAILED = "instance_failed"
    INSTANCE_UNKNOWN = "instance_unknown"
    INSTANCE_WAITS = "instance_waits"
    BREAKER_OPEN = "breaker_open"
    DEVICE_FAILED = "device_failed"
    DEVICE_ISOLATED = "device_isolated"
    BUDGET_SPENT = "budget_spent"
    VALKEY_FULL = "valkey_full"
    SPOOL_FULL = "spool_full"
    BATCH_SILENT = "batch_silent"
    BATCH_UNHEARD = "batch_unheard"
    PARTITION_MISSING = "partition_missing"
    DEAD_LETTERS = "dead_letters"
    ENGINE_OFF = "engine_off"
    PLUGIN_BROKEN = "plugin_broken"
    ENGINE_KEY_MISSING = "engine_key_missing"
    BUDGET_NEAR = "budget_near"
    APPROVAL_WAITS = "approval_waits"
    NODE_IN_MAINTENANCE = "node_in_maintenance"
    WEBHOOK_DISABLED = "webhook_disabled"


_LEVELS: Final[Mapping[Kind, Level]] = {
    Kind.SCHEMA_BEHIND: Level.NOW,
    Kind.VALKEY_AWAY: Level.NOW,
    Kind.COUNTERS_LOST: Level.NOW,
    Kind.MODEL_UNSERVED: Level.NOW,
    Kind.CONTROLLER_AWAY: Level.NOW,
    Kind.LEASES_AWAY: Level.NOW,
    Kind.NODE_UNREACHABLE: Level.NOW,
    Kind.INSTANCE_FAILED: Level.NOW,
    Kind.INSTANCE_UNKNOWN: Level.SOON,
    Kind.INSTANCE_WAITS: Level.SOON,
    Kind.BREAKER_OPEN: Level.SOON,
    Kind.DEVICE_FAILED: Level.NOW,
    Kind.DEVICE_ISOLATED: Level.SOON,
    Kind.BUDGET_SPENT: Level.SOON,
    Kind.VALKEY_FULL: Level.SOON,
    Kind.SPOOL_FULL: Level.SOON,
    Kind.BATCH_SILENT: Level.SOON,
    Kind.BATCH_UNHEARD: Level.SOON,
    Kind.PARTITION_MISSING: Level.SOON,
    Kind.DEAD_LETTERS: Level.SOON,
    Kind.ENGINE_OFF: Level.SOON,
    Kind.PLUGIN_BROKEN: Level.SOON,
    Kind.ENGINE_KEY_MISSING: Level.SOON,
    Kind.BUDGET_NEAR: Level.LOOK,
    Kind.APPROVAL_WAITS: Level.LOOK,
    Kind.NODE_IN_MAINTENANCE: Level.LOOK,
    Kind.WEBHOOK_DISABLED: Level.LOOK,
}
LAG_NOW_SECONDS: Final = 120.0
FAILING_REQUESTS: Final = 5
FAILING_SHARE: Final = 0.05
"""Of a model's requests, which fail for no fault of their callers: so many, and so large a share, are no accident."""

_FAILING_NOW_SHARE: Final = 0.25
OLD_APPROVAL_SECONDS: Final = 3 * 86_400.0
_ORDER: Final[Mapping[Kind, int]] = {kind: place for place, kind in enumerate(Kind)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """`names`: some of what is concerned, `count`: how much in all. `seconds`: how old or late it is, where it counts.
    `more`: at least so many further ones whose names nobody tells.

    `page`: whether it is one to be woken for, of an alert and of requests that fail. `target` is what a link to the one
    thing concerned needs (a slug, an id); "" where it is several.
    """

    kind: Kind
    count: int = 1
    more: int = 0
    names: Sequence[str] = ()
    seconds: float | None = None
    page: bool = False
    target: str = ""


def level_of(finding: Finding) -> Level:
    """How soon somebody should look."""
    match finding.kind:
        case Kind.LEDGER_BEHIND:
            return Level.NOW if (finding.seconds or 0.0) >= LAG_NOW_SECONDS else Level.SOON
        case Kind.ALERT | Kind.REQUESTS_FAIL:
            return Level.NOW if finding.page else Level.SOON
        case Kind.APPROVAL_WAITS:
            return Level.SOON if (finding.seconds or 0.0) >= OLD_APPROVAL_SECONDS else Level.LOOK
    return _LEVELS[finding.kind]


def fails(requests: int, faults: int) -> Level | None:
    """How soon somebody should look at a model of whose `requests` so many failed; None: that happens."""
    if faults < FAILING_REQUESTS or faults < FAILING_SHARE * requests:
        return None
    return Level.NOW if faults >= _FAILING_NOW_SHARE * requests else Level.SOON


def rank(findings: Iterable[Finding]) -> list[tuple[Level, Finding]]:
    """Worst first: by level, by kind, then the most; names break ties, so that the list does not jump."""
    found = [(level_of(finding), finding) for finding in findings if finding.count > 0]
    return sorted(found, key=lambda one: (one[0], _ORDER[one[1].kind], -one[1].count, tuple(one[1].names)))
