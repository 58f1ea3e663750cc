"""Moves that are proposed: off what is under pressure or in maintenance, onto what stays easy."""

from dataclasses import replace
from uuid import UUID

import pytest

from gpupool.policies.rebalance import propose
from tests.gpupool.policies.placement.pools import GIB, a_claim, a_device, a_need, a_node, claimed

NEEDS = {UUID(int=number): a_need(20) for number in range(1, 20)}


@pytest.mark.shows("R121")
def test_the_least_important_goes_and_no_more_than_needed() -> None:
    full = claimed(a_device(1), a_claim(1, 20), a_claim(2, 20, priority=-1), a_claim(3, 20))
    full = replace(full, used_bytes=76 * GIB)
    free = a_device(2, used_bytes=10 * GIB)
    (move,) = propose([full, free], NEEDS)
    assert (move.instance_id, move.to_device) == (UUID(int=2), free.device_id)
    assert (move.from_share, move.to_share) == (56 / 80, 30 / 80)


def test_a_move_does_not_make_the_next_one() -> None:
    full = replace(claimed(a_device(1), a_claim(1, 20)), used_bytes=76 * GIB)
    assert propose([full, a_device(2, used_bytes=50 * GIB)], NEEDS) == []


def test_what_is_not_measured_is_neither_pressed_nor_a_target() -> None:
    pressed = replace(claimed(a_device(1), a_claim(1, 20)), used_bytes=76 * GIB)
    unmeasured = claimed(a_device(2, used_bytes=None), a_claim(2, 70))
    assert propose([pressed, unmeasured, a_device(3, used_bytes=None)], NEEDS) == []


def test_all_of_a_node_in_maintenance_moves() -> None:
    node = a_node(1, maintenance=True)
    leaving = [claimed(a_device(n, node=node, used_bytes=GIB), a_claim(n, 20)) for n in (1, 2)]
    moves = propose([*leaving, a_device(9, node=a_node(2), used_bytes=0)], NEEDS)
    assert [move.instance_id for move in moves] == [UUID(int=1), UUID(int=2)]
    assert moves[0].reason == "Node node-1 is in maintenance."


def test_instances_over_several_devices_and_unknown_holders_stay() -> None:
    full = replace(claimed(a_device(1), a_claim(1, 20), a_claim(99, 20)), used_bytes=78 * GIB)
    assert propose([full, a_device(2, used_bytes=0)], {UUID(int=1): a_need(20, devices=2)}) == []


def test_no_more_than_asked_for() -> None:
    node = a_node(1, maintenance=True)
    leaving = [claimed(a_device(n, node=node, used_bytes=GIB), a_claim(n, 20)) for n in (1, 2, 3)]
    assert len(propose([*leaving, a_device(9, node=a_node(2), used_bytes=0)], NEEDS, most=2)) == 2
