"""What the tests of a folder share for as long as they follow each other.

Pytest's scope "package" is the session's in a folder without an `__init__.py`, as all of ours are: what it started
would run on beside all tests that come later.
"""

from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack
from pathlib import Path
from typing import Generic, TypeVar

import pytest

T = TypeVar("T")


class Kept(Generic[T]):
    """Opened for the first test that asks; closed before the first one outside the folder, and with the session."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._open = ExitStack()
        self._value: T | None = None

    def get(self, request: pytest.FixtureRequest, make: Callable[[], AbstractContextManager[T]]) -> T:
        if self._value is None:
            self._value = self._open.enter_context(make())
            request.session.addfinalizer(self.close)  # a run that is broken off tells of no next test
        return self._value

    def close(self) -> None:
        self._value = None
        self._open.close()

    def close_before(self, test: pytest.Item | None) -> None:
        """For `pytest_runtest_teardown`, after the fixtures of the test before."""
        if test is None or self._folder not in test.path.parents:
            self.close()
