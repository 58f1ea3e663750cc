"""The reconcile policy, case by case."""

from dataclasses import replace
from uuid import UUID

import pytest

from gpupool.policies.instance import State
from gpupool.policies.placement import ClaimView
from gpupool.policies.reconcile import (
    Explain,
    MarkNodeUnreachable,
    MarkUnknown,
    NodeView,
    Place,
    Request,
    Stop,
    World,
    backoff_seconds,
    is_mass_failure,
    reconcile,
)
from tests.gpupool.policies.worlds import NOW, RULES, a_device, a_node, a_version, a_world, an_instance


def test_what_tenants_acquire_is_kept_beside_the_replicas() -> None:
    """Neither counted nor stopped as too many; it ends where it fails or its version serves no more."""
    replica, acquired = an_instance(1, State.READY), an_instance(2, State.ASLEEP, pooled=True)
    assert reconcile(a_world(a_version(1), replica, acquired), RULES).actions == ()
    assert reconcile(a_world(a_version(0), acquired), RULES).actions == ()
    (requested,) = reconcile(a_world(a_version(1), acquired), RULES).actions
    assert isinstance(requested, Request)
    for version, instance, says in (
        (a_version(0, serving=False), acquired, "m v1 serves no more."),
        (a_version(0), an_instance(2, State.FAILED, age=31.0, pooled=True, reason="No."), "It failed: No."),
    ):
        assert reconcile(a_world(version, instance), RULES).actions == (Stop(instance.instance_id, says),)
    waiting = an_instance(2, State.REQUESTED, node=None, pooled=True)
    (placed,) = reconcile(a_world(a_version(0), waiting), RULES).actions
    assert isinstance(placed, Place)


def test_a_missing_replica_is_asked_for() -> None:
    plan = reconcile(a_world(a_version(2), an_instance(1, State.READY)), RULES)
    assert [type(action) for action in plan.actions] == [Request]


def test_a_waiting_instance_is_placed() -> None:
    plan = reconcile(a_world(a_version(1), an_instance(1, State.REQUESTED, node=None)), RULES)
    assert plan.actions == (Place(UUID(int=1), (UUID(int=1),)),)


def test_two_waiting_instances_do_not_count_on_the_same_bytes() -> None:
    waiting = [an_instance(n, State.REQUESTED, node=None) for n in (1, 2, 3)]
    plan = reconcile(a_world(a_version(3), *waiting, devices=(a_device(1),)), RULES)
    assert [type(action) for action in plan.actions] == [Place, Place, Explain]


def test_surplus_is_stopped_the_newest_first_and_what_serves_stays() -> None:
    world = a_world(
        a_version(1), an_instance(1, State.LOADING), an_instance(2, State.READY), an_instance(3, State.READY)
    )
    stopped = [action.instance_id for action in reconcile(world, RULES).actions if isinstance(action, Stop)]
    assert stopped == [UUID(int=3), UUID(int=1)]


def test_a_failed_instance_has_a_grace_and_is_then_replaced() -> None:
    young = a_world(a_version(1), an_instance(1, State.FAILED, age=1.0))
    plan = reconcile(young, RULES)
    assert plan.actions == ()
    assert plan.wake_at == NOW - 1.0 + RULES.failed_grace_seconds
    old = a_world(a_version(1), an_instance(1, State.FAILED, age=RULES.failed_grace_seconds))
    assert [type(action) for action in reconcile(old, RULES).actions] == [Stop, Request]


@pytest.mark.parametrize(("failures", "seconds"), [(0, 0.0), (1, 5.0), (2, 10.0), (3, 20.0), (60, 300.0)])
def test_replacements_wait_longer_each_time_they_fail(failures: int, seconds: float) -> None:
    assert backoff_seconds(failures, RULES) == seconds


