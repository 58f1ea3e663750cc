from collections.abc import Iterator

import pytest
from pytest_django import DjangoDbBlocker

from tests.gateway.cases.desk import Case, CasesHouse, Engines
from tests.house import house_environ, own_database


@pytest.fixture(scope="package")
def house(
    django_db_setup: None, django_db_blocker: DjangoDbBlocker, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[CasesHouse]:
    """See tests.gateway.cases.desk; one for all of these tests."""
    folder = tmp_path_factory.mktemp("cases")
    with own_database(django_db_blocker) as database_url:
        house = CasesHouse(folder, house_environ(database_url))
        try:
            house.settle_in()
            yield house
        finally:
            house.stop_all()


@pytest.fixture(scope="package")
def _engines() -> Iterator[Engines]:
    engines = Engines()
    yield engines
    engines.close()


@pytest.fixture
def engines(_engines: Engines) -> Iterator[Engines]:
    yield _engines
    _engines.stop_all()


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
