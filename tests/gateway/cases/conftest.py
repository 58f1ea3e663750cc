"""One house on each worker for all of these tests: they follow each other."""

from collections.abc import Generator, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Final

import pytest
from pytest_django import DjangoDbBlocker

from gateway.relay.deadlines import Deadlines
from tests.gateway.cases.desk import USUAL, Case, CasesHouse, Engines
from tests.house import house_environ, own_database
from tests.kept import Kept

FOLDER: Final = Path(__file__).parent

_house: Final[Kept[CasesHouse]] = Kept(FOLDER)
_engines: Final[Kept[Engines]] = Kept(FOLDER)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(nextitem: pytest.Item | None) -> Generator[None, None, None]:
    try:
        return (yield)
    finally:
        _engines.close_before(nextitem)
        _house.close_before(nextitem)


@contextmanager
def _settled(blocker: DjangoDbBlocker, folder: Path) -> Iterator[CasesHouse]:
    with own_database(blocker) as database_url:
        house = CasesHouse(folder, house_environ(database_url))
        try:
            house.settle_in()
            yield house
        finally:
            house.stop_all()


@pytest.fixture(scope="module")
def house(
    request: pytest.FixtureRequest,
    django_db_setup: None,
    django_db_blocker: DjangoDbBlocker,
    tmp_path_factory: pytest.TempPathFactory,
) -> CasesHouse:
    """See tests.gateway.cases.desk; one for all of these tests."""
    return _house.get(request, lambda: _settled(django_db_blocker, tmp_path_factory.mktemp("cases")))


@pytest.fixture
def deadlines() -> Deadlines:
    """What both doors keep; see tests.gateway.cases.desk.keeping."""
    return USUAL


@pytest.fixture(autouse=True)
def _kept(house: CasesHouse, deadlines: Deadlines) -> None:
    house.keep(deadlines)


@pytest.fixture
def engines(request: pytest.FixtureRequest) -> Iterator[Engines]:
    engines = _engines.get(request, lambda: closing(Engines()))
    yield engines
    engines.stop_all()


@pytest.fixture(params=["relay", "drf"])
def door(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(params=[False, True], ids=["whole", "streamed"])
def case(request: pytest.FixtureRequest, house: CasesHouse, engines: Engines, door: str) -> Case:
    """Through each door, streamed and not."""
    return Case(house, engines, door, bool(request.param))


@pytest.fixture
def streamed(house: CasesHouse, engines: Engines, door: str) -> Case:
    """Through each door, streamed."""
    return Case(house, engines, door, True)


@pytest.fixture
def whole(house: CasesHouse, engines: Engines, door: str) -> Case:
    """Through each door, not streamed."""
    return Case(house, engines, door, False)
