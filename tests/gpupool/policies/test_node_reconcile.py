"""What an agent decides about its engines: a table, and invariants over random states."""

from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpupool.policies.node_reconcile import (
    ALLOWED,
    LONGEST_RESTART_DELAY_SECONDS,
    STARTING,
    Action,
    Forget,
    Ignore,
    Known,
    Phase,
    Start,
    Stop,
    Wish,
    decide,
    next_due,
    restart_delay_seconds,
)

A, B, C = UUID(int=1), UUID(int=2), UUID(int=3)
NOW = 100.0


def wish(
    instance: UUID = A,
    *,
    running: bool = True,
    token: int = 1,
    device: str = "gpu0",
    whole: bool = False,
    asleep: bool = False,
    barred: str = "",
) -> Wish:
    return Wish(
        instance,
        running and not asleep,
        token,
        frozenset({device}),
        drain_seconds=30.0,
        whole_device=whole,
        asleep=asleep,
        barred=barred,
    )


def engine(
    instance: UUID = A,
    phase: Phase = Phase.READY,
    *,
    alive: bool = True,
    token: int = 1,
    device: str = "gpu0",
    start_after: float | None = 0.0,
    idle: bool = False,
    settling: bool = False,
) -> Known:
    return Known(instance, token, frozenset({device}), phase, alive, start_after, idle, settling)


def decided(
    wishes: list[Wish] | None, known: list[Known], *, connected: bool = True, fences: dict[str, int] | None = None
) -> list[Action]:
    return decide(wishes, known, connected=connected, now=NOW, fences=fences or {})


def kinds(actions: list[Action]) -> list[tuple[str, UUID]]:
    return [(type(action).__name__, action.instance_id) for action in actions]


@pytest.mark.parametrize(
    ("wishes", "known", "expected"),
    [
        pytest.param([], [], [], id="nothing is asked, nothing runs"),
        pytest.param([wish()], [], [("Start", A)], id="asked for and not there: started"),
        pytest.param([wish()], [engine()], [], id="asked for and there: kept"),
        pytest.param([], [engine()], [], id="a missing row stops nothing"),
        pytest.param(None, [engine(alive=False)], [], id="nothing heard yet: nothing done"),
        pytest.param([wish(running=False)], [engine()], [("Stop", A)], id="a stop row stops it"),
        pytest.param([wish(running=False)], [engine(phase=Phase.DRAINING)], [], id="it is told to stop once"),
        pytest.param(
            [wish(running=False)],
            [engine(phase=Phase.STAGING, alive=False)],
            [("Stop", A)],
            id="also between two starts",
        ),
        pytest.param([wish(running=False)], [], [], id="what does not run need not be stopped"),
        pytest.param([wish(running=False)], [engine(phase=Phase.STOPPED, alive=False)], [], id="stopped is remembered"),
        pytest.param([], [engine(phase=Phase.STOPPED, alive=False)], [("Forget", A)], id="until its row is gone"),
        pytest.param([], [engine(phase=Phase.FAILED, alive=False)], [("Forget", A)], id="a failed one too"),
        pytest.param([wish(token=2)], [engine(token=1)], [("Stop", A)], id="a higher token takes the lease away"),
        pytest.param(
            [wish(token=2)],
            [engine(phase=Phase.STOPPED, alive=False, token=1)],
            [("Start", A)],
            id="and starts it anew once the old process is gone",
        ),
        pytest.param([wish(token=1)], [engine(token=2)], [("Ignore", A)], id="a lower token is ignored"),
        pytest.param([wish(token=1, running=False)], [engine(token=2)], [], id="also when it says stop"),
        pytest.param(
            [wish(B, token=5)], [engine(A, token=1)], [("Stop", A)], id="its device was given to a newer claim"
        ),
        pytest.param([wish(B, token=1)], [engine(A, token=5)], [("Start", B)], id="an older claim takes nothing away"),
        pytest.param(
            [wish(B, token=5, device="gpu1")], [engine(A, token=1)], [("Start", B)], id="another device: no conflict"
        ),
        pytest.param(
            [wish(A, token=1), wish(B, token=5)], [engine(A, token=1)], [("Start", B)], id="claims may share a device"
        ),
        pytest.param(
            [wish()], [engine(phase=Phase.STAGING, alive=False, start_after=NOW + 1)], [], id="back-off is kept"
        ),
        pytest.param(
            [wish()], [engine(phase=Phase.STAGING, alive=False, start_after=NOW)], [("Start", A)], id="and ends"
        ),
        pytest.param(
            [wish()], [engine(phase=Phase.FAILED, alive=False, start_after=None)], [], id="hopeless: not tried again"
        ),
        pytest.param(
            [wish(token=2)],
            [engine(phase=Phase.FAILED, alive=False, start_after=None, token=1)],
            [("Start", A)],
            id="until its row changes",
        ),
    ],
)
def test_decisions(wishes: list[Wish] | None, known: list[Known], expected: list[tuple[str, UUID]]) -> None:
    assert kinds(decided(wishes, known)) == expected


