"""The spool keeps what is owed through kills, torn tails and full disks, and lets go of what the ledger has."""

import errno
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from uuid import UUID, uuid4

import pytest
from hypothesis import given
from hypothesis import strategies as st

from core.ids import uuid7
from gateway.relay.frames import FrameKind, decode_frames, encode_frame
from gateway.relay.recovery import claim_dead_spools
from gateway.relay.spool import LOCK, Spool, SpoolFull, discard
from tenants.usage import OpenRow, UsageRow, decode_row
from tests.waiting import killed_when_silent

CAP = 1024 * 1024
TENANT = uuid4()


def an_open(request_id: UUID | None = None, *, model: str = "tiny") -> OpenRow:
    return OpenRow(request_id or uuid7(), TENANT, uuid4(), model, "relay", "chat", True, 1_700_000_000.0)


def a_row(opened: OpenRow, spool: Spool) -> UsageRow:
    return UsageRow(
        id=opened.id,
        process_id=spool.process_id,
        sequence=spool.last_sequence + 1,
        tenant_id=opened.tenant_id,
        key_id=opened.key_id,
        model=opened.model,
        door=opened.door,
        api=opened.api,
        streamed=opened.streamed,
        started_at=opened.started_at,
        outcome="success",
        status=200,
        output_tokens=7,
    )


def settle(spool: Spool, opened: OpenRow) -> UsageRow:
    row = a_row(opened, spool)
    spool.append_row(row)
    return row


def a_spool(parent: Path, *, cap_bytes: int = CAP) -> Spool:
    return Spool.create(parent, uuid7(), cap_bytes=cap_bytes)


def recovered(parent: Path) -> list[UsageRow]:
    rows: list[UsageRow] = []
    for dead in claim_dead_spools(parent):
        rows += dead.rows()
        dead.remove()
    return rows


@given(st.lists(st.tuples(st.sampled_from(FrameKind), st.binary(min_size=1, max_size=60)), max_size=8), st.data())
def test_a_torn_file_gives_exactly_its_whole_frames(
    frames: Sequence[tuple[FrameKind, bytes]], data: st.DataObject
) -> None:
    encoded = [encode_frame(kind, payload) for kind, payload in frames]
    whole = b"".join(encoded)
    cut = data.draw(st.integers(0, len(whole)))
    tail = data.draw(st.sampled_from([b"", b"\0" * 40]))
    kept = [(f.kind, f.payload) for f in decode_frames(whole[:cut] + tail)]
    ends = [sum(map(len, encoded[: n + 1])) for n in range(len(encoded))]
    assert kept == frames[: sum(end <= cut for end in ends)]


@given(st.binary(max_size=200))
def test_no_bytes_upset_the_parser(noise: bytes) -> None:
    for frame in decode_frames(noise):
        assert noise[frame.start : frame.end] == encode_frame(frame.kind, frame.payload)


