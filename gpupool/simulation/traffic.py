"""Imagined work of an engine: it comes, grows, shrinks and goes quiet, in a course of its own."""

import random
import time
from collections.abc import Callable
from typing import Final

_STEP_SECONDS: Final = 1.0
_QUIET_CHANCE: Final = 0.02  # a step, of a course that is busy
_BUSY_CHANCE: Final = 0.10  # a step, of one that is quiet


class Traffic:
    """A number from 0 to 1 that wanders."""

    def __init__(self, mean: float, chance: random.Random, *, clock: Callable[[], float] = time.monotonic) -> None:
        """`mean` is about where it wanders while there is work; 0: there is never any."""
        self._mean = mean
        self._chance = chance
        self._clock = clock
        self._at = clock()
        self._level = 0.0
        self._quiet = False

    def now(self) -> float:
        """Its level now."""
        if self._mean <= 0:
            return 0.0
        steps = int((self._clock() - self._at) / _STEP_SECONDS)
        self._at += steps * _STEP_SECONDS
        for _ in range(min(steps, 600)):
            self._step()
        return self._level

    def _step(self) -> None:
        if self._chance.random() < (_BUSY_CHANCE if self._quiet else _QUIET_CHANCE):
            self._quiet = not self._quiet
        aim = 0.0 if self._quiet else self._mean
        moved = self._level + 0.3 * (aim - self._level) + self._chance.uniform(-0.06, 0.06) * (not self._quiet)
        self._level = 0.0 if moved < 0.01 else min(1.0, moved)
