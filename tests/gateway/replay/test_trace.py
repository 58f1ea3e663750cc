"""Reading traces: both forms of the file, and a sentence for each that cannot be used."""

import gzip
from pathlib import Path

import pytest

from gateway.replay.trace import TraceError, TraceRequest, read_trace

HEADER = "TIMESTAMP,ContextTokens,GeneratedTokens\n"
ROWS = "2023-11-16 18:17:03.9799600,4808,10\n2023-11-16 18:17:04.0319600,3180,8\n2023-11-16 18:17:05.4799600,110,27\n"
SHARED_TRACES = Path(__file__).resolve().parents[4] / "shared" / "data" / "traces"


@pytest.mark.parametrize("packed", [False, True])
def test_times_count_from_the_first_request(tmp_path: Path, packed: bool) -> None:
    trace = tmp_path / "trace.csv"  # the name does not say whether it is packed
    trace.write_bytes(gzip.compress((HEADER + ROWS).encode()) if packed else (HEADER + ROWS).encode())
    requests = read_trace(trace, limit=10)
    assert [r.at_seconds for r in requests] == pytest.approx([0.0, 0.052, 1.5], abs=1e-6)
    assert [(r.context_tokens, r.generated_tokens) for r in requests] == [(4808, 10), (3180, 8), (110, 27)]


def test_reads_no_more_than_the_limit(tmp_path: Path) -> None:
    trace = tmp_path / "trace.csv"
    trace.write_text(HEADER + ROWS + "not,a,row\n")
    assert len(read_trace(trace, limit=2)) == 2


def test_orders_by_time_and_accepts_further_columns(tmp_path: Path) -> None:
    trace = tmp_path / "trace.csv"
    trace.write_text(
        "id,GeneratedTokens,ContextTokens,TIMESTAMP\na,1,2,2024-05-10 00:00:02\nb,3,4,2024-05-10 00:00:01\n"
    )
    assert read_trace(trace, limit=5) == [TraceRequest(0.0, 4, 3), TraceRequest(1.0, 2, 1)]


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ("a,b\n1,2\n", "lacks the columns TIMESTAMP, ContextTokens, GeneratedTokens"),
        ("TIMESTAMP,ContextTokens\n2023-11-16 18:17:03,2\n", "lacks the column GeneratedTokens"),
        ("", "lacks the columns"),
        (HEADER, "has no requests"),
        (HEADER + "yesterday,1,2\n", "line 2: not a time"),
        (HEADER + "2023-11-16 18:17:03,1\n", "line 2: not a time"),
        (HEADER + "2023-11-16 18:17:03,1,-2\n", "line 2: not a time"),
        (HEADER + "2023-11-16 18:17:03,1,2\n2023-11-16 18:17:03+00:00,1,2\n", "with and without a zone"),
    ],
)
def test_says_what_is_wrong_with_a_file(tmp_path: Path, content: str, says: str) -> None:
    trace = tmp_path / "trace.csv"
    trace.write_text(content)
    with pytest.raises(TraceError, match=says):
        read_trace(trace, limit=10)


def test_says_that_a_file_is_missing_or_a_folder(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match="there is no file"):
        read_trace(tmp_path / "none.csv", limit=10)
    with pytest.raises(TraceError, match="is a folder"):
        read_trace(tmp_path, limit=10)


def test_says_that_a_packed_file_is_damaged(tmp_path: Path) -> None:
    trace = tmp_path / "trace.csv.gz"
    trace.write_bytes(gzip.compress((HEADER + ROWS * 100).encode())[:-20])
    with pytest.raises(TraceError, match="is damaged"):
        read_trace(trace, limit=1000)
    trace.write_bytes(b"\x00\xff\xfe" * 50)
    with pytest.raises(TraceError, match="is not a CSV text file"):
        read_trace(trace, limit=10)


@pytest.mark.parametrize("name", ["azure_llm_2023_code.csv.gz", "azure_llm_2023_conv.csv.gz"])
def test_reads_the_published_traces(name: str) -> None:
    if not (SHARED_TRACES / name).exists():
        pytest.skip(f"the public trace {name} is not on this machine")
    requests = read_trace(SHARED_TRACES / name, limit=500)
    assert len(requests) == 500
    assert requests[0].at_seconds == 0
    assert all(r.context_tokens > 0 for r in requests)