def test_a_version_that_keeps_failing_waits_and_is_tried_one_at_a_time() -> None:
    waits = a_version(3, failures=2, last_failure_at=NOW - 1.0)
    plan = reconcile(a_world(waits), RULES)
    assert plan.actions == ()
    assert plan.wake_at == NOW + 9.0
    due = a_version(3, failures=2, last_failure_at=NOW - 10.0)
    assert [type(action) for action in reconcile(a_world(due), RULES).actions] == [Request]


def test_an_instance_of_a_silent_node_that_still_answers_stays_in_service() -> None:
    nodes = (a_node(1, alive=False), a_node(2), a_node(3))
    answering = an_instance(1, State.READY, answers=True)
    plan = reconcile(a_world(a_version(1), answering, nodes=nodes), RULES)
    assert [type(action) for action in plan.actions] == [MarkNodeUnreachable]
    plan = reconcile(a_world(a_version(1), replace(answering, answers=False), nodes=nodes), RULES)
    assert [type(action) for action in plan.actions] == [MarkNodeUnreachable, MarkUnknown]


def test_an_unknown_instance_is_replaced_elsewhere_after_the_grace_and_never_on_its_own_node() -> None:
    nodes = (a_node(1, alive=False), a_node(2), a_node(3))
    devices = (a_device(1, node_alive=False), a_device(2))
    early = an_instance(1, State.UNKNOWN, age=RULES.unknown_grace_seconds - 1)
    assert not any(
        isinstance(action, Request | Stop)
        for action in reconcile(a_world(a_version(1), early, nodes=nodes, devices=devices), RULES).actions
    )
    late = an_instance(1, State.UNKNOWN, age=RULES.unknown_grace_seconds)
    plan = reconcile(a_world(a_version(1), late, nodes=nodes, devices=devices), RULES)
    assert [type(action) for action in plan.actions] == [MarkNodeUnreachable, Request]
    placed = reconcile(
        a_world(a_version(1), late, an_instance(2, State.REQUESTED, node=None), nodes=nodes, devices=devices), RULES
    )
    assert Place(UUID(int=2), (UUID(int=2),)) in placed.actions


def test_an_engine_that_hangs_for_a_while_is_not_replaced_and_of_two_one_stays() -> None:
    """The agent calls it unknown after five probes, about 15 s; the node is there and speaks."""
    hung = an_instance(1, State.UNKNOWN, age=25.0)
    assert reconcile(a_world(a_version(1), hung), RULES).actions == ()
    back, coming = an_instance(1, State.READY), an_instance(2, State.LOADING)
    for late in (coming, replace(coming, state=State.REQUESTED, node_id=None)):
        plan = reconcile(a_world(a_version(1), late, back), RULES)
        assert [action.instance_id for action in plan.actions if isinstance(action, Stop)] == [UUID(int=2)]
    # Back after its replacement has come, it must not take that one's place: what hung may hang again.
    plan = reconcile(a_world(a_version(1), an_instance(2, State.READY, age=5.0), back), RULES)
    assert [action.instance_id for action in plan.actions if isinstance(action, Stop)] == [UUID(int=1)]
    # Started again by its agent after its replacement has come: it goes, and gives its claim back.
    again = an_instance(1, State.LOADING)
    plan = reconcile(a_world(a_version(1), again, replace(coming, state=State.READY)), RULES)
    assert [action.instance_id for action in plan.actions if isinstance(action, Stop)] == [UUID(int=1)]


@pytest.mark.shows("P9")
def test_when_most_nodes_fall_silent_at_once_nothing_is_moved() -> None:
    nodes = (a_node(1, alive=False), a_node(2, alive=False), a_node(3))
    lost = [an_instance(n, State.UNKNOWN, node=n, age=10 * RULES.unknown_grace_seconds) for n in (1, 2)]
    plan = reconcile(a_world(a_version(2), *lost, nodes=nodes), RULES)
    assert plan.mass_failure
    assert {type(action) for action in plan.actions} == {MarkNodeUnreachable}


