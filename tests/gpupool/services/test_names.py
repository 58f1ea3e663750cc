"""A name that two people take at the same moment is one's, and the other is told so."""

import threading
from collections.abc import Callable

import pytest
from django.db import connection

from gpupool import services
from gpupool.models import Model
from tenants.actor import SYSTEM
from tenants.services import InvalidInput


def _model() -> None:
    services.create_model("new", actor=SYSTEM)


def _version() -> None:
    services.create_version(Model.objects.get(name="m"), name="v1", engine="vllm", actor=SYSTEM)


def _node() -> None:
    services.create_node("node-1", actor=SYSTEM)


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("make", [_model, _version, _node])
def test_one_of_many_has_the_name(make: Callable[[], None]) -> None:
    services.create_model("m", actor=SYSTEM)
    gate, told = threading.Barrier(6), []

    def one() -> None:
        gate.wait()
        try:
            make()
            told.append("made")
        except InvalidInput as error:
            told.append(error.field)
        finally:
            connection.close()

    threads = [threading.Thread(target=one) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(told) == ["made"] + ["name"] * 5
