"""Every forwarded request is in the ledger exactly once, also when relay and drain are killed on the way."""

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from django.db.models import Sum

from bench.house import wait_until
from bench.rows import attach
from tenants.actor import SYSTEM
from tenants.models import DeadLetter, UsageMinute, UsageRecord
from tenants.services import grant_model
from tests.house import TestHouse
from tests.recorder import Recorder

MODEL = "recorded"
REQUESTS = 9000
SECONDS = 180  # longer than it takes: the replay is ended when all has happened, however slow the machine
IN_FLIGHT = 32
ROOT = Path(__file__).resolve().parents[2]
SHARED_TRACES = ROOT.parent / "shared" / "data" / "traces"


@pytest.fixture
def recorder(house: TestHouse) -> Iterator[Recorder]:
    with Recorder(house.engine.port) as recorder:
        attach(MODEL, recorder.port, engine="llamacpp")
        grant_model(house.tenant, model_pattern=MODEL, actor=SYSTEM)
        with house.client() as client:
            wait_until(lambda: MODEL in client.get("/v1/models").text, "the relay knows the new model")
        yield recorder


def start_replay(house: TestHouse, trace: Path, key: str, *options: str) -> "subprocess.Popen[str]":
    command = [sys.executable, str(ROOT / "manage.py"), "replay", str(trace), "--json", "--url", house.relay_url]
    environ = {**house.environ, "GATEHOUSE_API_KEY": key}
    return subprocess.Popen([*command, *options], env=environ, stdout=subprocess.PIPE, text=True, cwd=ROOT)


@pytest.mark.slow
def test_relay_and_drain_are_killed_in_the_middle(house: TestHouse, recorder: Recorder, tmp_path: Path) -> None:
    trace = tmp_path / "trace.csv"
    begin = datetime(2024, 1, 1, tzinfo=UTC)
    times = [begin + timedelta(seconds=n * SECONDS / REQUESTS) for n in range(REQUESTS)]
    rows = [f"{at:%Y-%m-%d %H:%M:%S.%f},40,200\n" for at in times]
    trace.write_text("TIMESTAMP,ContextTokens,GeneratedTokens\n" + "".join(rows))
    options = ["--model", MODEL, "--max-tokens", "200", "--in-flight", str(IN_FLIGHT), "--limit", str(REQUESTS)]
    replay = start_replay(house, trace, house.new_key("replay").secret, *options)

    def another_part_is_forwarded() -> None:
        so_far = len(recorder.request_ids)
        wait_until(lambda: len(recorder.request_ids) > so_far + IN_FLIGHT, "another part is forwarded", seconds=60)

    try:
        another_part_is_forwarded()
        house.kill("relay")
        house.kill("drain")
        house.start("drain")
        house.start("relay")
        another_part_is_forwarded()
        house.kill("drain")
        house.kill("relay")
        house.start("relay")
        house.start("drain")
        another_part_is_forwarded()
        replay.send_signal(signal.SIGINT)
        output, _ = replay.communicate(timeout=60)
    finally:
        replay.kill()
    report = json.loads(output)
    assert report["succeeded"] > 0
    assert report["failed"] > 0  # it really was in the middle

    forwarded = set(recorder.request_ids)
    written = UsageRecord.objects.filter(model=MODEL)
    wait_until(
        lambda: forwarded <= {str(pk) for pk in written.values_list("pk", flat=True)},
        f"all of {len(forwarded)} forwarded requests are in the ledger",
    )
    # One more kill of the drain, which then reads again whatever it had not acknowledged.
    house.kill("drain")
    house.start("drain")
    wait_until(
        lambda: len(list((house.folder / "var" / "spool").glob("*-*"))) == 1, "spools of dead relays are drained"
    )

    outcomes = dict(written.values_list("pk", "outcome"))
    assert {o for pk, o in outcomes.items() if str(pk) not in forwarded} <= {"lost", "failed", "cancelled"}
    assert sum(outcome == "success" for outcome in outcomes.values()) >= report["succeeded"]
    assert sum(outcome == "lost" for outcome in outcomes.values()) <= 2 * IN_FLIGHT  # only what was in flight
    assert UsageMinute.objects.filter(model=MODEL).aggregate(n=Sum("requests"))["n"] == len(outcomes)
    assert not DeadLetter.objects.exists()


@pytest.mark.slow
@pytest.mark.parametrize("name", ["azure_llm_2023_conv.csv.gz", "azure_llm_2023_code.csv.gz"])
def test_a_published_trace_is_answered_and_written_down(house: TestHouse, name: str) -> None:
    if not (SHARED_TRACES / name).exists():
        pytest.skip(f"the public trace {name} is not on this machine")
    key = house.new_key(name)
    options = ["--model", "tiny", "--limit", "150", "--speed", "20", "--max-tokens", "8", "--max-prompt-tokens", "64"]
    replay = start_replay(house, SHARED_TRACES / name, key.secret, *options)
    output, _ = replay.communicate(timeout=120)
    assert replay.returncode == 0, output
    report = json.loads(output)
    assert (report["sent"], report["succeeded"], report["failed"]) == (150, 150, 0)
    written = UsageRecord.objects.filter(key_id=key.id)
    wait_until(lambda: written.count() >= 150, "150 rows")
    assert written.count() == 150
    sums = written.aggregate(i=Sum("input_tokens"), o=Sum("output_tokens"))
    assert (sums["i"], sums["o"]) == (report["input_tokens"], report["output_tokens"])


def test_a_limited_key_sees_429_apart_from_failures(house: TestHouse, tmp_path: Path) -> None:
    trace = tmp_path / "trace.csv"
    trace.write_text("TIMESTAMP,ContextTokens,GeneratedTokens\n" + "2024-01-01 00:00:00,5,2\n" * 12)
    key = house.new_key("five a minute", rpm_limit=5)
    replay = start_replay(house, trace, key.secret, "--model", "tiny")
    output, _ = replay.communicate(timeout=60)
    assert replay.returncode == 0, output
    report = json.loads(output)
    assert (report["succeeded"], report["limited_429"], report["failed"]) == (5, 7, 0)
    assert UsageRecord.objects.filter(key_id=key.id).count() <= 5
