"""An instance that relays send nothing says so on its page, and on the overview: since when, why, until when."""

from datetime import timedelta
from typing import Any
from uuid import UUID

import pytest
from django.conf import settings
from django.test import Client
from django.utils import timezone

from core.ids import uuid7
from gateway.policies.breaker import AttemptOutcome
from gateway.reads.breakers import read_breakers
from gateway.relay.breaker_board import BreakerBoard, LeftAlone
from gateway.relay.valkey import ValkeyClient
from gpupool.models import Instance
from tests.dashboard.people import pool
from tests.dashboard.tenancy_rows import text_of
from tests.gateway.breaker_words import patient, tell, write
from tests.gateway.relay.test_picker import Pool

pytestmark = pytest.mark.django_db
NOW = timezone.now()


@pytest.fixture(autouse=True)
def _patient(monkeypatch: pytest.MonkeyPatch) -> None:
    patient(monkeypatch)


def told(url: str, process: str, instance_id: UUID, **changes: Any) -> None:
    """What a relay has written."""
    since = changes.pop("since", NOW - timedelta(minutes=5)).timestamp()
    trial = changes.pop("trial_at", timezone.now() + timedelta(seconds=20))
    until = changes.pop("open_until", trial or timezone.now())
    why, tried = changes.pop("why", "refused"), None if trial is None else trial.timestamp()
    tell(url, process, LeftAlone(instance_id, since, why, tried, until.timestamp()), **changes)


def lines(operator: Client) -> list[tuple[str, str, str]]:
    found = operator.get("/console/overview/attention/").context["attention"]
    return [(str(item.level), item.text, item.href) for item in found if item.kind == "breaker_open"]


def test_an_instance_says_which_process_leaves_it_alone_since_when_and_why(operator: Client, valkey_url: str) -> None:
    made = pool()
    address = f"/console/instances/{made.instance.pk}/"
    assert "left it alone" not in text_of(operator.get(address))
    told(valkey_url, "relay a:1", made.instance.pk)
    told(valkey_url, "relay b:2", made.instance.pk, why="failed", trial_at=None)
    told(valkey_url, "relay c:3", UUID(int=1))
    for page in (address, f"{address}live/"):
        text = " ".join(text_of(operator.get(page)).split())
        assert text.count("has left it alone since") == 2
        assert "relay a:1 has left it alone since" in text
        assert "connections to it are refused. From" in text
        assert "half of its last requests there failed. One request is trying it now." in text
    for n in range(6):
        told(valkey_url, f"relay more:{n}", made.instance.pk)
        if n == 3:
            assert "And so has 1 more process." in text_of(operator.get(address))
    assert "And so have 3 more processes." in text_of(operator.get(address))


def test_a_failed_trial_is_said_as_one(operator: Client, valkey_url: str) -> None:
    made = pool()
    told(valkey_url, "relay a:1", made.instance.pk, why="trial")
    text = " ".join(text_of(operator.get(f"/console/instances/{made.instance.pk}/")).split())
    assert "the last request that tried it failed. From" in text
    assert "half of its last requests" not in text


def test_an_instance_that_nobody_has_asked_for_since_has_a_note_and_no_warning(
    operator: Client, valkey_url: str
) -> None:
    made, due = pool(), timezone.now() - timedelta(minutes=4)
    address = f"/console/instances/{made.instance.pk}/"
    for process, why in (("a:1", "refused"), ("b:2", "failed"), ("c:3", "trial")):
        told(valkey_url, process, made.instance.pk, why=why, trial_at=due)
    answer = operator.get(address)
    assert b'class="notice warn"' not in answer.content
    text = " ".join(text_of(answer).split())
    assert "has left it alone" not in text
    assert text.count("The next request tries it again; none has come since") == 3
    for why in (
        "as connections to it were refused.",
        "as half of the last ones there failed.",
        "and the last one that tried it failed.",
    ):
        assert text.count(why) == 1
    for n, more in enumerate(("more process.", "more processes.")):
        for number in range(3 + n):
            told(valkey_url, f"more:{number}", made.instance.pk, trial_at=due)
        assert f"And so did {1 + n} {more}" in text_of(operator.get(address))
    told(valkey_url, "a:1", made.instance.pk)  # it is tried again, and refuses still
    answer = operator.get(address)
    assert b'class="notice warn"' in answer.content
    assert "a:1 has left it alone since" in text_of(answer)


