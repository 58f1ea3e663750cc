"""When a version that cannot be loaded gives way to the last one that could. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass
from uuid import UUID


@dataclass(frozen=True, slots=True)
class Candidate:
    """A version of a model, as far as it matters here; times in seconds since the epoch."""

    version_id: UUID
    label: str
    serving: bool
    stable_at: float | None  # when an instance of it was last ready; None: never
    launchable: bool = True
    replicas: int = 0
    failed_since: float | None = None  # when one that stands as failed first did, however often it was tried since
    failures: int = 0  # its latest instances in a row that ended without ever having been ready
    ready: int = 0  # instances that serve
    coming: int = 0  # instances that load for the first time: they may serve yet
    reason: str = ""  # why the failed one failed


@dataclass(frozen=True, slots=True)
class RollBack:
    """Take `version_id` out and let `to_version_id` serve in its place."""

    version_id: UUID
    to_version_id: UUID
    reason: str


def decide_rollback(versions: Sequence[Candidate], *, now: float, grace_seconds: float) -> list[RollBack]:
    """What should be rolled back among the versions of one model.

    Only a version that was never ready: one that was is a matter of its machine, and is started again. And only where
    another was ready once; else there is nothing to go back to, and it is tried on.
    """
    found: list[RollBack] = []
    for version in versions:
        if not version.serving or version.replicas == 0 or version.stable_at is not None:
            continue
        if version.ready or version.coming:
            continue
        given_up = version.failed_since is not None and now - version.failed_since >= grace_seconds
        if not given_up and version.failures == 0:
            continue
        stable = [one for one in versions if one.stable_at is not None and one.launchable and one is not version]
        if stable:
            best = max(stable, key=lambda one: (one.stable_at or 0.0, one.version_id))
            found.append(RollBack(version.version_id, best.version_id, _reason(version, best)))
    return found


def _reason(version: Candidate, best: Candidate) -> str:
    why = f" The last word of it: {version.reason}" if version.reason else ""
    return f"{version.label} was never ready and failed, so {best.label} serves again, which was.{why}"
