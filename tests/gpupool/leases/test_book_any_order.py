"""Whatever happens to the book, in whatever order, on both stores: never two holders, never over the sum, a way back.

Leaders win, expire and act on although they were replaced; answers are lost before or after the write; leaders die
between the store and the database; nodes fall silent, restart and return; devices fail and heal.
"""

import asyncio
import itertools
from collections.abc import Coroutine, Iterator
from dataclasses import dataclass, replace
from typing import Any, Final, TypeVar
from uuid import uuid4

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test

from gpupool.leases.base import Committed, CreatedAt, Delete, IsAbsent, LeaseStore, Put, StoreUnavailable
from gpupool.leases.devices import Allocated, BookView, Denied, DeviceBook
from gpupool.leases.etcd import EtcdStore
from gpupool.leases.etcd_address import parse_etcd_url
from gpupool.leases.fencing import Superseded
from gpupool.leases.postgres import PostgresStore
from gpupool.policies.device_record import DeviceFacts, RecordedClaim, Standing, Status, mend
from gpupool.policies.lease import Portion
from tests.gpupool.leases.books import Forgetful, a_book
from tests.gpupool.leases.contract import PATIENCE_SECONDS
from tests.gpupool.leases.etcd_server import EtcdServer, needs_etcd

SIZE: Final = 10
_LEADER: Final = "/leader/controller"
_NUMBER: Final = itertools.count()
T = TypeVar("T")

_portions = st.one_of(
    st.builds(Portion, st.integers(1, SIZE)),
    st.builds(Portion, st.integers(1, 4), st.sampled_from([0.25, 0.5, 1.0])),
    st.builds(Portion, st.integers(1, SIZE), st.none(), st.just(True)),
)
_wishes = st.dictionaries(st.integers(0, 2), _portions, min_size=1, max_size=3)


@dataclass
class Leader:
    """One that won at `won`, with a line to the store that may fail. `pending` is claimed and not written down."""

    won: int
    lease_id: int
    line: Forgetful
    book: DeviceBook
    pending: RecordedClaim | None = None


