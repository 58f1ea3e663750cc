"""What stands first on the overview."""

import pytest

from dashboard.policies.attention import Finding, Kind, Level, fails, level_of, rank


def test_every_kind_has_a_level() -> None:
    for kind in Kind:
        assert level_of(Finding(kind=kind)) in Level


@pytest.mark.parametrize(
    ("finding", "level"),
    [
        (Finding(kind=Kind.LEDGER_BEHIND, seconds=119.0), Level.SOON),
        (Finding(kind=Kind.LEDGER_BEHIND, seconds=120.0), Level.NOW),
        (Finding(kind=Kind.ALERT, page=True), Level.NOW),
        (Finding(kind=Kind.ALERT), Level.SOON),
        (Finding(kind=Kind.APPROVAL_WAITS, seconds=3600.0), Level.LOOK),
        (Finding(kind=Kind.APPROVAL_WAITS, seconds=4 * 86_400.0), Level.SOON),
    ],
)
def test_what_waits_or_grows_gets_more_urgent(finding: Finding, level: Level) -> None:
    assert level_of(finding) is level


def test_the_worst_stands_first_and_what_is_not_there_nowhere() -> None:
    found = rank(
        [
            Finding(kind=Kind.APPROVAL_WAITS, count=40),
            Finding(kind=Kind.DEVICE_FAILED, count=0),
            Finding(kind=Kind.INSTANCE_FAILED, count=2),
            Finding(kind=Kind.ALERT, names=["slow"], page=False),
            Finding(kind=Kind.VALKEY_AWAY),
            Finding(kind=Kind.ALERT, names=["down"], page=True),
        ]
    )
    assert [finding.kind for _, finding in found] == [
        Kind.VALKEY_AWAY,
        Kind.ALERT,
        Kind.INSTANCE_FAILED,
        Kind.ALERT,
        Kind.APPROVAL_WAITS,
    ]
    assert found[1][1].names == ["down"]


def test_the_order_does_not_hang_on_how_things_were_found() -> None:
    one, other = Finding(kind=Kind.ALERT, names=["a"]), Finding(kind=Kind.ALERT, names=["b"])
    assert rank([one, other]) == rank([other, one])


@pytest.mark.parametrize(
    ("requests", "faults", "level"),
    [
        (4, 4, None),  # too few to say
        (5, 5, Level.NOW),
        (20, 5, Level.NOW),
        (21, 5, Level.SOON),
        (100, 5, Level.SOON),
        (101, 5, None),
        (0, 0, None),
    ],
)
def test_requests_that_fail_in_numbers_and_in_shares_are_no_accident(
    requests: int, faults: int, level: Level | None
) -> None:
    assert fails(requests, faults) is level