def test_the_overview_tells_ready_instances_that_are_left_alone_for_a_while(operator: Client, valkey_url: str) -> None:
    made = pool()
    own = f"/console/instances/{made.instance.pk}/"
    told(valkey_url, "relay a:1", made.instance.pk, since=timezone.now())
    assert lines(operator) == []  # it may just be restarting
    told(valkey_url, "relay a:1", made.instance.pk, trial_at=NOW - timedelta(minutes=4))
    assert lines(operator) == []  # nobody has asked for it since
    soon = timezone.now() + timedelta(minutes=1)  # it is asked for seldom, and tried each time
    told(valkey_url, "relay a:1", made.instance.pk, trial_at=NOW - timedelta(minutes=4), open_until=soon)
    told(valkey_url, "relay b:2", made.instance.pk, trial_at=None)
    one = "1 ready instance gets no requests from at least one relay process, whose own failed there: qwen3-8b."
    assert lines(operator) == [("Soon", one, own)]
    other = Instance.objects.create(version=made.version, node=made.device.node, engine="vllm", state="ready")
    told(valkey_url, "relay b:2", other.pk)
    both = "2 ready instances get no requests from at least one relay process each, whose own failed there: qwen3-8b."
    assert [text for _level, text, _href in lines(operator)] == [both]
    other.delete()
    made.instance.state = "failed"
    made.instance.save()
    assert lines(operator) == []  # that it failed is a line of its own


def test_more_than_processes_name_are_said_with_their_number(operator: Client, valkey_url: str) -> None:
    made = pool()
    address = f"/console/instances/{made.instance.pk}/"
    told(valkey_url, "relay a:1", made.instance.pk, more=37, asked=12)
    text = text_of(operator.get(address))
    assert "more instances alone" not in text  # it is named by the only one that names not all
    ((_level, line, href),) = lines(operator)
    assert line.endswith(": qwen3-8b. At least 12 more instances are left alone, which no process names.")
    assert href == "/console/instances/?state=ready"
    told(valkey_url, "relay b:2", UUID(int=1), more=1)
    text = " ".join(text_of(operator.get(address)).split())
    assert "relay b:2 has left 1 more instance alone that it does not name: it may be this one." in text
    assert "At least 11 more instances" in lines(operator)[0][1]  # one of the twelve may be that which b:2 names
    for n in range(5):
        told(valkey_url, f"relay more:{n}", UUID(int=2), more=1_000)
    text = " ".join(text_of(operator.get(address)).split())
    assert "relay more:0 has left 1,000 more instances alone that it does not name: this one may be among them." in text
    assert "And so has 1 more process." in text
    told(valkey_url, "relay a:1", made.instance.pk, more=30)  # that nobody asks for
    assert "no process names" not in lines(operator)[0][1]
    made.instance.state = "loading"
    made.instance.save()
    assert "more instances alone" not in text_of(operator.get(address))  # it is none that requests were sent to


async def test_what_a_relay_tells_is_what_pages_read(valkey_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gateway.relay.breaker_board._CALL_DEADLINE_SECONDS", 10.0)  # patient, as the page is
    relay, client = Pool(), ValkeyClient(valkey_url, deadline_seconds=10.0)
    board = BreakerBoard(
        relay.balancer, client, prefix=settings.GATEHOUSE.valkey_prefix, process_id=uuid7(), door="relay",
        clock=relay.clock, now=lambda: NOW.timestamp(),
    )  # fmt: skip
    try:
        endpoint = relay.add()
        for outcome, why in ((AttemptOutcome.REFUSED_CONNECTION, ["refused"]), (AttemptOutcome.OK, [])):
            relay.balancer.finished(endpoint, outcome, trial=relay.balancer.started(endpoint))
            await board.tell()
            assert [one.why for one in read_breakers(endpoint.instance_id).left_alone] == why
    finally:
        await client.close()


def test_words_that_cannot_be_read_are_counted_and_hide_no_others(valkey_url: str) -> None:
    one = UUID(int=3)
    told(valkey_url, "relay a:1", one)
    for n, text in enumerate((None, b"no json", b'{"process": 7}', b'{"process":"x","left_alone":[{"since":"soon"}]}')):
        write(valkey_url, f"relay odd:{n}", text)
    told(valkey_url, "relay far:1", one, since=NOW, why="refused", trial_at=NOW)
    found = read_breakers(one)
    assert ([one.process for one in found.left_alone], found.unread) == (["relay a:1", "relay far:1"], 3)
