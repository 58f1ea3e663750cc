"""The shipped rules, checked by promtool, and evaluated by Prometheus over the same month that the page shows."""

import json
import re
import shutil
import socket
import subprocess
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final
from uuid import uuid4

import pytest
from django.core.management import call_command

from core.ids import uuid7_from
from core.telemetry import buckets
from dashboard.reads.slo import read_board
from gateway.management.commands.slo_rules import own_text, shipped_objectives, shipped_text
from gateway.models import Objective
from gateway.policies.slo_rules import attained_expression, burn_expression, window_word
from gateway.reads.slo import read_standings
from gateway.services.objectives import create_objective
from tenants.actor import SYSTEM
from tenants.models import RefusalMinute
from tenants.services import create_tenant
from tenants.services.ledger import record_usage
from tenants.usage import UsageRow
from tests.gateway.slo_rows import tally, ttft_objective
from tests.tenants.usage_rows import usage_row
from tests.waiting import wait_until

FOLDER: Final = Path(__file__).resolve().parents[2] / "deploy" / "prometheus"
PROMTOOL, PROMETHEUS = shutil.which("promtool"), shutil.which("prometheus")
needs_promtool = pytest.mark.skipif(PROMTOOL is None, reason="promtool is not on this machine's PATH")
needs_prometheus = pytest.mark.skipif(
    PROMTOOL is None or PROMETHEUS is None, reason="prometheus and promtool are not on this machine's PATH"
)
NOW: Final = datetime(2026, 11, 30, 12, 0, tzinfo=UTC)
MODEL: Final = "chat-large"
REFUSED_EACH_DAY: Final = 2


