"""The book's decisions: what may be promised, how a device stands, and what is mended."""

from dataclasses import replace
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpupool.policies.device_record import (
    Adopt,
    Book,
    BookClaim,
    ClaimRecord,
    DeviceFacts,
    DeviceRecord,
    Drop,
    Forget,
    RecordedClaim,
    Standing,
    Status,
    Write,
    as_reported,
    decide_allocation,
    doubted,
    marked,
    mend,
    standing_of,
    with_claim,
    without_claim,
)
from gpupool.policies.lease import Granted, Portion, Refused, decide_portion

NODE, DEVICE, OTHER = UUID(int=1), UUID(int=2), UUID(int=3)


def facts(device: UUID = DEVICE, *, boot: str = "first", size: int | None = 10, **changes: object) -> DeviceFacts:
    made = DeviceFacts(device, NODE, size, True, boot, Standing.OK)
    return replace(made, **changes)  # type: ignore[arg-type]  # of its own fields


def a_claim(holder: str, token: int, *, boot: str = "first", **portions: int) -> RecordedClaim:
    named = {"device": DEVICE, "other": OTHER}
    return RecordedClaim(holder, token, NODE, boot, {named[name]: Portion(size) for name, size in portions.items()})


def book_of(*claims: RecordedClaim, records: tuple[DeviceFacts, ...] = (facts(),)) -> Book:
    known = {one.device_id: as_reported(one, ()) for one in records}
    held: dict[str, BookClaim] = {}
    for claim in claims:
        for device_id, portion in claim.portions.items():
            if device_id in known:
                known[device_id] = with_claim(known[device_id], claim.holder, portion)
        record = ClaimRecord(claim.holder, claim.node_id, claim.boot_id, claim.portions, token=claim.token)
        held[claim.holder] = BookClaim(record, claim.token)
    return Book(known, held)


@pytest.mark.parametrize(
    ("held", "wanted", "fits"),
    [
        ([], Portion(10), True),
        ([], Portion(11), False),
        ([Portion(6)], Portion(4), True),
        ([Portion(6)], Portion(5), False),
        ([Portion(1, whole=True)], Portion(1), False),
        ([Portion(1)], Portion(1, whole=True), False),
        ([], Portion(1, whole=True), True),
        ([Portion(1, 0.7)], Portion(1, 0.3), True),
        ([Portion(1, 0.7)], Portion(1, 0.31), False),
        ([Portion(1, 0.1)] * 9, Portion(1, 0.1), True),  # in floats nine tenths and one are more than one
        ([Portion(1, 1.0)], Portion(1), True),  # one that is not limited takes no share
    ],
)
def test_bytes_and_shares_add_up_to_one_device_and_whole_is_alone(
    held: list[Portion], wanted: Portion, fits: bool
) -> None:
    assert isinstance(decide_portion(device_bytes=10, held=held, wanted=wanted), Granted) is fits


@pytest.mark.parametrize("share", [0.0, -0.1, 1.1])
def test_a_share_that_is_none_of_a_device_is_an_error(share: float) -> None:
    with pytest.raises(ValueError, match="share"):
        decide_portion(device_bytes=10, held=[], wanted=Portion(1, share))


@pytest.mark.parametrize(
    ("record", "words"),
    [
        (None, "not in the book"),
        (as_reported(facts(allocatable=False), ()), "divided"),
        (as_reported(facts(boot="second"), ()), "restarted"),
        (as_reported(facts(size=None), ()), "does not say"),
        (as_reported(facts(standing=Standing.UNKNOWN, reason="its node is not reachable"), ()), "not reachable"),
        (as_reported(facts(standing=Standing.FAILED, reason="it has failed"), ()), "failed"),
    ],
)
@pytest.mark.shows("P18", "P19")
def test_nothing_is_promised_on_a_device_that_cannot_keep_it(record: DeviceRecord | None, words: str) -> None:
    decision = decide_allocation(record, Portion(1), boot_id="first")
    assert isinstance(decision, Refused)
    assert words in decision.reason


def test_a_status_follows_from_the_claims_and_from_how_the_device_stands() -> None:
    free = as_reported(facts(), ())
    held = with_claim(free, "instance:a", Portion(4))
    assert (free.status, held.status) == (Status.FREE, Status.ALLOCATED)
    assert without_claim(held, "instance:a") == free
    for standing in (Standing.FAILED, Standing.UNKNOWN):
        bad = marked(held, standing, "it fell")
        assert (bad.status, bad.reason, bad.claims) == (Status(standing.value), "it fell", held.claims)
        assert marked(bad, Standing.OK, "") == held  # a way back, with what it held
        assert without_claim(bad, "instance:a").status == bad.status
    assert doubted(held, "odd").status == Status.UNKNOWN


