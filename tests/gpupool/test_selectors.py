"""What relays read of the pool whenever it changes is no more than they need."""

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from gpupool.selectors import list_models, list_ready_endpoints
from tests.factories import make_instance, make_model, make_version


@pytest.mark.django_db
def test_manifests_and_cards_are_not_read_for_relays() -> None:
    version = make_version(make_model("m"))
    make_instance(version, port=1)
    make_instance(version, port=2)
    with CaptureQueriesContext(connection) as asked:
        assert [model.name for model in list_models()] == ["m"]
        assert [endpoint.port for endpoint in list_ready_endpoints()] == [1, 2]
    statements = [query["sql"] for query in asked.captured_queries]
    assert len(statements) == 4  # models, aliases, versions, instances: nothing is fetched row by row
    assert not any(column in sql for sql in statements for column in ('"manifest"', '"card"', '"checks"'))
