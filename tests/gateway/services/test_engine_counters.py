"""The ledger beside what engines have counted, endpoint by endpoint."""

import threading
import time
from collections.abc import Iterator
from datetime import timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from uuid import uuid4

import pytest
from django.test import Client
from django.utils import timezone

from core.ids import uuid7_from
from gateway.models import EngineDrift, EngineReading
from gateway.services.engine_counters import LONGEST_WINDOW, reconcile_engines
from gateway.tasks import reconcile_engines as task
from gpupool.models import Instance
from tenants.models import PlatformRole
from tenants.services.ledger import record_usage
from tests.factories import make_instance, make_model, make_user, make_version
from tests.tenants.usage_rows import usage_row

pytestmark = pytest.mark.django_db


class CountingEngine:
    """Answers /metrics as vLLM does."""

    def __init__(self) -> None:
        self.input = self.output = 0
        self.status = 200
        engine = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                text = (
                    f"vllm:prompt_tokens_total {engine.input}\nvllm:generation_tokens_total {engine.output}\n".encode()
                )
                self.send_response(engine.status)
                self.send_header("Content-Length", str(len(text)))
                self.end_headers()
                self.wfile.write(text)

            def log_message(self, *_: Any) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.port = int(self._server.server_address[1])
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def stop(self) -> None:
        self._server.shutdown()
        self._server.server_close()


@pytest.fixture
def engine() -> Iterator[CountingEngine]:
    engine = CountingEngine()
    yield engine
    engine.stop()


@pytest.fixture
def instance(engine: CountingEngine) -> Instance:
    return make_instance(make_version(make_model("counted")), port=engine.port)


def spend(instance: Instance, *, ago: float = 0.0, seconds: float = 0.0, **more: Any) -> None:
    started = time.time() - ago
    values = {"instance_id": instance.pk, "started_at": started, "model": "counted", "duration_ms": seconds * 1000}
    number = uuid4().int >> 66
    record_usage([usage_row(uuid4(), 1, id=uuid7_from(int(started * 1000), 0, number), **(values | more))])


def rewind(seconds: float) -> None:
    """As if the reading had been made earlier."""
    EngineReading.objects.update(at=timezone.now() - timedelta(seconds=seconds))


def test_what_agrees_has_no_difference(engine: CountingEngine, instance: Instance) -> None:
    engine.input, engine.output = 1000, 500
    assert reconcile_engines() == 0  # nothing to compare with yet
    rewind(60)
    spend(instance, ago=30, seconds=2)
    spend(instance, ago=20, seconds=1, usage_source="estimated", output_tokens=6, cached_tokens=2)
    spend(instance, ago=90, seconds=2)  # before
    engine.input, engine.output = 1006, 510
    assert task() == 1
    drift = EngineDrift.objects.get()
    assert (drift.requests, drift.ledger_input, drift.ledger_output, drift.ledger_cached) == (2, 6, 10, 2)
    assert (drift.engine_input, drift.engine_output, drift.estimated_output) == (6, 10, 6)
    assert (drift.difference_input, drift.difference_output, drift.explained) == (0, 0, True)


def test_requests_under_way_at_a_reading_are_tolerated_and_no_more(engine: CountingEngine, instance: Instance) -> None:
    reconcile_engines()
    rewind(60)
    spend(instance, ago=70, seconds=20)  # began before the first reading
    engine.input, engine.output = 0, 0
    reconcile_engines()
    drift = EngineDrift.objects.get()
    assert (drift.difference_input, drift.tolerance_input, drift.explained) == (-3, 3, True)
    rewind(60)
    EngineDrift.objects.all().delete()
    engine.output = 9
    reconcile_engines()
    assert EngineDrift.objects.get().explained is False


def test_bounds_of_lost_requests_are_tolerated(engine: CountingEngine, instance: Instance) -> None:
    reconcile_engines()
    rewind(60)
    spend(
        instance, ago=30, outcome="lost", instance_id=None, input_tokens=None, output_tokens=None, reserved_input=40,
        reserved_output=50,
    )  # fmt: skip
    engine.input, engine.output = 40, 20
    reconcile_engines()
    drift = EngineDrift.objects.get()
    assert (drift.tolerance_input, drift.tolerance_output, drift.explained) == (40, 50, True)


def test_what_was_made_for_clients_that_left_is_tolerated(engine: CountingEngine, instance: Instance) -> None:
    reconcile_engines()
    rewind(60)
    left: dict[str, Any] = {"outcome": "cancelled", "usage_source": "estimated", "output_tokens": None}
    spend(instance, ago=30, reserved_output=11, **left)
    spend(instance, ago=20, seconds=0.1, **left)  # no limit counted it
    engine.input, engine.output = 6, 30
    reconcile_engines()
    drift = EngineDrift.objects.get()
    assert (drift.ledger_output, drift.difference_output, drift.tolerance_output) == (0, 30, 11 + 20)


def test_a_restart_is_told_and_not_judged(engine: CountingEngine, instance: Instance) -> None:
    engine.input, engine.output = 1000, 500
    reconcile_engines()
    rewind(60)
    engine.input, engine.output = 3, 4
    reconcile_engines()
    drift = EngineDrift.objects.get()
    assert (drift.restarted, drift.engine_input, drift.engine_output, drift.explained) == (True, 3, 4, None)


def test_rows_that_come_late_are_counted_all_the_same(engine: CountingEngine, instance: Instance) -> None:
    reconcile_engines()
    rewind(60)
    engine.input, engine.output = 3, 4
    reconcile_engines()
    assert EngineDrift.objects.get().difference_output == 4
    spend(instance, ago=30, seconds=1)
    reconcile_engines()
    assert EngineDrift.objects.earliest("id").difference_output == 0


def test_an_engine_that_does_not_answer_is_left_out(engine: CountingEngine, instance: Instance) -> None:
    reconcile_engines()
    engine.status = 404
    assert reconcile_engines() == 0
    engine.status = 200
    rewind(LONGEST_WINDOW.total_seconds() + 5)
    assert reconcile_engines() == 0  # too long ago to be compared
    rewind(60)
    assert reconcile_engines() == 1


def test_platform_roles_read_it_newest_first(engine: CountingEngine, instance: Instance, client: Client) -> None:
    reconcile_engines()
    for _ in range(2):
        rewind(60)
        reconcile_engines()
    address = "/api/reconciliation/"
    assert client.get(address).status_code in (401, 403)
    for role, status in ((PlatformRole.NONE, 403), (PlatformRole.READ_ONLY, 200)):
        client.force_login(make_user(platform_role=role))
        answer = client.get(address)
        assert answer.status_code == status
    rows = answer.json()["results"]
    assert len(rows) == 2
    assert rows[0]["until"] > rows[1]["until"]
    assert rows[0]["instance_id"] == str(instance.pk)
    assert client.get(address, {"model": "other"}).json()["results"] == []
    assert client.get(address, {"nonsense": "1"}).status_code == 400
