"""Reads whose answers are kept for a while, because they are dear and nobody needs them to the second."""

import hashlib
import time
from collections.abc import Callable
from typing import Final, TypeVar

import structlog
from django.core.cache import cache
from redis.exceptions import RedisError

Read = TypeVar("Read")
_NOTHING: Final = object()
_DEAR_SECONDS: Final = 0.05
"""What took less is not kept: asked again it is as quick, and newer."""

log = structlog.get_logger(__name__)


def kept(read: Callable[[], Read], *, name: str, asked: object, seconds: float) -> Read:
    """What `read` returns, or returned at most so many seconds ago when the same was asked.

    `asked` is all that the answer depends on, whose tenant it is too; its `repr` tells it apart. A cache that is away
    makes pages slower, not wrong.
    """
    digest = hashlib.sha256(repr(asked).encode()).hexdigest()  # a cache's key may not hold every character
    key = f"{name}:{digest}"
    try:
        answer = cache.get(key, _NOTHING)
    except RedisError as error:
        log.warning("kept_read_lost", name=name, error=str(error))
        return read()
    if answer is _NOTHING:
        began = time.perf_counter()
        answer = read()
        if time.perf_counter() - began < _DEAR_SECONDS:
            return answer
        try:
            cache.set(key, answer, seconds)
        except RedisError as error:
            log.warning("kept_read_lost", name=name, error=str(error))
    found: Read = answer
    return found