@pytest.mark.parametrize(
    ("alive", "brake"),
    [("", False), ("1", False), ("0", True), ("011", False), ("0111", False), ("0011", True), ("00111", False)],
)
def test_a_mass_failure_is_all_nodes_or_at_least_two_and_half(alive: str, brake: bool) -> None:
    nodes = [a_node(n, alive=flag == "1") for n, flag in enumerate(alive, start=1)]
    assert is_mass_failure(nodes, share=0.5) is brake


def test_a_node_that_never_connected_is_no_failure() -> None:
    expected = NodeView(UUID(int=9), "later", connected=False, alive=False, ever_connected=False)
    assert not is_mass_failure([a_node(1), expected], share=0.5)
    assert reconcile(a_world(a_version(0), nodes=(a_node(1), expected)), RULES).actions == ()


def test_no_replicas_stops_even_what_is_unknown() -> None:
    plan = reconcile(a_world(a_version(0), an_instance(1, State.UNKNOWN), an_instance(2, State.FAILED)), RULES)
    assert [action.instance_id for action in plan.actions if isinstance(action, Stop)] == [UUID(int=1), UUID(int=2)]


def in_maintenance(number: int) -> NodeView:
    return replace(a_node(number), maintenance=True)


def stopped_and_asked(world: World) -> tuple[list[int], int]:
    actions = reconcile(world, RULES).actions
    stopped = [action.instance_id.int for action in actions if isinstance(action, Stop)]
    return stopped, sum(isinstance(action, Request) for action in actions)


def test_what_runs_on_a_node_in_maintenance_is_replaced_elsewhere_first_and_stopped_then() -> None:
    nodes = (in_maintenance(1), a_node(2))
    serving = an_instance(1, State.READY, node=1)
    assert stopped_and_asked(a_world(a_version(1), serving, nodes=nodes)) == ([], 1)
    coming = an_instance(2, State.LOADING, node=2)
    assert stopped_and_asked(a_world(a_version(1), serving, coming, nodes=nodes)) == ([], 0)
    come = replace(coming, state=State.READY)
    assert stopped_and_asked(a_world(a_version(1), serving, come, nodes=nodes)) == ([1], 0)


def test_where_there_is_no_room_elsewhere_it_goes_on_serving() -> None:
    nodes = (in_maintenance(1), a_node(2))
    waiting = an_instance(2, State.REQUESTED, node=None)
    world = a_world(a_version(1), an_instance(1, State.READY, node=1), waiting, nodes=nodes, devices=())
    assert stopped_and_asked(world) == ([], 0)


def test_of_several_as_many_end_as_serve_elsewhere_and_what_does_not_serve_ends_at_once() -> None:
    nodes = (in_maintenance(1), a_node(2))
    moving = [an_instance(n, State.READY, node=1, age=float(n)) for n in (1, 2)]
    elsewhere = an_instance(3, State.READY, node=2)
    loading = an_instance(4, State.LOADING, node=1)
    assert stopped_and_asked(a_world(a_version(3), *moving, elsewhere, loading, nodes=nodes)) == ([4], 2)
    assert stopped_and_asked(a_world(a_version(2), *moving, elsewhere, nodes=nodes)) == ([1], 1)


def test_a_node_that_comes_back_from_maintenance_gets_nothing_stopped_that_is_wanted() -> None:
    both = [an_instance(1, State.READY, node=1), an_instance(2, State.LOADING, node=2)]
    assert stopped_and_asked(a_world(a_version(1), *both)) == ([2], 0)


def test_nobody_goes_for_what_failed_the_last_time() -> None:
    """A version that does not start would else send others away again and again."""
    full = replace(a_device(1), claimed_bytes=20, claims=(ClaimView(UUID(int=7), 20, priority=-1),))
    waiting = an_instance(1, State.REQUESTED, node=None)
    fresh = reconcile(a_world(a_version(1), waiting, devices=(full,)), RULES)
    assert Stop(UUID(int=7), "It makes room for m v1.") in fresh.actions
    failing = reconcile(a_world(a_version(1, failures=1), waiting, devices=(full,)), RULES)
    assert [type(action) for action in failing.actions] == [Explain]