@pytest.mark.parametrize(
    ("reachable", "present", "isolated", "health", "standing"),
    [
        (True, True, None, "ok", Standing.OK),
        (True, True, None, "failed", Standing.FAILED),
        (True, True, None, "unknown", Standing.UNKNOWN),
        (True, True, "", "ok", Standing.FAILED),
        (True, False, None, "ok", Standing.UNKNOWN),
        (False, True, None, "failed", Standing.UNKNOWN),  # what it said last is no knowledge of now
    ],
)
def test_how_a_device_stands(
    reachable: bool, present: bool, isolated: str | None, health: str, standing: Standing
) -> None:
    told, reason = standing_of(reachable=reachable, present=present, isolated=isolated, health=health)
    assert told == standing
    assert bool(reason) is (standing != Standing.OK)


def test_a_book_that_agrees_needs_nothing() -> None:
    claim = a_claim("instance:a", 5, device=4)
    assert mend(book_of(claim), [facts()], [claim]) == ()


@pytest.mark.shows("P12")
def test_a_claim_that_the_database_does_not_know_is_forgotten_and_its_bytes_are_free() -> None:
    fixes = mend(book_of(a_claim("instance:a", 5, device=4)), [facts()], [])
    assert [type(fix) for fix in fixes] == [Forget, Write]
    assert fixes[1] == Write(DEVICE, as_reported(facts(), ()))


def test_a_claim_that_the_store_has_lost_is_taken_in_again() -> None:
    claim = a_claim("instance:a", 5, device=4, other=1)
    fixes = mend(Book(), [facts(), facts(OTHER)], [claim])
    assert fixes[0] == Adopt(claim)
    assert {fix.device_id for fix in fixes if isinstance(fix, Write)} == {DEVICE, OTHER}


def test_a_claim_of_another_token_or_size_gives_way_to_the_databases() -> None:
    recorded = a_claim("instance:a", 7, device=4)
    for standing in (a_claim("instance:a", 5, device=4), a_claim("instance:a", 7, device=3)):
        fixes = mend(book_of(standing), [facts()], [recorded])
        assert [type(fix) for fix in fixes[:2]] == [Forget, Adopt]


@pytest.mark.shows("P19")
def test_a_new_boot_voids_every_claim_of_the_last_one() -> None:
    claim = a_claim("instance:a", 5, device=4)
    fixes = mend(book_of(claim), [facts(boot="second")], [claim])
    assert [type(fix) for fix in fixes] == [Forget, Write]
    assert fixes[1] == Write(DEVICE, as_reported(facts(boot="second"), ()))
    # One whose process was seen under the new boot goes on.
    assert all(
        not isinstance(fix, Forget)
        for fix in mend(book_of(claim), [facts(boot="second")], [replace(claim, boot_id="second")])
    )


def test_a_record_of_a_device_that_is_gone_is_dropped_once_nobody_holds_it() -> None:
    claim = a_claim("instance:a", 5, device=4)
    assert mend(book_of(), [], []) == (Drop(DEVICE),)
    assert mend(book_of(claim), [], [claim]) == ()


_CLAIMS = st.lists(
    st.tuples(st.sampled_from("abc"), st.integers(1, 3), st.sampled_from(["first", "second"]), st.integers(1, 3)),
    max_size=3,
    unique_by=lambda claim: claim[0],
)


def _claims(drawn: list[tuple[str, int, str, int]]) -> list[RecordedClaim]:
    return [a_claim(holder, token, boot=boot, device=size) for holder, token, boot, size in drawn]


@given(inside=_CLAIMS, outside=_CLAIMS, standing=st.sampled_from(Standing), boot=st.sampled_from(["first", "second"]))
def test_whatever_differs_one_mending_brings_it_in_line(
    inside: list[tuple[str, int, str, int]],
    outside: list[tuple[str, int, str, int]],
    standing: Standing,
    boot: str,
) -> None:
    book, recorded = book_of(*_claims(inside)), _claims(outside)
    now = [facts(boot=boot, standing=standing, reason="so it stands" if standing != Standing.OK else "")]
    records, claims = dict(book.records), dict(book.claims)
    for fix in mend(book, now, recorded):
        match fix:
            case Forget(holder=holder):
                del claims[holder]
            case Adopt(claim=row):
                assert row.holder not in claims
                record = ClaimRecord(row.holder, row.node_id, row.boot_id, row.portions, token=row.token)
                claims[row.holder] = BookClaim(record, row.token)
            case Write(device_id=device_id, record=record_now):
                records[device_id] = record_now
            case Drop(device_id=device_id):
                del records[device_id]
    assert mend(Book(records, claims), now, recorded) == ()
    assert {holder: claim.token for holder, claim in claims.items()} == {
        row.holder: row.token for row in recorded if row.boot_id == boot
    }
    assert {held.holder for held in records[DEVICE].claims} == set(claims)