@given(st.data())
def test_a_flipped_bit_ends_the_reading(data: st.DataObject) -> None:
    encoded = [encode_frame(FrameKind.ROW, bytes([n]) * 20) for n in range(4)]
    whole = bytearray(b"".join(encoded))
    position = data.draw(st.integers(0, len(whole) * 8 - 1))
    whole[position // 8] ^= 1 << position % 8
    damaged = position // 8 // len(encoded[0])
    assert [f.payload[0] for f in decode_frames(bytes(whole))] == list(range(damaged))


def test_rows_come_back_in_order_and_by_sequence(tmp_path: Path) -> None:
    spool = a_spool(tmp_path)
    opens = [an_open() for _ in range(10)]
    for opened in opens:
        spool.append_open(opened)
    rows = [settle(spool, opened) for opened in reversed(opens)]
    assert [(n, decode_row(payload)) for n, payload in spool.rows_after(0, limit=100)] == list(enumerate(rows, 1))
    assert [n for n, _ in spool.rows_after(4, limit=3)] == [5, 6, 7]
    assert spool.rows_after(10, limit=3) == []


def test_a_spool_that_owes_nothing_leaves_no_trace(tmp_path: Path) -> None:
    spool = a_spool(tmp_path)
    opened = an_open()
    spool.append_open(opened)
    settle(spool, opened)
    spool.acknowledge(1)
    assert spool.close()
    assert list(tmp_path.iterdir()) == []


def test_a_spool_that_owes_is_left_for_others(tmp_path: Path) -> None:
    spool = a_spool(tmp_path)
    settled, running = an_open(), an_open()
    spool.append_open(settled)
    spool.append_open(running)
    row = settle(spool, settled)
    assert not spool.close()
    found = recovered(tmp_path)
    assert found[0] == row
    assert [(r.id, r.outcome, r.sequence, r.usage_source) for r in found[1:]] == [(running.id, "lost", 2, "none")]
    assert list(tmp_path.iterdir()) == []


def test_segments_go_when_the_ledger_has_their_rows_and_opens_move_on(tmp_path: Path) -> None:
    spool = a_spool(tmp_path, cap_bytes=256 * 1024)
    longest = an_open()
    spool.append_open(longest)
    for _ in range(1500):
        opened = an_open()
        spool.append_open(opened)
        settle(spool, opened)
        for file in spool.acknowledge(spool.last_sequence):
            discard(file)
    folder = tmp_path / str(spool.process_id)
    assert len(list(folder.glob("*.spool"))) == 1
    assert spool.bytes_held <= 256 * 1024
    spool.release()
    found = recovered(tmp_path)
    assert [row.id for row in found if row.outcome == "lost"] == [longest.id]


def _fill(spool: Spool, opens: list[OpenRow]) -> None:
    while True:
        opened = an_open(model="m" * 200)
        spool.append_open(opened)
        opens.append(opened)


def test_a_full_spool_refuses_requests_but_takes_their_rows(tmp_path: Path) -> None:
    spool = a_spool(tmp_path, cap_bytes=64 * 1024)
    opens: list[OpenRow] = []
    with pytest.raises(SpoolFull):
        _fill(spool, opens)
    rows = [settle(spool, opened) for opened in opens]
    assert [decode_row(p) for _, p in spool.rows_after(0, limit=10_000)] == rows
    for file in spool.acknowledge(spool.last_sequence):
        discard(file)
    spool.append_open(an_open())  # room again


def test_a_full_disk_refuses_requests_but_takes_their_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    spool = a_spool(tmp_path)

    def no_space(descriptor: int, offset: int, size: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", no_space)
    opens: list[OpenRow] = []
    with pytest.raises(SpoolFull, match="No space left"):
        _fill(spool, opens)
    assert opens
    for opened in opens:
        settle(spool, opened)
    with pytest.raises(SpoolFull, match="No space left"):
        a_spool(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == [str(spool.process_id)]


def test_a_segment_that_cannot_be_begun_is_no_hindrance_later(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    spool = a_spool(tmp_path)
    spool.append_open(an_open())  # will be carried over
    write = os.pwrite

    def broken(descriptor: int, data: bytes, offset: int) -> int:
        if offset == 0:
            raise OSError(errno.EIO, "Input/output error")
        return write(descriptor, data, offset)

    with monkeypatch.context() as patched:
        patched.setattr(os, "pwrite", broken)
        with pytest.raises(SpoolFull, match="Input/output error"):
            _fill(spool, [])
    spool.append_open(an_open(model="m" * 1_000))  # longer than what is left of the first one
    assert len(list((tmp_path / str(spool.process_id)).glob("*.spool"))) == 2


def test_an_abandoned_draft_is_removed_but_not_one_that_is_being_made(tmp_path: Path) -> None:
    old, new = tmp_path / f".{uuid4()}", tmp_path / f".{uuid4()}"
    for draft in (old, new):
        draft.mkdir()
    os.utime(old, (1_000_000, 1_000_000))
    assert list(claim_dead_spools(tmp_path)) == []
    assert list(tmp_path.iterdir()) == [new]


def test_a_living_spool_is_not_claimed(tmp_path: Path) -> None:
    spool = a_spool(tmp_path)
    spool.append_open(an_open())
    assert list(claim_dead_spools(tmp_path)) == []
    spool.release()
    (dead,) = claim_dead_spools(tmp_path)
    assert list(claim_dead_spools(tmp_path)) == []  # this process holds its lock now
    dead.release()


def test_a_torn_tail_loses_only_itself(tmp_path: Path) -> None:
    spool = a_spool(tmp_path)
    opens = [an_open(), an_open()]
    for opened in opens:
        spool.append_open(opened)
    first = settle(spool, opens[0])
    (path,) = (tmp_path / str(spool.process_id)).glob("*.spool")
    good = path.read_bytes().rstrip(b"\0")
    settle(spool, opens[1])
    spool.release()
    path.write_bytes(good + path.read_bytes()[len(good) : len(good) + 25])
    found = recovered(tmp_path)
    assert [(row.id, row.outcome) for row in found] == [(first.id, "success"), (opens[1].id, "lost")]


def test_other_folders_are_left_alone(tmp_path: Path) -> None:
    (tmp_path / "notes").mkdir()
    (tmp_path / "file").write_text("")
    assert list(claim_dead_spools(tmp_path)) == []
    assert list(claim_dead_spools(tmp_path / "nowhere")) == []
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file", "notes"]


def test_a_removal_that_was_cut_off_is_finished(tmp_path: Path) -> None:
    spool = a_spool(tmp_path)
    settle(spool, an_open())
    spool.release()
    folder = tmp_path / str(spool.process_id)
    (folder / "lock").unlink()  # what a removal does first
    assert list(claim_dead_spools(tmp_path)) == []
    assert not folder.exists()


_WRITER = """
import sys
from pathlib import Path
from tests.gateway.relay.test_spool import a_spool, an_open, settle
spool = a_spool(Path(sys.argv[1]))
while True:
    opened = an_open()
    spool.append_open(opened)
    print("open", opened.id, flush=True)
    if spool.last_sequence % 3 != 2 or spool.open_count > 1:
        settle(spool, opened)
        print("row", opened.id, flush=True)
"""


def test_a_killed_process_loses_nothing_that_it_said_was_written(tmp_path: Path) -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", _WRITER, str(tmp_path)],
        stdout=subprocess.PIPE,
        text=True,
        cwd=Path(__file__).resolve().parents[3],
        env={**os.environ, "PYTHONPATH": str(Path(__file__).resolve().parents[3])},
    )
    assert process.stdout is not None
    said: dict[str, set[str]] = {"open": set(), "row": set()}
    try:
        with killed_when_silent(process):
            for _ in range(500):
                word, request_id = process.stdout.readline().split()
                said[word].add(request_id)
        process.send_signal(signal.SIGKILL)
        for line in process.stdout:
            if line.endswith("\n"):
                word, request_id = line.split()
                said[word].add(request_id)
    finally:
        process.kill()
        process.wait()
        process.stdout.close()
    found = {str(row.id): row.outcome for row in recovered(tmp_path)}
    assert said["open"] <= set(found)
    assert {request_id for request_id in said["row"] if found[request_id] != "success"} == set()
    unsettled = said["open"] - said["row"]
    assert unsettled
    assert {found[request_id] for request_id in unsettled} <= {"lost", "success"}


def test_the_lock_file_is_where_the_owner_holds_it(tmp_path: Path) -> None:
    spool = a_spool(tmp_path)
    assert (tmp_path / str(spool.process_id) / LOCK).exists()
    spool.release()
