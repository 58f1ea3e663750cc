"""What a client asks for: odd lists and odd jobs are refused, and never more is read than a page may have."""

import pytest

from core.errors import BodyTooLarge, InvalidRequest
from gateway.relay.tuning.asked import Query, parse_job


@pytest.mark.parametrize("limit", ["1", "100", "0020"])
def test_a_page_has_as_many_as_was_asked_for(limit: str) -> None:
    page = Query(f"limit={limit}".encode(), known=frozenset({"limit"}), prefix="file-").page(default=20, most=100)
    assert page.limit == int(limit)


@pytest.mark.parametrize("limit", ["", "0", "101", "-1", "1.5", "x", "٣", "000000001000000", "0" * 8 + "1" * 5000])
def test_no_page_has_more_than_it_may(limit: str) -> None:
    query = Query(f"limit={limit}".encode("latin-1", "replace"), known=frozenset({"limit"}), prefix="file-")
    with pytest.raises(InvalidRequest) as refused:
        query.page(default=20, most=100)
    assert refused.value.param == "limit"


def test_a_job_of_absurd_size_is_refused_before_it_is_read() -> None:
    """Every stream of the process would wait for it. Whoever reads it to its end finds that it is no JSON."""
    with pytest.raises(BodyTooLarge):
        parse_job(b'{"model":"m","training_file":"x","metadata":{' + b'"k":"v",' * 1_000_000 + b'"k":"v"', lambda: 1)
