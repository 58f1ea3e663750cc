"""The agent stream while the database is slow or fails: what is written, what is kept alive, what is refused."""

import asyncio
import threading
from collections.abc import Iterator
from uuid import UUID

import pytest
from django.db import OperationalError
from structlog.testing import capture_logs

from gpupool import services
from gpupool.leases.liveness import NodeLiveness
from gpupool.models import Device, DeviceEvent
from gpupool.stream import consumer
from gpupool.stream.messages import EventFact, Observed, Refused, Welcome
from tests.gpupool.leases.contract import eventually
from tests.gpupool.pool import a_device, a_hello
from tests.gpupool.stream.agents import Agent, Connect, a_report, begin, session_of, the_node

pytestmark = pytest.mark.django_db(transaction=True)


class SlowDatabase:
    """Holds back whatever is written of reports until it is let go on, and with it all else that needs its thread."""

    def __init__(self) -> None:
        self.written: list[Observed] = []
        self.begun, self.go_on = threading.Event(), threading.Event()
        self._apply = services.apply_observed

    def apply(self, node_id: UUID, session_id: UUID, report: Observed) -> services.Intake:
        self.written.append(report)
        self.begun.set()
        assert self.go_on.wait(60)
        return self._apply(node_id, session_id, report)

    async def hold(self, agent: Agent) -> None:
        """From here on a report of this agent is being written."""
        await agent.say(a_report(1))
        assert await asyncio.to_thread(self.begun.wait, 30)


@pytest.fixture
def slow(monkeypatch: pytest.MonkeyPatch) -> Iterator[SlowDatabase]:
    database = SlowDatabase()
    monkeypatch.setattr(services, "apply_observed", database.apply)
    yield database
    database.go_on.set()


@pytest.fixture
def renewals(monkeypatch: pytest.MonkeyPatch) -> list[None]:
    """As many as there were renewals of liveness."""
    made: list[None] = []
    renew = NodeLiveness.heard

    async def heard(liveness: NodeLiveness) -> None:
        await renew(liveness)
        made.append(None)

    monkeypatch.setattr(NodeLiveness, "heard", heard)
    return made


async def test_of_reports_that_wait_for_a_slow_database_the_newest_alone_is_written_with_all_that_was_told_once(
    connect: Connect, token: str, slow: SlowDatabase
) -> None:
    agent = await connect(token)
    await begin(agent)
    await slow.hold(agent)
    event = EventFact(sequence=1, source="kernel_log", kind="xid", at=1.0, stable_id="gpu-0", code=79)
    await agent.say(a_report(2, events=[event], capabilities={"mps": {"available": False}}))
    for sequence in range(3, 40):
        await agent.say(a_report(sequence))
    await agent.all_heard()
    slow.go_on.set()
    while (await agent.hear()).event_sequence != 1:
        pass
    assert [report.sequence for report in slow.written] == [1, 39]
    assert (await DeviceEvent.objects.aget()).code == 79
    assert (await the_node()).capabilities == {"mps": {"available": False}}


async def test_a_slow_database_neither_ends_a_stream_nor_lets_its_node_seem_dead(
    connect: Connect, token: str, slow: SlowDatabase, renewals: list[None], monkeypatch: pytest.MonkeyPatch
) -> None:
    agent = await connect(token)
    first = await begin(agent)
    monkeypatch.setattr(consumer, "SILENCE_SECONDS", 4.0)  # longer than a busy machine stands still
    await slow.hold(agent)
    before, until = len(renewals), asyncio.get_running_loop().time() + 5.0

    async def renewed() -> bool:
        await agent.say(a_report(2))
        return len(renewals) > before + 5 and asyncio.get_running_loop().time() > until

    await eventually(renewed)
    assert len(slow.written) == 1
    slow.go_on.set()
    event = EventFact(sequence=1, source="kernel_log", kind="xid", at=1.0)
    await agent.say(a_report(3, events=[event]))
    assert (await agent.hear_other_than(first)).event_sequence == 1


async def test_an_older_stream_is_refused_at_its_next_word_however_long_that_waited(
    connect: Connect, token: str, slow: SlowDatabase
) -> None:
    old, new = await connect(token), await connect(token)
    first = await begin(old)
    await slow.hold(old)
    await new.say(a_hello("node-1", a_device("gpu-0")))
    await new.all_heard()
    await old.say(Observed(sequence=2, devices=[], instances=[]))
    await old.all_heard()
    slow.go_on.set()
    assert isinstance(await new.hear(), Welcome)
    assert isinstance(await old.hear_other_than(first), Refused)
    assert await old.hear_close() == 4409
    assert (await Device.objects.aget()).present


async def test_a_hello_that_nobody_waits_for_any_more_is_not_written(
    connect: Connect, token: str, slow: SlowDatabase
) -> None:
    agent, given_up = await connect(token), await connect(token)
    await begin(agent)
    session = session_of(await the_node())
    await slow.hold(agent)
    await given_up.say(a_hello("node-1", a_device("gpu-0")))
    await given_up.all_heard()
    with capture_logs() as logs:
        leaving = asyncio.create_task(given_up.leave())

        async def left() -> bool:
            return any(line["event"] == "agent_stream_closed" for line in logs)

        await eventually(left)
    slow.go_on.set()
    await leaving
    assert (await the_node()).session_id == session


@pytest.mark.parametrize(("error", "code"), [(OperationalError("away"), 1013), (RuntimeError("a defect"), 1011)])
async def test_a_stream_whose_reports_cannot_be_written_is_closed(
    connect: Connect, token: str, monkeypatch: pytest.MonkeyPatch, error: Exception, code: int
) -> None:
    agent = await connect(token)
    first = await begin(agent)

    def fail(*_: object) -> services.Intake:
        raise error

    monkeypatch.setattr(services, "apply_observed", fail)
    await agent.say(a_report(1))
    assert await agent.hear_close(first) == code
