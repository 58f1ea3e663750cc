"""Valkey is killed, comes back with its file or without it, or freezes: nothing is overspent, the rest goes on.

Work under limits is told 503 for a while; how long is printed, and bounded here. Work without limits notices nothing.
"""

import os
import shutil
import signal
import time
from collections.abc import Iterator
from typing import Final

import pytest
from pytest_django import DjangoDbBlocker

from bench.house import wait_until
from core.embedded.valkey import ValkeyServer
from tests.gateway.cases.desk import Engines
from tests.gateway.spending import PATIENT_REFUSALS, Spenders, SpendingHouse
from tests.house import house_environ, own_database

REQUESTS: Final = 300
AWAY_SECONDS: Final = 1.0


FAULTS: Final = {"file kept": "kept", "file lost": "lost", "frozen": "frozen", "frozen long": "frozen-long"}


@pytest.fixture(scope="module")
def engines() -> Iterator[Engines]:
    engines = Engines()
    yield engines
    engines.close()


@pytest.fixture(scope="module")
def own_valkey(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ValkeyServer]:
    folder = tmp_path_factory.mktemp("valkey")
    server = ValkeyServer(folder / "valkey", log=folder / "valkey.log", durable=True)
    server.start()
    yield server
    server.stop()


@pytest.fixture(scope="module")
def spending(
    django_db_setup: None,
    django_db_blocker: DjangoDbBlocker,
    tmp_path_factory: pytest.TempPathFactory,
    engines: Engines,
    own_valkey: ValkeyServer,
) -> Iterator[SpendingHouse]:
    folder = tmp_path_factory.mktemp("faults")
    with own_database(django_db_blocker) as database_url:
        environ = {**house_environ(database_url), "VALKEY_STATE_URL": own_valkey.database_url(0)}
        house = SpendingHouse(folder, environ)
        house.environ["GATEHOUSE_VALKEY_DEADLINE_SECONDS"] = "0.2"
        budgets = dict.fromkeys(FAULTS.values(), ("requests", REQUESTS))
        try:
            house.settle_in_for(engines, {**budgets, "free": ("", 0)}, relays=2)
            yield house
        finally:
            house.stop_all()


def _kill(server: ValkeyServer) -> None:
    assert server.pid is not None
    os.kill(server.pid, signal.SIGKILL)
    wait_until(lambda: server.poll() is not None, "it is dead")


def _carry_on(house: SpendingHouse, name: str, over: list[bool], spenders: Spenders) -> None:
    """Until counters are whole and limited work is let in again; then spend what is left."""
    worked = house.counting.worked[f"model-{name}"]
    done = worked.requests
    wait_until(
        lambda: worked.requests > done or house.budgets[name].spent() >= REQUESTS, "limited work goes on", seconds=40
    )
    over.append(True)
    spenders.join(30)
    rest = Spenders(house, clients=8, refusals=PATIENT_REFUSALS, of=[name])
    rest.start()
    rest.join(60)


@pytest.mark.shows("G4")
@pytest.mark.parametrize(
    "fault", [*[name for name in FAULTS if name != "frozen long"], pytest.param("frozen long", marks=pytest.mark.drill)]
)
def test_nothing_is_overspent_when_valkey_fails(spending: SpendingHouse, own_valkey: ValkeyServer, fault: str) -> None:
    name = FAULTS[fault]
    over: list[bool] = []
    spenders = Spenders(spending, clients=8, of=[name, "free"], pause_seconds=0.02, until=lambda: bool(over))
    before = spending.counting.requests
    spenders.start()
    wait_until(lambda: spending.counting.requests >= before + 60, "both are under way")
    generation = spending.generation()["id"]
    begun = time.monotonic()
    if fault.startswith("frozen"):
        assert own_valkey.pid is not None
        os.kill(own_valkey.pid, signal.SIGSTOP)
        time.sleep(30 if fault == "frozen long" else 3)  # for as long as it is frozen
        os.kill(own_valkey.pid, signal.SIGCONT)
    else:
        _kill(own_valkey)
        if fault == "file lost":
            shutil.rmtree(own_valkey.data_dir)
        time.sleep(AWAY_SECONDS)  # for as long as it is away
        own_valkey.start(port=own_valkey.port)
    back = time.monotonic()
    _carry_on(spending, name, over, spenders)
    spending.all_in_ledger()
    told = spending.reconcile()[name]

    budget, bounded, free = spending.budgets[name], spenders.told[name], spenders.told["free"]
    refused = [moment for moment in bounded.unavailable if moment >= begun]
    last = max(refused, default=back)
    print(
        f"\n{fault}: away {back - begun:.1f} s; limited work was told 503 {len(refused)} times, at last "
        f"{last - begun:.1f} s after the fault and {max(0.0, last - back):.1f} s after the return; "
        f"spent {budget.spent()} of {REQUESTS}; bounded {dict(bounded.statuses)}, free {dict(free.statuses)}, "
        f"slowest of free {free.longest_seconds:.2f} s"
    )
    assert spending.counting.worked[f"model-{name}"].requests <= REQUESTS
    assert budget.spent() == REQUESTS == told.ledger
    assert set(free.statuses) <= {"200", "left"}
    assert set(bounded.statuses) <= {"200", "left", "503", "insufficient_quota"}
    assert last - back < 20
    assert (spending.generation()["id"] == generation) == fault.startswith("frozen")
