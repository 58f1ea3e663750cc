"""When a version gives way to the last one that could be loaded."""

from dataclasses import replace
from uuid import UUID

import pytest

from gpupool.policies.rollback import Candidate, decide_rollback

NOW = 1000.0
STABLE = Candidate(UUID(int=1), "m v1", serving=True, stable_at=500.0)
OLDER = Candidate(UUID(int=2), "m v0", serving=False, stable_at=100.0)
NEW = Candidate(UUID(int=3), "m v2", serving=True, stable_at=None, replicas=2, failed_since=NOW - 40, reason="No file.")


@pytest.mark.shows("R104")
def test_a_version_that_was_never_ready_gives_way_to_the_last_stable_one() -> None:
    (found,) = decide_rollback([OLDER, STABLE, NEW], now=NOW, grace_seconds=30)
    assert (found.version_id, found.to_version_id) == (NEW.version_id, STABLE.version_id)
    assert found.reason == (
        "m v2 was never ready and failed, so m v1 serves again, which was. The last word of it: No file."
    )


def test_one_that_was_replaced_in_vain_gives_way_too() -> None:
    assert decide_rollback([STABLE, replace(NEW, failed_since=None, failures=1)], now=NOW, grace_seconds=30)


@pytest.mark.parametrize(
    "versions",
    [
        pytest.param([STABLE, replace(NEW, failed_since=NOW - 10)], id="its node still tries"),
        pytest.param([STABLE, replace(NEW, failed_since=None)], id="it is loading"),
        pytest.param([STABLE, replace(NEW, stable_at=1.0)], id="it was ready once: its machine's matter"),
        pytest.param([STABLE, replace(NEW, ready=1)], id="another of it serves"),
        pytest.param([STABLE, replace(NEW, coming=1)], id="another of it still loads"),
        pytest.param([STABLE, replace(NEW, replicas=0)], id="nobody wants it"),
        pytest.param([STABLE, replace(NEW, serving=False)], id="it does not serve"),
        pytest.param([NEW], id="nothing to go back to"),
        pytest.param([replace(STABLE, launchable=False), NEW], id="nothing that could be started"),
    ],
)
def test_else_it_is_tried_on(versions: list[Candidate]) -> None:
    assert decide_rollback(versions, now=NOW, grace_seconds=30) == []
