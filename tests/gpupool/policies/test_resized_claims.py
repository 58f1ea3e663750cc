"""A sleeping instance's smaller claim, as the book of devices takes it over from the database."""

from uuid import UUID

import pytest

from gpupool.policies.device_record import (
    Adopt,
    Book,
    BookClaim,
    ClaimRecord,
    DeviceFacts,
    Forget,
    HeldPortion,
    RecordedClaim,
    Standing,
    Write,
    as_reported,
    mend,
)
from gpupool.policies.lease import Portion

NODE, CARD, GIB = UUID(int=1), UUID(int=2), 1 << 30
FACTS = DeviceFacts(CARD, NODE, 16 * GIB, True, "boot", Standing.OK)


@pytest.mark.shows("R16")
def test_a_claim_that_was_given_back_in_part_keeps_its_token_in_the_book() -> None:
    held = HeldPortion("instance:a", 10 * GIB)
    before = ClaimRecord("instance:a", NODE, "boot", {CARD: Portion(10 * GIB)})
    book = Book({CARD: as_reported(FACTS, [held])}, {"instance:a": BookClaim(before, 7)})
    asleep = RecordedClaim("instance:a", 7, NODE, "boot", {CARD: Portion(GIB)})
    fixes = mend(book, [FACTS], [asleep])
    assert [type(fix) for fix in fixes] == [Forget, Adopt, Write]
    (adopted,) = [fix.claim for fix in fixes if isinstance(fix, Adopt)]
    assert (adopted.token, adopted.portions) == (7, {CARD: Portion(GIB)})
    (written,) = [fix.record for fix in fixes if isinstance(fix, Write)]
    assert [claim.memory_bytes for claim in written.claims] == [GIB]
    after = ClaimRecord("instance:a", NODE, "boot", {CARD: Portion(GIB)}, token=7)
    mended = Book({CARD: written}, {"instance:a": BookClaim(after, 7)})
    assert mend(mended, [FACTS], [asleep]) == ()
