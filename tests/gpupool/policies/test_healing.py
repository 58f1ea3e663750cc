"""What is done about devices in trouble: the strongest, within budgets, never twice at once, never to others' work."""

from dataclasses import replace
from typing import Any, Final
from uuid import UUID

import pytest

from gpupool.policies.findings import Event
from gpupool.policies.healing import decide
from gpupool.policies.healing_world import (
    Attempt,
    DeviceState,
    Isolation,
    Occupant,
    Plan,
    Rules,
    Standing,
    World,
)
from gpupool.policies.remedy import Remedy
from gpupool.policies.way_back import why_out

NODE, DEVICE = UUID(int=1), UUID(int=2)
ONE, TWO = UUID(int=11), UUID(int=12)
NOW: Final = 10_000.0
ON: Final = Rules(hardware=True)
OFF: Final = Rules()


def a_device(**more: Any) -> DeviceState:
    given: dict[str, Any] = {
        "device_id": DEVICE,
        "node_id": NODE,
        "label": "node-1/gpu-0",
        "occupants": (Occupant(ONE, 71, True), Occupant(TWO, 72, False)),
    }
    return DeviceState(**given | more)


def an_event(code: int | None = None, *, kind: str = "xid", number: int = 1, device: UUID | None = DEVICE,
             node: UUID = NODE, at: float = NOW, text: str = "", **data: str) -> Event:  # fmt: skip
    return Event(UUID(int=1000 + number), node, device, kind, at, code, text, data)


def an_attempt(remedy: Remedy, state: Standing = Standing.DONE, *, at: float = NOW - 300, ended_at: float | None = None,
               device: UUID | None = DEVICE, node: UUID = NODE, number: int = 1) -> Attempt:  # fmt: skip
    over = at + 1 if state in (Standing.DONE, Standing.FAILED) and ended_at is None else ended_at
    return Attempt(UUID(int=5000 + number), node, device, remedy, state, at, over)


def look(*events: Event, devices: tuple[DeviceState, ...] | None = None, attempts: tuple[Attempt, ...] = (),
         rules: Rules = ON, now: float = NOW, **more: Any) -> Plan:  # fmt: skip
    world = World(now, events, (), devices if devices is not None else (a_device(),), attempts, **more)
    return decide(world, rules)


def only(plan: Plan) -> Any:
    (decision,) = plan.decisions
    return decision


def test_an_application_error_restarts_the_engine_whose_process_it_names() -> None:
    named = only(look(an_event(31, pid="72")))
    assert (named.remedy, named.instances) == (Remedy.RESTART_APP, (TWO,))
    by_instance = only(look(an_event(31, instance_id=str(ONE))))
    assert by_instance.instances == (ONE,)
    assert "XID 31" in named.reason
    assert named.reason.endswith("restarted.")


def test_an_error_that_names_nobody_ends_only_engines_that_do_not_answer() -> None:
    assert only(look(an_event(13))).instances == (TWO,)
    well = a_device(occupants=(Occupant(ONE, 71, True),))
    plan = look(an_event(13), devices=(well,))
    assert not plan.decisions
    assert "left alone" in plan.noted[0].reason


def test_an_error_of_somebody_elses_process_ends_none_of_ours() -> None:
    plan = look(an_event(13, pid="4711"))
    assert not plan.decisions
    assert "none of ours" in plan.noted[0].reason


def test_the_strongest_of_several_errors_is_done_and_the_driver_is_asked_first() -> None:
    plan = look(an_event(13, number=1), an_event(48, number=2), an_event(31, number=3))
    assert only(plan).remedy is Remedy.RESET
    assert len(only(plan).events) == 3
    asked = only(look(an_event(46), devices=(a_device(driver="GPU Reset Required"),)))
    assert asked.reason.startswith("The driver asks for reset_gpu.")
    rebooted = only(look(an_event(46), devices=(a_device(driver="Node Reboot Required"),)))
    assert rebooted.remedy is Remedy.REBOOT
    weaker = only(look(an_event(79), devices=(a_device(driver="Drain P2P"),)))
    assert weaker.remedy is Remedy.REBOOT


