"""The life of an alert, as a table and as any sequence of looks."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.policies.slo_alerts import (
    ALLOWED,
    CALM_SECONDS,
    REPEAT_SECONDS,
    Alert,
    AlertState,
    NotAllowed,
    Severity,
    Step,
    moved,
    step,
)

S = AlertState


@pytest.mark.parametrize("state", S)
@pytest.mark.parametrize("to", S)
def test_only_the_table_moves_an_alert(state: AlertState, to: AlertState) -> None:
    if to in ALLOWED[state]:
        assert moved(state, to) is to
    else:
        with pytest.raises(NotAllowed):
            moved(state, to)


def test_what_is_over_stays_over() -> None:
    assert ALLOWED[S.RESOLVED] == frozenset()


def test_a_page_is_told_again_after_an_hour_and_a_ticket_after_a_day() -> None:
    for severity, seconds in ((Severity.PAGE, 3_600), (Severity.TICKET, 86_400)):
        assert REPEAT_SECONDS[severity] == seconds
        alert = Alert(severity, told_at=0)
        early = step(alert, burns=True, severity=severity, silenced=False, now=seconds - 1)
        late = step(alert, burns=True, severity=severity, silenced=False, now=seconds)
        assert (early.tell, late.tell) == (False, True)


def test_a_moment_below_the_threshold_ends_nothing() -> None:
    first = step(Alert(Severity.PAGE, told_at=0), burns=False, severity=Severity.PAGE, silenced=False, now=10)
    assert first.alert is not None
    assert first.alert.calm_since == 10
    again = step(first.alert, burns=True, severity=Severity.PAGE, silenced=False, now=20)
    assert again.alert is not None
    assert again.alert.calm_since is None


def test_what_was_told_before_a_silence_and_still_burns_after_it_is_told_then() -> None:
    def look(alert: Alert | None, *, silenced: bool, now: float, burns: bool = True) -> Step:
        return step(alert, burns=burns, severity=Severity.PAGE, silenced=silenced, now=now)

    told = look(None, silenced=False, now=0)
    quiet = look(told.alert, silenced=True, now=60)
    assert (told.tell, quiet.tell) == (True, False)
    assert look(quiet.alert, silenced=False, now=120).tell
    calm = look(quiet.alert, silenced=False, now=120, burns=False)
    assert look(calm.alert, silenced=False, now=120 + CALM_SECONDS, burns=False).tell  # they know of it
    assert quiet.alert is not None
    theirs = look(replace(quiet.alert, state=S.ACKNOWLEDGED), silenced=False, now=120)
    assert not theirs.tell


looks = st.lists(
    st.tuples(st.sampled_from([True, False, None]), st.booleans(), st.booleans(), st.integers(1, 4_000)), max_size=60
)


@given(looks)
def test_any_course_keeps_to_the_rules(course: list[tuple[bool | None, bool, bool, int]]) -> None:
    alert: Alert | None = None
    now, told_burning, calm = 0, 0, None
    for burns, silenced, acknowledge, seconds in course:
        now += seconds
        if acknowledge and alert is not None and alert.state is S.FIRING:
            alert = replace(alert, state=S.ACKNOWLEDGED)
        before = alert
        found = step(before, burns=burns, severity=Severity.PAGE, silenced=silenced, now=now)
        if silenced:
            assert not found.tell
        if burns is None:
            assert found.alert == before
        if before is None:
            assert (found.alert is not None) == (burns is True)
        elif found.over:
            assert burns is False
            assert found.alert is not None
            assert found.alert.calm_since is not None
            assert now - found.alert.calm_since >= CALM_SECONDS
            assert found.tell == (before.told and not silenced)
        elif before.state is S.ACKNOWLEDGED:
            assert not found.tell
        if found.tell and not found.over:
            told_burning += 1
            assert before is None or before.told_at is None or now - before.told_at >= REPEAT_SECONDS[Severity.PAGE]
        calm = None if found.over else calm
        alert = None if found.over else found.alert