class BookMachine(RuleBasedStateMachine):
    def __init__(self, loop: asyncio.AbstractEventLoop, store: LeaseStore) -> None:
        super().__init__()
        self._loop, self._store = loop, store
        self.node = uuid4()
        self.devices = [uuid4() for _ in range(3)]
        self.facts = {pk: DeviceFacts(pk, self.node, SIZE, True, "boot-0", Standing.OK) for pk in self.devices}
        self.boots = 0
        self.rows: dict[str, RecordedClaim] = {}  # what the database would hold
        self.fence = 0  # the highest that acted there
        self.highest_token = 0
        self.leaders: list[Leader] = []

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        return self._loop.run_until_complete(work)

    @initialize()
    def begin(self) -> None:
        async def clear() -> None:
            for entry in (await self._store.range("/")).entries:
                await self._store.transact([], [Delete(entry.key)])

        self.run(clear())
        self.win()

    def win(self) -> None:
        """Nobody leads: somebody wins, and mends what the one before left."""

        async def campaign() -> Leader:
            grant = await self._store.grant(600)
            outcome = await self._store.transact([IsAbsent(_LEADER)], [Put(_LEADER, b"me", grant.lease_id)])
            assert isinstance(outcome, Committed)
            line = Forgetful(self._store)
            book = a_book(line, guards=[CreatedAt(_LEADER, outcome.revision)])
            return Leader(outcome.revision, grant.lease_id, line, book)

        self.leaders.append(self.run(campaign()))
        self.fence = self.leaders[-1].won
        self.look()

    @property
    def leader(self) -> Leader:
        return self.leaders[-1]

    # What happens

    @rule(
        wish=_wishes,
        lost=st.sampled_from(["", "", "", "before", "after"]),
        stale=st.sampled_from([False, False, True]),
        written=st.sampled_from([True, True, False]),
    )
    def allocate(self, wish: dict[int, Portion], lost: str, stale: bool, written: bool) -> None:
        leader = self.leaders[0] if stale else self.leader
        holder = f"instance:{next(_NUMBER)}"
        portions = {self.devices[number]: portion for number, portion in wish.items()}
        boot = self.facts[self.devices[0]].boot_id
        leader.line.lose = lost
        try:
            claim = self.run(leader.book.allocate(holder, portions, node_id=self.node, boot_id=boot))
        except StoreUnavailable:
            return
        except Superseded:
            assert leader is not self.leader
            return
        finally:
            leader.line.lose = ""
        if isinstance(claim, Denied):
            return
        assert isinstance(claim, Allocated)
        assert leader is self.leader, "a leader who was replaced has claimed"
        assert claim.token > self.highest_token
        assert all(self.facts[pk].standing == Standing.OK for pk in portions), "given away while it was not known"
        self.highest_token = claim.token
        if leader.pending is not None:
            self.write_down(dies=False)
        leader.pending = RecordedClaim(holder, claim.token, self.node, boot, portions)
        if written:
            self.write_down(dies=False)

    @rule(dies=st.booleans())
    def write_down(self, dies: bool) -> None:
        """What was claimed last is written in the database, unless its leader dies before that."""
        claim, self.leader.pending = self.leader.pending, None
        if claim is None:
            return
        if dies:
            self.expire()
        elif claim.boot_id == self.facts[self.devices[0]].boot_id:
            self.rows[claim.holder] = claim

    @rule()
    def late_leader_writes(self) -> None:
        """One that was replaced before it had written down what it claimed: the database refuses it."""
        for leader in self.leaders[:-1]:
            claim, leader.pending = leader.pending, None
            if claim is not None:
                assert leader.won < self.fence

    @rule(number=st.integers(0, 5), tell_store=st.booleans(), lost=st.sampled_from(["", "", "before", "after"]))
    def holder_ends(self, number: int, tell_store: bool, lost: str) -> None:
        if not self.rows:
            return
        claim = self.rows.pop(sorted(self.rows)[number % len(self.rows)])
        if tell_store:
            self.leader.line.lose = lost
            try:
                self.run(self.leader.book.release(claim.holder, token=claim.token))
            except StoreUnavailable:
                pass
            finally:
                self.leader.line.lose = ""

    @rule()
    def expire(self) -> None:
        """The leader's time runs out; it does not know."""
        self.run(self._store.revoke(self.leader.lease_id))
        self.win()

    @rule(number=st.integers(0, 2), standing=st.sampled_from(Standing))
    def device_stands(self, number: int, standing: Standing) -> None:
        pk = self.devices[number]
        reason = "" if standing == Standing.OK else f"it is {standing}"
        self.facts[pk] = replace(self.facts[pk], standing=standing, reason=reason)
        self.look()

    @rule()
    def partition(self) -> None:
        """The node is silent: nothing of it is known, and nothing of it is given away."""
        for pk in self.devices:
            self.facts[pk] = replace(self.facts[pk], standing=Standing.UNKNOWN, reason="its node is not reachable")
        before = {holder: claim.token for holder, claim in self.view().book.claims.items() if holder in self.rows}
        self.look()
        after = self.view().book.claims
        assert {holder: after[holder].token for holder in before} == before

    @rule()
    def come_back(self) -> None:
        for pk in self.devices:
            self.facts[pk] = replace(self.facts[pk], standing=Standing.OK, reason="")
        self.look()

    @rule(told=st.booleans())
    def reboot(self, told: bool) -> None:
        """Every claim of the last boot is void, whether or not the database has let go of it yet."""
        self.boots += 1
        for pk in self.devices:
            self.facts[pk] = replace(self.facts[pk], boot_id=f"boot-{self.boots}")
        if told:
            self.rows.clear()
        self.look()
        self.rows.clear()
        assert self.view().book.claims == {}

    @rule(lost=st.sampled_from(["", "", "before", "after"]))
    def look(self, lost: str = "") -> None:
        """As a leader does: claims that are not written down yet are its own next step, so it never looks between."""
        if self.leader.pending is not None:
            self.write_down(dies=False)
        for _ in range(4):
            view = self.run(self.leader.book.read())
            fixes = mend(view.book, self.facts.values(), self.rows.values())
            if not fixes:
                return
            self.leader.line.lose, lost = lost, ""
            try:
                self.run(self.leader.book.apply(view, fixes))
            except StoreUnavailable:
                continue
            finally:
                self.leader.line.lose = ""
        raise AssertionError(f"never mended: {fixes}")

    # What must always be so

    def view(self) -> BookView:
        return self.run(a_book(self._store).read())

    @invariant()
    def no_device_is_promised_twice(self) -> None:
        if not self.leaders:
            return
        book = self.view().book
        for pk, record in book.records.items():
            assert sum(held.memory_bytes for held in record.claims) <= SIZE
            assert sum(held.share or 0.0 for held in record.claims) <= 1.0 + 1e-9
            assert len(record.claims) == 1 or not any(held.whole for held in record.claims)
            assert {held.holder: held.portion for held in record.claims} == {
                holder: claim.record.portions[pk]
                for holder, claim in book.claims.items()
                if pk in claim.record.portions
            }, "a claim is on all of its devices or on none"
            if record.status in (Status.FREE, Status.ALLOCATED):
                assert (record.status == Status.ALLOCATED) is bool(record.claims)

    @invariant()
    def what_the_database_holds_is_never_over_a_device(self) -> None:
        for pk in self.devices:
            held = [row.portions[pk] for row in self.rows.values() if pk in row.portions]
            assert sum(one.memory_bytes for one in held) <= SIZE
            assert len(held) <= 1 or not any(one.whole for one in held)

    def teardown(self) -> None:
        """There is a way back: all holders end, all faults do, and every device can be claimed whole."""
        if not self.leaders:
            return
        self.leader.pending = None
        self.rows.clear()
        self.come_back()
        assert {record.status for record in self.view().book.records.values()} == {Status.FREE}
        boot = self.facts[self.devices[0]].boot_id
        everything = {pk: Portion(SIZE, whole=True) for pk in self.devices}
        claim = self.run(self.leader.book.allocate("instance:last", everything, node_id=self.node, boot_id=boot))
        assert isinstance(claim, Allocated)