def test_what_a_driver_asks_for_is_done_without_an_event_and_only_once() -> None:
    plan = look(devices=(a_device(driver="reset"),))
    assert only(plan).remedy is Remedy.RESET
    again = look(devices=(a_device(driver="reset"),), attempts=(an_attempt(Remedy.RESET),))
    assert not again.decisions


def test_a_shared_device_is_never_reset_its_own_processes_end_and_then_it_is_isolated() -> None:
    shared = a_device(shared=True)
    first = only(look(an_event(48), devices=(shared,)))
    assert (first.remedy, first.instances) == (Remedy.END_PROCESSES, (ONE, TWO))
    second = only(look(an_event(48), devices=(shared,), attempts=(an_attempt(Remedy.END_PROCESSES),)))
    assert second.remedy is Remedy.ISOLATE


@pytest.mark.parametrize(
    ("done", "following"),
    [
        ([Remedy.RESTART_APP] * 2, Remedy.RESTART_APP),
        ([Remedy.RESTART_APP] * 3, Remedy.DRAIN_RESET),
        ([*[Remedy.RESTART_APP] * 3, Remedy.DRAIN_RESET], Remedy.REBOOT),
        ([*[Remedy.RESTART_APP] * 3, Remedy.DRAIN_RESET, Remedy.REBOOT], Remedy.ISOLATE),
    ],
)
def test_an_error_that_comes_back_goes_up_rung_by_rung(done: list[Remedy], following: Remedy) -> None:
    attempts = tuple(an_attempt(remedy, at=NOW - 900 + 60 * n, number=n) for n, remedy in enumerate(done))
    decision = only(look(an_event(31, pid="71"), attempts=attempts))
    assert decision.remedy is following
    long_ago = tuple(replace(a, at=a.at - 7200, ended_at=NOW - 7200) for a in attempts)
    assert only(look(an_event(31, pid="71"), attempts=long_ago)).remedy is Remedy.RESTART_APP


def test_a_failed_action_is_followed_by_the_next_without_a_new_error() -> None:
    failed, out = (
        an_attempt(Remedy.RESET, Standing.FAILED),
        a_device(isolation=Isolation.HEALING, isolated_at=NOW - 300),
    )
    assert only(look(devices=(out,), attempts=(failed,))).remedy is Remedy.REBOOT
    begun = an_attempt(Remedy.REBOOT, Standing.PENDING, at=NOW - 1, number=2)
    assert not look(devices=(out,), attempts=(failed, begun)).decisions


@pytest.mark.shows("P15")
@pytest.mark.parametrize("remedy", [Remedy.RESET, Remedy.REBOOT, Remedy.END_PROCESSES])
def test_a_device_that_was_given_back_is_not_taken_out_again_for_what_failed_before(remedy: Remedy) -> None:
    assert not look(devices=(a_device(),), attempts=(an_attempt(remedy, Standing.FAILED),)).decisions


def test_one_restart_of_a_node_is_enough_for_all_its_devices() -> None:
    done = an_attempt(Remedy.REBOOT, device=UUID(int=50), at=NOW - 300, ended_at=NOW - 10)
    plan = look(an_event(79, at=NOW - 299), attempts=(done,))
    assert not plan.decisions
    assert "restarted since" in plan.noted[0].reason
    assert only(look(an_event(79, at=NOW), attempts=(replace(done, ended_at=NOW - 60),))).remedy is Remedy.ISOLATE
    of_another = replace(done, node_id=UUID(int=77), at=NOW - 700)
    assert only(look(an_event(79, at=NOW - 299), attempts=(of_another,))).remedy is Remedy.REBOOT


def test_an_engine_that_outgrew_its_lease_is_no_reason_to_reset_a_device() -> None:
    often = tuple(an_attempt(Remedy.REBUILD, at=NOW - 900 + 60 * n, number=n) for n in range(5))
    decision = only(look(an_event(kind="evicted", instance_id=str(ONE)), attempts=often))
    assert (decision.remedy, decision.instances) == (Remedy.REBUILD, (ONE,))
    assert only(look(an_event(4711, pid="71"), attempts=often)).remedy is Remedy.DRAIN_RESET