@pytest.mark.parametrize("known", [[], [engine(alive=False)]])
def test_nothing_is_started_while_the_web_process_is_away(known: list[Known]) -> None:
    assert decided([wish()], known, connected=False) == []


def test_a_stop_that_was_read_is_carried_out_while_the_web_process_is_away() -> None:
    assert kinds(decided([wish(running=False)], [engine()], connected=False)) == [("Stop", A)]


@pytest.mark.parametrize(
    ("wishes", "known", "expected"),
    [
        pytest.param([wish(asleep=True)], [engine()], [], id="one with requests goes on"),
        pytest.param([wish(asleep=True)], [engine(idle=True)], [("Sleep", A)], id="an idle one sleeps"),
        pytest.param([wish(asleep=True)], [engine(idle=True, settling=True)], [], id="it is told once"),
        pytest.param([wish(asleep=True)], [engine(phase=Phase.ASLEEP)], [], id="and then it sleeps"),
        pytest.param([wish(asleep=True)], [engine(phase=Phase.LOADING)], [], id="one that comes up comes up first"),
        pytest.param([wish(asleep=True)], [], [("Stage", A)], id="one without a process is staged"),
        pytest.param(
            [wish(asleep=True)], [engine(phase=Phase.FAILED, alive=False)], [("Stage", A)], id="also one that failed"
        ),
        pytest.param([wish(asleep=True)], [engine(phase=Phase.ASLEEP, alive=False)], [], id="it is staged once"),
        pytest.param([wish()], [engine(phase=Phase.ASLEEP)], [("Wake", A)], id="asked for again: woken"),
        pytest.param([wish()], [engine(phase=Phase.ASLEEP, alive=False)], [("Start", A)], id="a staged one is started"),
        pytest.param([], [engine(phase=Phase.ASLEEP)], [], id="a missing row neither stops nor wakes it"),
        pytest.param([wish(running=False)], [engine(phase=Phase.ASLEEP)], [("Stop", A)], id="a stop row stops it"),
        pytest.param([wish(asleep=True, token=1)], [engine(token=2, idle=True)], [], id="an older row does nothing"),
        pytest.param([wish(asleep=True, token=2)], [engine(idle=True)], [("Stop", A)], id="a newer claim is another's"),
        pytest.param([wish(barred="no")], [], [("Ignore", A)], id="barred: not started"),
        pytest.param([wish(barred="no")], [engine(phase=Phase.ASLEEP)], [("Ignore", A)], id="barred: not woken"),
        pytest.param([wish(barred="no")], [engine()], [], id="barred: what serves goes on"),
    ],
)
def test_sleep_and_waking(wishes: list[Wish], known: list[Known], expected: list[tuple[str, UUID]]) -> None:
    assert kinds(decided(wishes, known)) == expected


@pytest.mark.shows("P13")
def test_nothing_sleeps_or_wakes_while_the_web_process_is_away() -> None:
    assert decided([wish(asleep=True)], [engine(idle=True)], connected=False) == []
    assert decided([wish()], [engine(phase=Phase.ASLEEP)], connected=False) == []


def test_what_changes_a_devices_memory_does_so_alone() -> None:
    asleep, starts = wish(A, token=1, asleep=True), wish(B, token=2)
    loading = engine(B, Phase.LOADING, token=2)
    assert decided([asleep, starts], [engine(A, idle=True), loading]) == []  # memory must not come back meanwhile
    assert decided([wish(A), starts], [engine(A, Phase.ASLEEP), loading]) == []  # nor go
    assert kinds(decided([asleep, starts], [engine(A, idle=True)])) == [("Sleep", A)]
    assert decided([asleep, starts], [engine(A, idle=True, settling=True)]) == []
    assert kinds(decided([asleep, starts], [engine(A, Phase.ASLEEP)])) == [("Start", B)]
    assert kinds(decided([wish(A), wish(B)], [engine(A, Phase.ASLEEP), engine(B, Phase.ASLEEP)])) == [("Wake", A)]


def test_a_stop_row_drains_and_a_fenced_engine_does_not() -> None:
    (asked,) = decided([wish(running=False)], [engine()])
    (fenced,) = decided([wish(token=2)], [engine()])
    assert isinstance(asked, Stop)
    assert isinstance(fenced, Stop)
    assert (asked.drain_seconds, fenced.drain_seconds) == (30.0, 0.0)