@pytest.fixture
def loop() -> Iterator[asyncio.AbstractEventLoop]:
    made = asyncio.new_event_loop()
    yield made
    made.close()


def _drill(loop: asyncio.AbstractEventLoop, store: LeaseStore, *, examples: int, steps: int) -> None:
    try:
        run_state_machine_as_test(
            lambda: BookMachine(loop, store),  # type: ignore[arg-type]  # it takes a factory, too
            settings=settings(
                max_examples=examples, stateful_step_count=steps, deadline=None, suppress_health_check=list(HealthCheck)
            ),
        )
    finally:
        loop.run_until_complete(store.close())


def _etcd(server: EtcdServer) -> EtcdStore:
    return EtcdStore(parse_etcd_url(f"{server.url}/machine"), deadline_seconds=PATIENCE_SECONDS)


@pytest.mark.shows("P1", "P13", "P14", "P15", "R31")
def test_no_order_of_events_breaks_the_book_on_postgresql(
    loop: asyncio.AbstractEventLoop, embedded_postgres_url: str, store_tables: None
) -> None:
    _drill(loop, PostgresStore(embedded_postgres_url, deadline_seconds=PATIENCE_SECONDS), examples=12, steps=25)


@needs_etcd
@pytest.mark.shows("P1", "P13", "P14", "P15", "R31")
def test_no_order_of_events_breaks_the_book_on_etcd(loop: asyncio.AbstractEventLoop, etcd_server: EtcdServer) -> None:
    _drill(loop, _etcd(etcd_server), examples=30, steps=30)


@pytest.mark.drill
def test_no_order_of_many_events_breaks_the_book_on_postgresql(
    loop: asyncio.AbstractEventLoop, embedded_postgres_url: str, store_tables: None
) -> None:
    _drill(loop, PostgresStore(embedded_postgres_url, deadline_seconds=PATIENCE_SECONDS), examples=200, steps=60)


@pytest.mark.drill
@needs_etcd
def test_no_order_of_many_events_breaks_the_book_on_etcd(
    loop: asyncio.AbstractEventLoop, etcd_server: EtcdServer
) -> None:
    _drill(loop, _etcd(etcd_server), examples=500, steps=60)