def test_one_action_at_a_time_on_a_node() -> None:
    other = a_device(device_id=UUID(int=3), label="node-1/gpu-1", occupants=())
    both = look(an_event(48), an_event(48, number=2, device=other.device_id), devices=(a_device(), other))
    assert len(both.decisions) == 1
    assert "one at a time" in both.held[0].reason
    running = an_attempt(Remedy.RESET, Standing.RUNNING, device=other.device_id)
    waiting = look(an_event(48), devices=(a_device(), other), attempts=(running,))
    assert not waiting.decisions
    assert waiting.held


def test_a_stronger_action_replaces_a_weaker_one_that_has_not_begun() -> None:
    pending = an_attempt(Remedy.DRAIN_RESET, Standing.PENDING)
    decision = only(look(an_event(79), attempts=(pending,)))
    assert (decision.remedy, decision.supersedes) == (Remedy.REBOOT, (pending.action_id,))
    held = look(an_event(79), attempts=(replace(pending, state=Standing.RUNNING),))
    assert not held.decisions
    assert "waited for" in held.held[0].reason
    weaker = look(an_event(13), attempts=(pending,))
    assert not weaker.decisions
    assert "seen to already" in weaker.noted[0].reason


def test_errors_right_after_an_action_are_its_aftermath() -> None:
    done = an_attempt(Remedy.RESET, at=NOW - 20, ended_at=NOW - 10)
    assert "aftermath" in look(an_event(48), attempts=(done,)).noted[0].reason
    assert only(look(an_event(79), attempts=(done,))).remedy is Remedy.REBOOT  # it asks for more


def test_with_hardware_actions_off_they_are_written_down_and_an_unusable_device_is_taken_out() -> None:
    plan = look(an_event(48), rules=OFF)
    in_words, out = plan.decisions
    assert (in_words.remedy, in_words.dry_run) == (Remedy.RESET, True)
    assert (out.remedy, out.dry_run, out.instances) == (Remedy.ISOLATE, False, (ONE, TWO))
    assert "switched off" in out.reason
    drained = only(look(an_event(74), rules=OFF))
    assert (drained.remedy, drained.dry_run) == (Remedy.DRAIN_RESET, True)
    again = look(an_event(74), rules=OFF, attempts=(an_attempt(Remedy.DRAIN_RESET, Standing.DRY_RUN),))
    assert not again.decisions
    assert "written down already" in again.noted[0].reason


def test_budgets_of_a_node_end_in_isolation_or_in_waiting() -> None:
    resets = tuple(an_attempt(Remedy.RESET, device=UUID(int=50 + n), at=NOW - 700 - n, number=n) for n in range(4))
    spent = only(look(an_event(48), attempts=resets))
    assert spent.remedy is Remedy.ISOLATE
    assert "budget" in spent.reason
    reboot = an_attempt(Remedy.REBOOT, device=UUID(int=50), at=NOW - 700)
    assert only(look(an_event(79), attempts=(reboot,))).remedy is Remedy.ISOLATE
    restarts = tuple(
        an_attempt(Remedy.RESTART_APP, device=UUID(int=60 + n), at=NOW - 700 - n, number=n) for n in range(24)
    )
    waits = look(an_event(31, pid="71"), attempts=restarts)
    assert not waits.decisions
    assert "budget" in waits.held[0].reason