def test_engines_start_one_after_the_other_on_a_device() -> None:
    assert kinds(decided([wish(A, token=1), wish(B, token=2)], [])) == [("Start", A)]
    assert decided([wish(A, token=1), wish(B, token=2)], [engine(A, Phase.LOADING)]) == []
    assert kinds(decided([wish(A, token=1), wish(B, token=2)], [engine(A)])) == [("Start", B)]
    assert kinds(decided([wish(A, token=1), wish(B, token=2, device="gpu1")], [])) == [("Start", A), ("Start", B)]


@pytest.mark.shows("P11")
def test_a_whole_device_is_not_taken_with_an_old_token() -> None:
    assert kinds(decided([wish(token=3, whole=True)], [], fences={"gpu0": 4})) == [("Ignore", A)]
    assert kinds(decided([wish(token=4, whole=True)], [], fences={"gpu0": 4})) == [("Start", A)]
    # Claims that share a device come in any order.
    assert kinds(decided([wish(token=3)], [], fences={"gpu0": 4})) == [("Start", A)]


def test_a_claim_waits_for_the_fenced_engine_on_its_device_to_end() -> None:
    dying = engine(A, Phase.DRAINING, token=1)
    assert decided([wish(B, token=5)], [dying]) == []


def test_the_next_back_off_is_waited_for() -> None:
    waiting = engine(A, Phase.STAGING, alive=False, start_after=NOW + 3)
    assert next_due([wish(A)], [waiting], now=NOW) == NOW + 3
    assert next_due([], [waiting], now=NOW) is None
    assert next_due([wish(A)], [engine(A, Phase.FAILED, alive=False, start_after=None)], now=NOW) is None


def test_restart_delays_double_up_to_a_minute() -> None:
    assert [restart_delay_seconds(n) for n in (1, 2, 3)] == [0.5, 1.0, 2.0]
    assert restart_delay_seconds(1000) == LONGEST_RESTART_DELAY_SECONDS
    with pytest.raises(ValueError, match="first start"):
        restart_delay_seconds(0)


def test_every_phase_but_the_last_has_a_way_on() -> None:
    assert set(ALLOWED) == set(Phase)
    assert all(ALLOWED[phase] for phase in Phase)


instances = st.sampled_from([A, B, C])
devices = st.frozensets(st.sampled_from(["gpu0", "gpu1"]), min_size=1)
wishes_strategy = st.lists(
    st.builds(Wish, instances, st.booleans(), st.integers(1, 4), devices, st.just(30.0), st.booleans()),
    unique_by=lambda w: w.instance_id,
)
known_strategy = st.lists(
    st.builds(
        Known,
        instances,
        st.integers(1, 4),
        devices,
        st.sampled_from(list(Phase)),
        st.booleans(),
        st.none() | st.just(0.0),
    ),
    unique_by=lambda k: k.instance_id,
)
fences_strategy = st.dictionaries(st.sampled_from(["gpu0", "gpu1"]), st.integers(1, 5))


@given(wishes_strategy, known_strategy, st.booleans(), fences_strategy)
def test_invariants(wishes: list[Wish], known: list[Known], connected: bool, fences: dict[str, int]) -> None:
    actions = decide(wishes, known, connected=connected, now=NOW, fences=fences)
    wished = {w.instance_id: w for w in wishes}
    records = {k.instance_id: k for k in known}
    started = [wished[a.instance_id] for a in actions if isinstance(a, Start)]
    assert len({(type(a), a.instance_id) for a in actions}) == len(actions)
    assert connected or not started
    for action in actions:
        record, row = records.get(action.instance_id), wished.get(action.instance_id)
        match action:
            case Stop():
                assert record is not None
                newer = [
                    w for w in wishes if w.fencing_token > record.fencing_token and w.device_ids & record.device_ids
                ]
                asked = row is not None and not row.running and row.fencing_token >= record.fencing_token
                overtaken = row is not None and row.fencing_token > record.fencing_token
                assert asked or (record.alive and (overtaken or (row is None and newer)))
            case Start():
                assert row is not None
                assert row.running
                assert record is None or not record.alive  # never a second process of one instance
                assert record is None or row.fencing_token >= record.fencing_token
            case Forget():
                assert record is not None
                assert not record.alive
                assert row is None
            case Ignore():
                assert row is not None
    for device in ("gpu0", "gpu1"):
        starting = [w for w in started if device in w.device_ids]
        loading = [k for k in known if k.alive and k.phase in STARTING and device in k.device_ids]
        assert len(starting) + bool(starting and loading) <= 1
    # The same state asks for the same things again: deciding has no memory.
    assert decide(wishes, known, connected=connected, now=NOW, fences=fences) == actions


@given(known_strategy)
def test_silence_stops_nothing(known: list[Known]) -> None:
    assert not [a for a in decide([], known, connected=True, now=NOW, fences={}) if isinstance(a, Start | Stop)]
    assert decide(None, known, connected=False, now=NOW, fences={}) == []