def promtool(*arguments: str) -> str:
    assert PROMTOOL is not None
    done = subprocess.run([PROMTOOL, *arguments], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_the_shipped_rules_are_what_the_command_writes() -> None:
    assert (FOLDER / "gatehouse-slo.rules.yml").read_text(encoding="utf-8") == shipped_text()


def test_what_alerts_read_is_written_again_before_prometheus_forgets_it() -> None:
    minutes = [int(word) for word in re.findall(r"interval: (\d+)m$", shipped_text(), re.MULTILINE)]
    assert minutes
    assert max(minutes) < 5 / 2  # so that one look may be missed, or take long


@needs_promtool
def test_promtool_finds_nothing_wrong_and_the_rules_tests_pass() -> None:
    promtool("check", "rules", str(FOLDER / "gatehouse-slo.rules.yml"))
    promtool("test", "rules", str(FOLDER / "gatehouse-slo.test.yml"))


@needs_promtool
@pytest.mark.django_db
def test_rules_of_ones_own_objectives_are_rules_too(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    ttft_objective(name='a "quoted" name, 名称')
    ttft_objective(name="queue", kind="queue_wait", threshold_seconds=0.5, model="", window_days=3)
    ttft_objective(name="tpot", kind="tpot", threshold_seconds=0.05)
    ttft_objective(name="all", kind="availability", threshold_seconds=None, model="")
    acme = create_tenant(slug="acme", name="Acme", actor=SYSTEM)
    ttft_objective(name="of a tenant", tenant=acme)
    call_command("slo_rules")
    written = capsys.readouterr().out
    assert written == own_text()
    assert "#   of a tenant" in written
    file = tmp_path / "own.rules.yml"
    file.write_text(written, encoding="utf-8")
    assert "rules found" in promtool("check", "rules", str(file))


@needs_promtool
@pytest.mark.django_db
def test_without_objectives_there_is_an_empty_file_of_rules(tmp_path: Path) -> None:
    file = tmp_path / "none.rules.yml"
    file.write_text(own_text(), encoding="utf-8")
    promtool("check", "rules", str(file))


def month() -> Iterator[tuple[datetime, list[tuple[float, str]]]]:
    """(minute, requests that began in it: first token's seconds and outcome), steady but for the last hour."""
    for hour in range(30 * 24 - 8):
        if 5 <= hour % 24 < 7:  # of each day two hours: a block of Prometheus's for each pair of hours takes its time
            start = NOW - timedelta(days=30) + timedelta(hours=hour)
            yield start, [(4.0 if hour % 48 == 5 and n == 0 else 0.3, "success") for n in range(20)]
    for minute in range(8 * 60):
        start = NOW - timedelta(hours=8) + timedelta(minutes=minute)
        late = 2 if minute >= 7 * 60 else (minute % 5 == 0)
        requests = [(4.0 if n < late else 0.3, "success") for n in range(5)]
        yield start, [*requests, (0.3, "cancelled"), *([(0.3, "truncated")] if minute % 10 == 0 else [])]


def in_the_ledger() -> None:
    """Rows as the relay settles them, through the real ledger and its rollups."""
    tenant, process, number, rows = uuid4(), uuid4(), 0, list[UsageRow]()
    for start, requests in month():
        for seconds, outcome in requests:
            number += 1
            at = start.timestamp() + 1
            rows.append(
                usage_row(
                    process,
                    number,
                    id=uuid7_from(int(at * 1000), number % 4096, number),
                    tenant_id=tenant,
                    model=MODEL,
                    streamed=True,
                    started_at=at,
                    outcome=outcome,
                    ttft_ms=seconds * 1000,
                    duration_ms=seconds * 1000 + 500,
                )
            )
    for first in range(0, len(rows), 1000):
        record_usage(rows[first : first + 1000])
    RefusalMinute.objects.bulk_create(
        RefusalMinute(
            tenant_id=tenant,
            model=MODEL,
            code="no_ready_instance",
            status=503,
            minute=NOW - timedelta(days=day, hours=-5),
            refusals=REFUSED_EACH_DAY,
        )
        for day in range(1, 30)
    )


def as_openmetrics(file: Path) -> None:
    """The same month as Prometheus would have scraped it at the end of each of those minutes."""
    counts = [0] * (len(buckets.TTFT) + 1)
    outcomes = {"success": 0, "cancelled": 0, "truncated": 0}
    refused, samples = 0, dict[str, list[tuple[int, float]]]()

    def put(series: str, at: int, value: float) -> None:
        samples.setdefault(series, []).append((at, value))

    def scrape(at: int) -> None:
        total = 0
        for bound, count in zip((*buckets.TTFT, float("inf")), counts, strict=True):
            total += count
            le = "+Inf" if bound == float("inf") else repr(float(bound))
            put(f'gen_ai_server_time_to_first_token_seconds_bucket{{api="chat",model="{MODEL}",le="{le}"}}', at, total)
        put(f'gen_ai_server_time_to_first_token_seconds_count{{api="chat",model="{MODEL}"}}', at, total)
        for outcome, count in outcomes.items():
            labels = f'door="relay",api="chat",model="{MODEL}",outcome="{outcome}"'
            put(f"gatehouse_requests_total{{{labels}}}", at, count)
        put(f'gatehouse_faults_total{{model="{MODEL}",stage="forwarded"}}', at, outcomes["truncated"])
        put(f'gatehouse_faults_total{{model="{MODEL}",stage="refused"}}', at, refused)

    refusals = {NOW - timedelta(days=day, hours=-5) for day in range(1, 30)}
    scraped = int((NOW - timedelta(days=30)).timestamp())
    scrape(scraped)
    for start, requests in month():
        if start.timestamp() > scraped:  # it is scraped while there is no traffic, too
            scrape(int(start.timestamp()))
        for seconds, outcome in requests:
            counts[buckets.bucket_of(buckets.TTFT, seconds)] += 1
            outcomes[outcome] += 1
        if start in refusals:
            refused += REFUSED_EACH_DAY
        scraped = int(start.timestamp()) + 60
        scrape(scraped)
    families = {
        "gen_ai_server_time_to_first_token_seconds": "histogram",
        "gatehouse_requests": "counter",
        "gatehouse_faults": "counter",
    }
    with file.open("w", encoding="utf-8") as out:
        for family, kind in families.items():
            out.write(f"# TYPE {family} {kind}\n")
            for series, points in samples.items():
                if series.startswith(f"{family}_"):
                    out.writelines(f"{series} {value} {at}\n" for at, value in points)
        out.write("# EOF\n")


class Server:
    """Prometheus over blocks that are there; it scrapes nothing."""

    def __init__(self, folder: Path, data: Path) -> None:
        with closing(socket.create_server(("127.0.0.1", 0))) as probe:
            self.url = f"http://127.0.0.1:{probe.getsockname()[1]}"
        settings = folder / "prometheus.yml"
        settings.write_text("scrape_configs: []\n", encoding="utf-8")
        assert PROMETHEUS is not None
        self.log = (folder / "prometheus.log").open("wb")
        self.process = subprocess.Popen(
            [
                PROMETHEUS,
                f"--config.file={settings}",
                f"--storage.tsdb.path={data}",
                "--storage.tsdb.retention.time=10y",
                f"--web.listen-address={self.url.removeprefix('http://')}",
            ],
            stdout=self.log,
            stderr=self.log,
        )
        wait_until(self.is_ready, "prometheus did not start", deadline_seconds=30)

    def is_ready(self) -> bool:
        try:
            with urllib.request.urlopen(f"{self.url}/-/ready", timeout=2) as answer:  # our own
                return bool(answer.status == 200)
        except (urllib.error.URLError, OSError):
            return False

    def value(self, expression: str, at: datetime) -> float:
        """The one sample that the expression has at that moment."""
        query = urllib.parse.urlencode({"query": expression, "time": at.timestamp()})
        with urllib.request.urlopen(f"{self.url}/api/v1/query?{query}", timeout=20) as answer:  # our own
            found: list[Any] = json.load(answer)["data"]["result"]
        assert len(found) == 1, (expression, found)
        return float(found[0]["value"][1])

    def stop(self) -> None:
        self.process.terminate()
        self.process.wait(timeout=20)
        self.log.close()


@needs_prometheus
@pytest.mark.django_db
@pytest.mark.shows("U7", "U8", "R136")
def test_page_and_prometheus_agree_within_one_percent(tmp_path: Path) -> None:
    in_the_ledger()
    objectives = {
        one.name: create_objective(
            name=one.name,
            kind=one.kind.value,
            target=one.target,
            threshold_seconds=one.threshold_seconds,
            model=MODEL,
            actor=SYSTEM,
        )
        for one in shipped_objectives()
    }
    tally(NOW)
    as_openmetrics(tmp_path / "month.txt")
    data = tmp_path / "data"
    promtool("tsdb", "create-blocks-from", "openmetrics", "--quiet", str(tmp_path / "month.txt"), str(data))
    shown = {row.objective.name: row.standing for row in read_board(list(Objective.objects.all()), now=NOW).rows}
    standings = read_standings(list(objectives.values()), now=NOW)
    assert {one.name: standings[one.pk] for one in objectives.values()} == shown
    server = Server(tmp_path, data)
    try:
        for one in shipped_objectives():
            standing = shown[one.name]
            attained = server.value(attained_expression(one), NOW)
            assert standing.attained == pytest.approx(attained, rel=0.01)
            assert standing.attained is not None
            assert 1 - standing.attained == pytest.approx(1 - attained, rel=0.01)
            for seconds, burn in standing.burns.items():
                told = server.value(burn_expression(one, window_word(seconds)), NOW)
                assert burn == pytest.approx(told, rel=0.01), (one.name, seconds)
            whole = server.value(burn_expression(one, "30d"), NOW)
            assert standing.budget.remaining == pytest.approx(1 - whole, rel=0.01)
    finally:
        server.stop()