def test_many_nodes_in_trouble_at_once_brake_and_are_seen_to_later() -> None:
    devices = tuple(a_device(device_id=UUID(int=20 + n), node_id=UUID(int=200 + n)) for n in range(4))
    events = [
        an_event(48, number=n, device=device.device_id, node=device.node_id) for n, device in enumerate(devices[:2])
    ]
    braked = look(*events, devices=devices)
    assert braked.braked
    assert not braked.decisions
    assert {event for held in braked.held for event in held.events} == {event.event_id for event in events}
    assert len(look(events[0], devices=devices).decisions) == 1
    later = look(*events, devices=devices, now=NOW + 601)
    assert not later.braked
    assert len(later.decisions) == 2
    # An application's error is nobody's reason to brake.
    soft = [replace(event, code=31, data={"pid": "71"}) for event in events]
    assert len(look(*soft, devices=devices).decisions) == 2
    assert look(events[0], devices=devices, mass_failure=True).braked


def test_an_action_whose_end_nobody_tells_has_failed() -> None:
    silent = an_attempt(Remedy.RESET, Standing.RUNNING, at=NOW - 901, ended_at=None)
    assert look(attempts=(silent,)).overdue == (silent.action_id,)


def test_a_person_who_took_a_device_out_is_left_alone() -> None:
    plan = look(an_event(79), devices=(a_device(isolation=Isolation.PERSON),))
    assert not plan.decisions
    assert "person" in plan.noted[0].reason


def test_a_waiting_row_remap_resets_a_device_that_nothing_runs_on() -> None:
    idle = a_device(remap_pending=True, idle=True, occupants=())
    assert only(look(devices=(idle,))).remedy is Remedy.DRAIN_RESET
    assert not look(devices=(replace(idle, idle=False),)).decisions
    assert not look(devices=(idle,), rules=OFF).decisions


@pytest.mark.shows("P15")
@pytest.mark.parametrize(
    ("device", "attempts", "why"),
    [
        (a_device(), (), None),
        (a_device(isolated_at=NOW - 300), (), "watched"),
        (a_device(isolated_at=NOW - 100), (an_attempt(Remedy.RESET, at=NOW - 90, ended_at=NOW - 70),), None),
        (a_device(isolated_at=NOW - 100, rebooted=True), (), None),
        (a_device(healthy=False), (), "driver does not say"),
        (a_device(driver="GPU Reset Required"), (), "still asks"),
        (a_device(), (an_attempt(Remedy.RESET, Standing.RUNNING),), "being done"),
        (a_device(), tuple(an_attempt(Remedy.ISOLATE, at=NOW - 9000 - n, number=n) for n in range(4)), "a person"),
        (a_device(isolation=Isolation.SUPPORT), (), "support"),
        (a_device(isolation=Isolation.PERSON), (), "person"),
    ],
)
def test_a_device_that_is_well_again_comes_back(
    device: DeviceState, attempts: tuple[Attempt, ...], why: str | None
) -> None:
    isolation = device.isolation or Isolation.HEALING
    out_at = device.isolated_at if device.isolated_at is not None else NOW - 5000
    device = replace(device, isolation=isolation, isolated_at=out_at, occupants=())
    said = why_out(device, attempts, ON, now=NOW)
    plan = look(devices=(device,), attempts=attempts, rules=OFF)
    if why is None:
        assert said is None
        assert [back.device_id for back in plan.give_back] == [DEVICE]
    else:
        assert said is not None
        assert why in said
        assert not plan.give_back


@pytest.mark.parametrize(("code", "back"), [(48, False), (31, False), (63, True), (92, True)])
def test_an_error_begins_the_watch_anew_and_what_asks_for_nothing_does_not(code: int, back: bool) -> None:
    out = a_device(isolation=Isolation.HEALING, isolated_at=NOW - 5000, occupants=())
    world = World(NOW, (), (an_event(code, at=NOW - 500),), (out,), ())
    assert bool(decide(world, OFF).give_back) is back
    later = replace(world, recent=(an_event(code, at=NOW - 601),))
    assert decide(later, OFF).give_back


def test_an_error_keeps_a_device_out() -> None:
    out = a_device(isolation=Isolation.HEALING, isolated_at=NOW - 5000)
    plan = look(an_event(48), devices=(out,), rules=OFF, attempts=(an_attempt(Remedy.RESET, Standing.DRY_RUN),))
    assert not plan.give_back
