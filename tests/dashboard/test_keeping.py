"""Dear reads are kept for a while, by what was asked; a cache that is away makes them slower, not wrong."""

from itertools import count
from typing import Any
from uuid import uuid4

import pytest
from django.core.cache import cache
from redis.exceptions import ConnectionError as ValkeyAway

from dashboard import keeping
from dashboard.keeping import kept


@pytest.fixture
def dear(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keeping, "_DEAR_SECONDS", 0.0)


@pytest.mark.usefixtures("dear")
def test_the_same_question_is_answered_once() -> None:
    name, numbers = f"test-{uuid4()}", count()
    answers = [kept(lambda: next(numbers), name=name, asked=("a", one), seconds=60) for one in (1, 1, 2, 1)]
    assert answers == [0, 0, 1, 0]
    assert kept(lambda: next(numbers), name=f"{name}-other", asked=("a", 1), seconds=60) == 2


@pytest.mark.usefixtures("dear")
def test_nothing_found_is_an_answer_too() -> None:
    name, answers = f"test-{uuid4()}", iter([None, "never asked for"])
    assert [kept(lambda: next(answers), name=name, asked=1, seconds=60) for _ in range(2)] == [None, None]


def test_what_is_quick_is_read_each_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keeping, "_DEAR_SECONDS", 60.0)
    name, numbers = f"test-{uuid4()}", count()
    assert [kept(lambda: next(numbers), name=name, asked=1, seconds=60) for _ in range(2)] == [0, 1]


@pytest.mark.usefixtures("dear")
def test_a_cache_that_is_away_is_done_without(monkeypatch: pytest.MonkeyPatch) -> None:
    def away(*_: Any, **__: Any) -> None:
        raise ValkeyAway

    name, numbers = f"test-{uuid4()}", count()
    monkeypatch.setattr(cache, "set", away)
    assert [kept(lambda: next(numbers), name=name, asked=1, seconds=60) for _ in range(2)] == [0, 1]
    monkeypatch.setattr(cache, "get", away)
    assert kept(lambda: next(numbers), name=name, asked=1, seconds=60) == 2
